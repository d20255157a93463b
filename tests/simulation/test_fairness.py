"""Jain's index, and what each owner got over time."""

import math

import numpy as np
from tests.simulation.oracle_priorities import Job, as_workload

from gleaner.control.simulation.metrics.node_time import jain, throughput
from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerKind, SchedulerSettings


def test_nothing_is_shared_evenly_among_some_and_not_at_all_among_none() -> None:
    assert jain(np.zeros(3)) == 1
    assert math.isnan(jain(np.zeros(0)))


def test_throughput_is_the_mean_of_the_units_held_in_each_bin() -> None:
    """On 4 nodes Alice has 3 from 0 to 10, Bob 1 from 0 to 5 and all 4 from 10 to 20."""
    jobs = [Job(0, 10, 10, 3, "Alice"), Job(0, 5, 5, 1, "Bob"), Job(1, 10, 10, 4, "Bob")]
    found = replay(as_workload(jobs), of_nodes(4), SchedulerSettings(kind=SchedulerKind.FCFS))
    means = throughput(found.jobs, found.workload.user, 3, np.array([0.0, 4.0, 8.0, 12.0]))
    assert means.tolist() == [[3, 3, 1.5], [1, 0.25, 2], [0, 0, 0]]
