"""The figures of a replay: some by hand, and rules that hold for every replay."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.metrics.measures import Waits, Window, measure
from gleaner.control.simulation.metrics.node_time import by_bin, waiting
from gleaner.control.simulation.model import (
    Machine,
    NodeClass,
    Schedule,
    Stretches,
    Workload,
    no_stretches,
    of_processors,
    uninterrupted,
)
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerKind, SchedulerSettings

near = pytest.approx


def stretches(*rows: tuple[int, float, float, int, float, float, float]) -> Stretches:
    """Job, start, end, units, restore, save, lost."""
    columns = list(zip(*rows, strict=True))
    job, units = (np.array(columns[place], np.int64) for place in (0, 3))
    start, end, restore, save, lost = (np.array(columns[place], np.float64) for place in (1, 2, 4, 5, 6))
    return Stretches(job, start, end, units, restore, save, lost, np.full(len(rows), -1, np.int32))


def by_hand() -> Schedule:
    """Four processors, three jobs, and an agent on two of them that restores for 5 s and saves for 10 s.

    processor  0         20        40        60   80   100
    3          |job 1----|job 2--------------|
    2          |job 1----|job 2--------------|job 3--------|
    1                                   (idle)
    0, 1                 |agent: 5 r, 25 computed, 10 s| from 20 to 60
    """
    workload = workload_of([(0, 20, 20, 2), (10, 40, 50, 2), (50, 40, 40, 1)])
    start_s, end_s = np.array([0.0, 20.0, 60.0]), np.array([20.0, 60.0, 100.0])
    jobs = uninterrupted(workload, np.array([2, 2, 1]), start_s, end_s)
    agents = stretches((-1, 20, 60, 2, 5, 10, 0))
    return Schedule(workload, of_processors(4), "easy", start_s, end_s, jobs, agents)


def test_a_schedule_by_hand() -> None:
    found = measure(by_hand())
    assert found.window == Window(0, 50)  # first to last submission
    # Of 200 processor seconds job 1 has 40, job 2 from 20 to 50 has 60, the agent 10 restoring and 50 computing.
    parts = found.parts
    assert (parts.regular_compute, parts.agents_compute, parts.agents_restore) == near((0.5, 0.25, 0.05))
    assert (parts.agents_save, parts.idle) == near((0.0, 0.2))
    assert (found.effective_load, found.regular_load, found.idle) == near((0.75, 0.5, 0.2))
    # Waits 0, 10, 10 s; slowdowns 1, 50/40, 50/40.
    assert (found.waits.mean_s, found.waits.mean_slowdown) == near((20 / 3, 3.5 / 3))
    assert (found.waits.jobs, found.waits.median_s, found.waits.p95_s, found.waits.p99_s) == (3, 10, 10, 10)
    # 40 + 80 + 40 processor seconds in 100 s.
    assert (found.utilisation, found.makespan_s) == near((0.4, 100))
    assert (found.agents, found.agent_saves, found.agent_restores) == (2, 2, 2)
    assert [(one.smallest, one.largest, one.waits.jobs) for one in found.size_classes] == [(1, 1, 1), (2, 4, 2)]


def test_what_a_killed_job_computed_is_lost_and_no_load() -> None:
    workload = workload_of([(0, 30, 30, 1), (90, 10, 10, 1)])
    # Job 1 is killed after 10 s, saved after 5 s of computing out of 12, and ends at 60.
    jobs = stretches(
        (0, 0, 10, 1, 0, 0, 10), (0, 20, 32, 1, 0, 7, 0), (0, 32, 60, 1, 3, 0, 0), (1, 90, 100, 1, 0, 0, 0)
    )
    start_s, end_s = np.array([0.0, 90.0]), np.array([60.0, 100.0])
    found = measure(Schedule(workload, of_processors(1), "omfs", start_s, end_s, jobs, no_stretches(), saves=1))
    parts = found.parts
    assert (parts.regular_lost, parts.regular_save, parts.regular_restore) == near((10 / 90, 7 / 90, 3 / 90))
    assert parts.regular_compute == near((5 + 25) / 90)
    assert found.regular_load == near(50 / 90)
    assert found.effective_load == near(30 / 90)
    assert found.job_saves == 1
    assert found.waits.mean_slowdown == near((2 + 1) / 2)  # 60 s for a job of 30


def test_the_effect_compares_the_jobs_that_started_in_both() -> None:
    schedule = by_hand()
    earlier_s = np.array([0.0, 20.0, 50.0])
    before = replace(schedule, start_s=earlier_s, end_s=np.array([20.0, 60.0, 90.0]), agents=no_stretches())
    effect = measure(schedule, before).effect
    assert effect is not None
    assert (effect.mean_wait_s.before, effect.mean_wait_s.after) == near((10 / 3, 20 / 3))
    assert (effect.mean_wait_s.absolute, effect.mean_wait_s.relative) == near((10 / 3, 1.0))
    assert (effect.later, effect.earlier) == near((1 / 3, 0))
    assert effect.effective_load.absolute == near(0.25)
    assert effect.median_wait_s.relative is None  # 0 before: no number says how many times


def test_owners_come_by_what_they_got_and_jain_says_how_even_that_is() -> None:
    workload = workload_of([(0, 30, 30, 1), (0, 10, 10, 1), (40, 1, 1, 1)])
    workload = replace(workload, user=np.array([0, 1, 1], np.int32), users=("ada", "bob"))
    found = measure(replay(workload, of_processors(2), SchedulerSettings()))
    assert [(one.name, one.jobs, one.compute_unit_s) for one in found.users] == [("ada", 1, 30), ("bob", 2, 10)]
    assert [one.share for one in found.users] == near([30 / 80, 10 / 80])
    assert found.users[0].throughput == near(30 / 40)
    assert found.jain_users == near(40**2 / (2 * (900 + 100)))
    assert found.jain_groups is None  # there is but one


@pytest.mark.parametrize(
    ("jobs", "until_s", "keep_waiting", "window"),
    [
        ([(5, 10, 10, 1), (5, 10, 10, 1)], None, 0, Window(5, 25)),
        ([(0, 10, 10, 1), (1000, 10, 10, 1)], 50, 0, Window(0, 50)),
        ([(0, 10, 10, 1), (30, 10, 10, 1)], 1000, 0, Window(0, 30)),
        ([(0, 30, 30, 1)] * 9, 50, 2, Window(0, 50)),
    ],
    ids=["all come at once", "stopped while nothing ran", "stopped after the last submission", "a full queue"],
)
def test_the_window_ends_with_the_last_submission_or_where_the_replay_stopped(
    jobs: list[tuple[float, float, float, int]], until_s: float | None, keep_waiting: int, window: Window
) -> None:
    stop: dict[str, Any] = {"until_s": until_s, "keep_waiting": keep_waiting}
    assert measure(replay(workload_of(jobs), of_processors(1), SchedulerSettings(), **stop)).window == window


def test_a_replay_that_was_stopped_is_measured_to_where_it_stopped() -> None:
    workload = workload_of([(0, 100, 100, 1), (10, 10, 10, 1), (1000, 10, 10, 1)])
    found = measure(replay(workload, of_processors(1), SchedulerSettings(), until_s=50))
    assert found.window == Window(0, 50)
    assert (found.jobs, found.started, found.finished) == (2, 1, 0)
    assert found.effective_load == near(1)
    assert found.waits == Waits(1, 0, 0, 0, 0, None)


def test_a_slowdown_is_of_the_run_time_on_that_machine() -> None:
    """Two jobs of 100 s at once, on a node of double speed: the second takes 100 s, of which it runs for 50."""
    workload = workload_of([(0, 100, 100, 1), (0, 100, 100, 1)])
    alike = Machine((NodeClass(1, speed=2.0),))
    unlike = Machine((NodeClass(1, 2, speed=2.0), NodeClass(1, 2, speed=0.5)))
    assert measure(replay(workload, alike, SchedulerSettings())).waits.mean_slowdown == near((1 + 2) / 2)
    assert measure(replay(workload, unlike, SchedulerSettings())).waits.mean_slowdown == near(1)


def test_a_slowdown_of_a_short_job_is_bounded() -> None:
    """Both wait for 20 s: 22 s are 2.2 times the 10 s that a job of 2 s counts as, 32 s are 32 / 12 of one of 12 s."""
    short, long = (workload_of([(0, 20, 20, 1), (0, run_s, run_s, 1)]) for run_s in (2, 12))
    found = [measure(replay(each, of_processors(1), SchedulerSettings())).waits.mean_slowdown for each in (short, long)]
    assert found == near([(1 + 2.2) / 2, (1 + 32 / 12) / 2])


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(BadScenario, match="ends at 7 s and begins at 7 s"):
        measure(by_hand(), window=Window(7, 7))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = draw(
        st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200), st.integers(1, 8)), min_size=2, max_size=25)
    )
    return workload_of([(submit, run, max(run, 1) * 2, size) for submit, run, size in sorted(jobs)])


def replayed(workload: Workload, length_s: float) -> tuple[Schedule, Schedule]:
    agents = AgentSettings(
        length_s=length_s,
        shortest_slice_s=min(30, length_s),
        save=CostSettings(constant_s=7),
        restore=CostSettings(constant_s=4),
    )
    scheduler, machine = SchedulerSettings(kind=SchedulerKind.EASY), of_processors(8)
    return replay(workload, machine, scheduler, agents), replay(workload, machine, scheduler)


@given(workload=workloads(), length_s=st.sampled_from([40.0, 100.0, 1000.0]))
def test_the_parts_of_the_load_add_up_to_one(workload: Workload, length_s: float) -> None:
    schedule, baseline = replayed(workload, length_s)
    found = measure(schedule, baseline)
    parts = [getattr(found.parts, name) for name in found.parts.__slots__]
    assert sum(parts) == near(1)
    assert all(part >= 0 for part in parts)
    assert found.nodes_full + found.nodes_mixed + found.nodes_empty == near(1)
    assert found.effective_load + found.saving + found.restoring + found.lost + found.idle == near(1)


@given(workload=workloads(), length_s=st.sampled_from([40.0, 100.0]))
def test_the_bins_of_a_window_add_up_to_the_window(workload: Workload, length_s: float) -> None:
    schedule, _ = replayed(workload, length_s)
    found = measure(schedule)
    window = found.window
    edges_s = np.linspace(window.begin_s, window.end_s, 14)
    whole = found.units * window.length_s
    ours, regular = by_bin(schedule.agents, edges_s), by_bin(schedule.jobs, edges_s)
    assert float(regular.compute.sum()) / whole == near(found.parts.regular_compute, abs=1e-9)
    assert float(ours.compute.sum()) / whole == near(found.parts.agents_compute, abs=1e-9)
    assert float(ours.save.sum() + ours.restore.sum()) / whole == near(found.saving + found.restoring, abs=1e-9)
    queue = waiting(schedule.workload.submit_s, schedule.start_s, edges_s) * np.diff(edges_s)
    inside_s = np.clip(schedule.start_s, window.begin_s, window.end_s) - schedule.workload.submit_s
    assert float(queue.sum()) == near(float(inside_s.sum()), abs=1e-6)  # Little's law, without its limit
