"""The variants of a trace that seeds stand for."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import Workload, of_processors
from gleaner.control.simulation.tuning.variants import DAY_S, WEEK_S, variant, variation
from gleaner.control.simulation.workloads.synthetic import Source, SyntheticSettings, make

MACHINE = of_processors(16)


def made(submit_s: Iterable[float]) -> Workload:
    """Jobs of one processor at these times."""
    return workload_of((at_s, 1, 1, 1) for at_s in submit_s)


def hourly(days: float, first_s: float = 0.0) -> Workload:
    return made(first_s + 3600.0 * hour for hour in range(int(24 * days) + 1))


@pytest.mark.parametrize(
    ("days", "block_s", "blocks"), [(60, WEEK_S, 8), (28, WEEK_S, 4), (27.8, WEEK_S, 4), (20, DAY_S, 20), (3, 0.0, 0)]
)
def test_a_trace_is_cut_into_weeks_or_days_or_not_at_all(days: float, block_s: float, blocks: int) -> None:
    how = variation(hourly(days))
    assert (how.block_s, how.blocks) == (block_s, blocks)


def test_a_variant_is_made_of_whole_weeks_that_keep_their_hours() -> None:
    workload = hourly(60, first_s=1e6)
    changed = variant(workload, MACHINE, variation(workload), 7)
    assert len(changed) == 8 * 168
    weeks = changed.job.reshape(8, 168)
    assert (np.diff(weeks, axis=1) == 1).all()  # within a week all jobs of one week, in order
    assert (weeks[:, 0] % 168 == 1).all()
    assert (np.diff(changed.submit_s) == 3600).all()


def test_a_short_trace_stays_itself_but_for_a_minute() -> None:
    workload = hourly(2)
    how = variation(workload)
    changed = variant(workload, MACHINE, how, 3)
    assert not how.is_resampled
    assert changed.job.tolist() == workload.job.tolist()
    assert np.abs(np.diff(changed.submit_s) - 3600).max() <= 60
    assert "too short to say how other weeks would differ" in how.said


@pytest.mark.parametrize("source", list(Source))
def test_jobs_that_are_made_are_made_anew_for_each_seed(source: Source) -> None:
    settings = SyntheticSettings(source=source, jobs=200, load=0.7)
    workload = make(settings, MACHINE, hourly(2))
    how = variation(workload, settings)
    one, again, other = (variant(workload, MACHINE, how, seed) for seed in (1, 1, 2))
    assert one.submit_s.tobytes() == again.submit_s.tobytes()
    assert one.run_s.tobytes() == again.run_s.tobytes()
    assert np.diff(one.submit_s).tolist() not in (np.diff(other.submit_s).tolist(), np.diff(workload.submit_s).tolist())
    assert len(one) == len(other) == 200
    assert how.is_resampled
    assert "made as [workload.synthetic] says" in how.said


@given(
    st.lists(st.integers(0, 40 * 86400), min_size=1, max_size=60).map(sorted),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
)
def test_variants_are_in_order_and_the_same_for_the_same_seed(times: list[int], seed: int, other: int) -> None:
    workload = made(times)
    how = variation(workload)
    first = variant(workload, MACHINE, how, seed)
    variant(workload, MACHINE, how, other)
    again = variant(workload, MACHINE, how, seed)
    assert len(first) > 0
    assert (np.diff(first.submit_s) >= 0).all()
    assert (first.submit_s >= 0).all()
    assert first.submit_s.tobytes() == again.submit_s.tobytes()
    assert first.job.tobytes() == again.job.tobytes()
