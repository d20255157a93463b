"""The rules that agents keep under every scheduler and on every kind of machine."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tests.simulation.oracle import workload_of
from tests.simulation.test_agents import some_agents, workloads

from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.metrics.measures import Window, measure
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    AgentQueueSettings,
    AgentSettings,
    Backfill,
    OmfsSettings,
    PrioritySettings,
    SchedulerKind,
    SchedulerSettings,
    ShareSettings,
)

pytestmark = pytest.mark.extended

HALVES = OmfsSettings(percent={"a": 50, "b": 50}, quantum_s=20)
LARGE_FIRST = PrioritySettings(per_unit=5, backfill=Backfill.EASY)
SCHEDULERS = {
    "fcfs": SchedulerSettings(kind=SchedulerKind.FCFS),
    "easy": SchedulerSettings(kind=SchedulerKind.EASY),
    "conservative": SchedulerSettings(kind=SchedulerKind.CONSERVATIVE),
    "priority": SchedulerSettings(kind=SchedulerKind.PRIORITY),
    "priority, easy": SchedulerSettings(kind=SchedulerKind.PRIORITY, priority=LARGE_FIRST),
    "sfs": SchedulerSettings(kind=SchedulerKind.SFS, sfs=ShareSettings(others=3)),
    "omfs": SchedulerSettings(kind=SchedulerKind.OMFS, omfs=HALVES),
    "omfs, literal": SchedulerSettings(kind=SchedulerKind.OMFS, omfs=HALVES.model_copy(update={"literal": True})),
    "nodes, fcfs": SchedulerSettings(kind=SchedulerKind.FCFS),
    "nodes, easy": SchedulerSettings(kind=SchedulerKind.EASY),
}
everywhere = pytest.mark.parametrize("name", SCHEDULERS)


def of_two(workload: Workload) -> Workload:
    """The same jobs, every other of which is another user's and group's; all can be saved."""
    whose = np.arange(len(workload), dtype=np.int32) % 2
    kinds = np.full(len(workload), JobClass.CHECKPOINTABLE, np.int8)
    return replace(workload, user=whose, group=whose, users=("a", "b"), groups=("a", "b"), job_class=kinds)


def machine_for(name: str, nodes: int) -> Machine:
    """Return a machine of as many units; where nodes matter, in two classes."""
    if not name.startswith("nodes"):
        return of_nodes(nodes)
    many = NodeClass(nodes - nodes // 2)
    return Machine((many, NodeClass(nodes // 2, priority=1)) if nodes > 1 else (many,), Allocation.CORES)


@pytest.mark.slow
@everywhere
@settings(deadline=None, max_examples=30)
@given(workloads(), some_agents(preemption=False))
def test_without_low_priority_work_agents_change_nothing(
    name: str, case: tuple[Workload, int], rules: AgentSettings
) -> None:
    workload, machine = of_two(case[0]), machine_for(name, case[1])
    idle = rules.model_copy(update={"queue": AgentQueueSettings(jobs=0)})
    alone, beside = (replay(workload, machine, SCHEDULERS[name], agents) for agents in (None, idle))
    assert beside.start_s.tobytes() == alone.start_s.tobytes()
    assert beside.end_s.tobytes() == alone.end_s.tobytes()
    assert len(beside.agents) == 0


@pytest.mark.slow
@everywhere
def test_effective_load_with_agents_is_at_least_that_without_them(name: str) -> None:
    """Endless queue, fixed window, free saves: as a paired mean over many workloads."""
    window_s, nodes = 2000, 16
    rng = np.random.Generator(np.random.PCG64(7))
    agents = AgentSettings(length_s=100, shortest_slice_s=10)
    gains: list[float] = []
    for _ in range(60):
        jobs = 150
        run_s = np.ceil(rng.exponential(60, jobs))
        columns = (np.sort(rng.integers(0, window_s, jobs)), run_s, 2 * run_s, rng.integers(1, nodes // 2, jobs))
        workload = of_two(workload_of(zip(*(column.tolist() for column in columns), strict=True)))
        without, beside = (
            measure(
                replay(workload, machine_for(name, nodes), SCHEDULERS[name], rules, until_s=window_s),
                window=Window(0, window_s),
            ).effective_load
            for rules in (None, agents)
        )
        assert beside <= 1 + 1e-9
        gains.append(beside - without)
    assert np.mean(gains) - 3 * np.std(gains) / math.sqrt(len(gains)) > 0
