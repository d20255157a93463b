"""Confidence intervals, against tables and against chance."""

import math

import numpy as np
import pytest

from gleaner.control.simulation.tuning.evidence import interval, student_t


@pytest.mark.parametrize(
    ("freedom", "share", "expected"),
    [(1, 0.975, 12.706), (4, 0.975, 2.776), (9, 0.975, 2.262), (9, 0.95, 1.833), (30, 0.995, 2.750)],
)
def test_the_quantiles_are_those_of_the_printed_tables(freedom: int, share: float, expected: float) -> None:
    assert student_t(freedom, share) == pytest.approx(expected, abs=5e-4)


def test_the_interval_of_five_figures_is_the_one_worked_out_by_hand() -> None:
    # Mean 10, deviations -2 -1 0 1 2, so s = sqrt(10 / 4); t(4, 0.975) = 2.776.
    found = interval([8.0, 9.0, 10.0, 11.0, 12.0])
    assert found.mean == 10.0
    assert found.high - 10.0 == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)
    assert 10.0 - found.low == pytest.approx(found.high - 10.0)


def test_the_true_mean_is_in_nine_of_ten_intervals_at_that_level() -> None:
    chance = np.random.Generator(np.random.PCG64(4))
    draws = chance.normal(3.0, 2.0, (2000, 6))
    found = [interval(draw.tolist(), level=0.9) for draw in draws]
    assert 0.88 < sum(one.low <= 3.0 <= one.high for one in found) / len(found) < 0.92


@pytest.mark.parametrize(("values", "level"), [([1.0], 0.95), ([], 0.95), ([1.0, 2.0], 0.0), ([1.0, 2.0], 1.0)])
def test_what_gives_no_interval_is_refused(values: list[float], level: float) -> None:
    with pytest.raises(ValueError, match=r"interval needs|level lies"):
        interval(values, level=level)
