"""The rules that agents keep under every scheduler and on every kind of machine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tests.simulation.test_agents import some_agents, workloads

from gleaner.control.policy.entitlements_view import JobClass
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
