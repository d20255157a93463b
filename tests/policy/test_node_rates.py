"""Conclusions from measured saves, restores and losses."""

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.timing.least_squares import MIB, Line, Sums, line
from gleaner.control.policy.node_rates import added, faded, mean_time_between_losses_s


def measured(*pairs: tuple[float, float], at_once: int = 1, half_life: float = 20) -> Sums:
    """Sums over (MiB, seconds)."""
    sums = Sums()
    for mib, took_s in pairs:
        sums = added(sums, size_bytes=int(mib * MIB), at_once=at_once, took_s=took_s, half_life=half_life)
    return sums


def test_without_a_measurement_nothing_is_known() -> None:
    assert line(Sums()) is None


def test_saves_of_one_size_count_as_growing_with_the_size() -> None:
    found = line(measured((200, 2.0), (201, 2.0), (199, 2.0)))
    assert found is not None
    assert found.fixed_s == 0
    assert found.mib_s == pytest.approx(100, rel=0.01)


def test_tiny_saves_say_no_more_of_the_node_than_one_of_16_mib_would() -> None:
    found = line(measured((0, 1.0), (0.1, 1.0), (3, 1.0)))
    assert found is not None
    assert (found.fixed_s, found.mib_s) == (0, pytest.approx(16))


def test_several_at_once_share_the_node() -> None:
    found = line(measured((100, 1.0), (100, 1.0), at_once=4))
    assert found is not None
    assert found.mib_s == pytest.approx(400)


def test_a_node_that_has_become_slow_is_soon_known_to_be() -> None:
    was = [(100.0, 0.5), (400.0, 2.0)] * 20
    found = line(measured(*was, *[(mib, 4 * s) for mib, s in was], half_life=10))
    assert found is not None
    assert found.mib_s == pytest.approx(50, rel=0.1)


def test_a_time_that_does_not_grow_is_a_fixed_one() -> None:
    found = line(measured((100, 3.0), (1000, 3.0), (5000, 3.0)))
    assert found is not None
    assert found.fixed_s + 100 / found.mib_s == pytest.approx(3.0, abs=0.3)
    assert math.isfinite(found.mib_s)


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5)), min_size=1, max_size=30),
    at_once=st.integers(1, 64),
    half_life=st.floats(0.5, 1000),
)
def test_whatever_was_measured_an_estimate_is_a_time(
    pairs: list[tuple[float, float]], at_once: int, half_life: float
) -> None:
    found = line(measured(*pairs, at_once=at_once, half_life=half_life))
    assert found is None or (found.fixed_s >= 0 and found.mib_s > 0 and math.isfinite(found.mib_s + found.fixed_s))


def test_the_line_is_found_again_from_what_lies_on_it() -> None:
    on_it = Line(0.8, 350.0)
    found = line(measured(*[(mib, on_it.fixed_s + mib / on_it.mib_s) for mib in (64, 100, 512, 2000, 8000)]))
    assert found is not None
    assert (found.fixed_s, found.mib_s) == (pytest.approx(on_it.fixed_s), pytest.approx(on_it.mib_s))


@given(days=st.floats(0, 1e4), losses=st.floats(0, 1e4))
def test_a_further_loss_never_makes_a_node_look_safer(days: float, losses: float) -> None:
    before = mean_time_between_losses_s(agents_s=days, losses=losses, prior_s=30)
    assert mean_time_between_losses_s(agents_s=days, losses=losses + 1, prior_s=30) < before
    assert mean_time_between_losses_s(agents_s=days + 1, losses=losses, prior_s=30) > before


def test_a_clock_that_goes_back_makes_nothing_weigh_more() -> None:
    assert faded(8.0, age_s=-100, half_life_s=10) == 8.0


def test_a_time_that_no_clock_has_measured_neither_breaks_the_figures_nor_stays_for_ever() -> None:
    sums = measured((1000, 1e308), (1000, 2.0), (500, 1.5), half_life=1)
    assert all(math.isfinite(value) for value in astuple(sums))
    for _ in range(40):
        sums = added(sums, size_bytes=1000 * MIB, at_once=1, took_s=2.0, half_life=1)
    found = line(sums)
    assert found is not None
    assert found.fixed_s + 1000 / found.mib_s == pytest.approx(2.0, rel=0.01)
