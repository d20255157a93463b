"""The door to a replay: what it refuses, where it stops, and a queue that is always full."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.errors import BadScenario, BadTrace
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, of_nodes, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    OmfsSettings,
    SchedulerKind,
    SchedulerSettings,
)

KINDS = (SchedulerKind.FCFS, SchedulerKind.EASY, SchedulerKind.CONSERVATIVE)
every_kind = pytest.mark.parametrize("kind", KINDS)
EASY = SchedulerSettings()
TWO_JOBS = workload_of([(0, 10, 20, 3), (5, 10, 20, 2)])


def test_an_empty_workload_is_refused() -> None:
    with pytest.raises(BadTrace, match="by hand: it has no jobs"):
        replay(workload_of([]), of_processors(4), EASY)


def test_a_job_larger_than_the_machine_is_named() -> None:
    expected = "by hand: 1 of 2 jobs are larger than the machine: job 1 needs 3 processors, there are 2"
    with pytest.raises(BadScenario, match=re.escape(expected)):
        replay(TWO_JOBS, of_processors(2), EASY)


def test_a_workload_in_which_nothing_fits_is_refused() -> None:
    expected = "by hand: no job fits the machine, which has 1 nodes; the smallest job needs 2"
    with pytest.raises(BadTrace, match=re.escape(expected)):
        replay(TWO_JOBS, of_nodes(1), EASY)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"submit_s": np.array([0.0, -1.0])}, "job 2 was submitted before the one before it"),
        ({"submit_s": np.array([0.0, math.nan])}, "job 2 has no time of submission"),
        ({"run_s": np.array([-1.0, 1.0])}, "job 1 runs for less than no time"),
        ({"run_s": np.array([1.0, 21.0])}, "job 2 runs for longer than its limit"),
        ({"processors": np.array([1, 0])}, "job 2 has fewer than one processor"),
    ],
)
def test_a_workload_made_by_hand_is_checked(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadTrace, match=expected):
        replay(replace(TWO_JOBS, **change), of_processors(4), EASY)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"until_s": math.nan}, "until_s is nan: the replay would stop before it begins"),
        ({"until_s": 0}, "until_s is 0: the replay would stop before it begins"),
        ({"keep_waiting": -1}, "keep_waiting is -1"),
    ],
)
def test_an_end_or_a_length_of_the_queue_that_cannot_be_is_refused(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadScenario, match=expected):
        replay(TWO_JOBS, of_processors(4), EASY, **wrong)


@every_kind
def test_a_whole_node_is_given_to_whoever_needs_a_core_of_it(kind: SchedulerKind) -> None:
    workload = workload_of([(0, 10, 10, 5), (0, 10, 10, 4), (0, 10, 10, 1)])
    on_nodes = replay(workload, of_nodes(3, cores=4), SchedulerSettings(kind=kind))
    assert on_nodes.start_s.tolist() == [0, 0, 10]
    assert on_nodes.jobs.units.tolist() == [2, 1, 1]
    assert replay(workload, of_processors(12), SchedulerSettings(kind=kind)).start_s.tolist() == [0, 0, 0]


@every_kind
def test_on_faster_nodes_jobs_take_less_time(kind: SchedulerKind) -> None:
    machine = Machine((NodeClass(4, speed=2.0),))
    assert replay(TWO_JOBS, machine, SchedulerSettings(kind=kind)).end_s.tolist() == [5, 10]


@every_kind
def test_what_runs_when_the_replay_stops_has_no_end_but_a_stretch_up_to_then(kind: SchedulerKind) -> None:
    workload = workload_of([(0, 10, 10, 3), (0, 30, 30, 1), (5, 10, 20, 2), (12, 10, 20, 4), (25, 1, 1, 1)])
    schedule = replay(workload, of_processors(4), SchedulerSettings(kind=kind), until_s=20)
    np.testing.assert_array_equal(schedule.start_s, [0, 0, 10, math.nan, math.nan])
    np.testing.assert_array_equal(schedule.end_s, [10, math.nan, 20, math.nan, math.nan])
    assert schedule.jobs.job.tolist() == [0, 1, 2]
    assert schedule.jobs.end_s.tolist() == [10, 20, 20]


@every_kind
def test_a_queue_that_is_kept_full_takes_a_job_whenever_one_starts(kind: SchedulerKind) -> None:
    workload = workload_of([(99, 10, 10, 2)] * 6)
    schedule = replay(workload, of_processors(2), SchedulerSettings(kind=kind), keep_waiting=2)
    assert schedule.start_s.tolist() == [0, 10, 20, 30, 40, 50]
    assert schedule.workload.submit_s.tolist() == [0, 0, 0, 10, 20, 30]
    assert workload.submit_s.tolist() == [99] * 6


@pytest.mark.parametrize("kind", ["fcfs", "easy", "priority", "omfs", "nodes"])
def test_no_decision_is_further_away_than_the_period(kind: str) -> None:
    """A tenth is no exact number: 0.3 / 0.1 is less than 3, and 0.1 * 3 / 0.1 is more."""
    random = np.random.default_rng(1)
    workload = workload_of((at_s, 100, 100, 1) for at_s in np.sort(random.uniform(0, 50, 300)).tolist())
    machine = Machine((NodeClass(100, 4),), Allocation.CORES) if kind == "nodes" else of_processors(400)
    discipline = SchedulerKind.EASY if kind == "nodes" else SchedulerKind(kind)
    all_of_it = OmfsSettings(percent={"all": 100})
    settings = SchedulerSettings(kind=discipline, decide_every_s=0.1, omfs=all_of_it)
    assert replay(workload, machine, settings).wait_s.max() < 0.1 + 1e-9


def test_nodes_of_another_priority_are_not_made_one_pool_by_being_alike() -> None:
    """A job goes to the nodes of one priority, whether others are moved between them or not."""
    workload = workload_of([(0, 5, 5, 1), (0, 10, 10, 1), (0, 10, 10, 1), (6, 1, 1, 2)])
    machine = Machine((NodeClass(2, name="new", priority=1), NodeClass(2, name="old")))
    assert replay(workload, machine, EASY).start_s.tolist() == [0, 0, 0, 10]


def test_conservative_backfill_with_a_period_is_a_contradiction() -> None:
    settings = SchedulerSettings(kind=SchedulerKind.CONSERVATIVE, decide_every_s=30)
    with pytest.raises(BadScenario, match="decide_every_s must be 0"):
        replay(TWO_JOBS, of_processors(4), settings)
