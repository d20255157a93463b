"""Agents where nodes matter: by hand, and what must hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.on_nodes import TWO_NODES, cases, migrations, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.metrics.node_time import between
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import AgentQueueSettings, AgentSettings, CostSettings, Migration

pytestmark = pytest.mark.extended


def agents(length_s: float = 60, *, synchronised: bool = True, free: bool = False) -> AgentSettings:
    cost = CostSettings(constant_s=0 if free else 5)
    return AgentSettings(length_s=length_s, synchronised=synchronised, shortest_slice_s=10, save=cost, restore=cost)


def test_agents_take_the_last_nodes_of_those_that_are_wholly_idle() -> None:
    # The first node has two idle cores while job 1 runs, and then job 2, which waits for it, not for the agents. At 50
    # it is idle with 10 s to go. All that end at 60 save from 55 on; of the next agents each restores what was saved.
    workload = workload_of([(0, 30, 30, 2), (10, 20, 20, 4)])
    machine = Machine((NodeClass(3, 4),), Allocation.CORES)
    schedule = replay(workload, machine, scheduler(), agents(), until_s=120)
    assert schedule.start_s.tolist() == [0, 30]
    ours = schedule.agents
    columns = (ours.start_s, ours.end_s, ours.node, ours.units, ours.restore_s, ours.save_s)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 60, 1, 4, 0, 5),
        (0, 60, 2, 4, 0, 5),
        (50, 60, 0, 4, 0, 5),
        (60, 120, 0, 4, 5, 5),
        (60, 120, 1, 4, 5, 5),
        (60, 120, 2, 4, 5, 5),
    ]


def test_no_agent_starts_where_it_would_delay_a_regular_jobs_promised_start() -> None:
    # Job 2 needs both nodes and is promised 30, but a round ends at 140: the second node stays idle. So does the first
    # from 110 on, when job 3 has ended early, for job 5 needs it at 130.
    workload = workload_of([(0, 30, 30, 2), (0, 70, 70, 8), (2, 10, 30, 4), (2, 30, 30, 4), (2, 10, 10, 8)])
    schedule = replay(workload, TWO_NODES, scheduler("easy"), agents(140), until_s=135)
    assert schedule.start_s.tolist() == [0, 30, 100, 100, 130]
    assert len(schedule.agents) == 0


def test_agents_leave_the_nodes_to_a_promise_that_it_is_for() -> None:
    # Job 3 needs both nodes of the lower priority at 100. At 20 one of them is idle, and that of the higher: this one
    # may be an agent's until 140.
    workload = workload_of([(0, 20, 20, 4), (0, 100, 100, 4), (0, 50, 50, 8)])
    machine = Machine((NodeClass(1, 4, priority=1), NodeClass(2, 4, "low")), Allocation.CORES)
    schedule = replay(workload, machine, scheduler("easy"), agents(140), until_s=130)
    assert schedule.start_s.tolist() == [0, 0, 100]
    assert schedule.agents.start_s.tolist() == [20]
    assert schedule.agents.node.tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(data=st.data(), case=cases(), synchronised=st.booleans())
def test_agents_and_jobs_never_share_a_node(
    kind: str, data: st.DataObject, case: tuple[Workload, Machine], synchronised: bool
) -> None:
    from gleaner.control.simulation.replay import nodes

    workload, machine = case
    settings = scheduler(kind, data.draw(st.sampled_from(migrations(machine))))
    rules = agents(30, synchronised=synchronised)
    if settings.migration.kind is Migration.NONE:
        jobs_ = data.draw(st.sampled_from([None, 20]))
        queue = AgentQueueSettings(jobs=jobs_, work_s=40)
        rules = rules.model_copy(update={"preemption": data.draw(st.booleans()), "queue": queue})
    schedule = nodes.run(ReplayRequest(workload, machine, settings, rules, until_s=1000))
    ours, jobs = schedule.agents, schedule.jobs
    assert schedule.parts is not None
    assert (ours.compute_s >= 0).all()
    for stretch, node, nodes_, _ in zip(*schedule.parts, strict=True):
        there = (ours.node >= node) & (ours.node < node + nodes_)
        assert not (there & (ours.start_s < jobs.end_s[stretch]) & (jobs.start_s[stretch] < ours.end_s)).any()
    for node in set(ours.node.tolist()):
        mine = np.flatnonzero(ours.node == node)
        assert (ours.end_s[mine][:-1] <= ours.start_s[mine][1:]).all()


@pytest.mark.slow
@given(case=cases(), synchronised=st.booleans(), preemption=st.booleans())
def test_where_nodes_are_alike_agents_do_the_same_as_where_they_are_counted(
    case: tuple[Workload, Machine], synchronised: bool, preemption: bool
) -> None:
    """Compare only the jobs if agents are preempted, because the loops choose them by place or by end."""
    from gleaner.control.simulation.replay import nodes, queueing

    workload, machine = case
    ours = agents(50, synchronised=synchronised or preemption).model_copy(update={"preemption": preemption})
    request = ReplayRequest(workload, of_nodes(machine.cores), scheduler("easy"), ours, until_s=500)
    one, other = nodes.run(request), queueing.run(request)
    assert one.start_s.tobytes() == other.start_s.tobytes()
    assert preemption or between(one.agents, 0, 500) == pytest.approx(between(other.agents, 0, 500))


def test_a_job_starts_when_the_agents_on_its_nodes_are_saved_and_leaves_the_other_agents_alone() -> None:
    # Agents have the second and the third node. Job 2 takes what job 1 leaves of the first node and needs three cores
    # more: it gets the second node, whose agent saves from 10 to 15. Job 3 waits for the last core there.
    workload = workload_of([(0, 100, 100, 2), (10, 20, 20, 5), (11, 20, 20, 1)])
    machine = Machine((NodeClass(3, 4),), Allocation.CORES)
    rules = agents().model_copy(update={"preemption": True})
    schedule = replay(workload, machine, scheduler("easy"), rules, until_s=60)
    assert schedule.start_s.tolist() == [0, 15, 15]
    ours = schedule.agents
    assert sorted(zip(ours.start_s.tolist(), ours.end_s.tolist(), ours.node.tolist(), strict=True))[:2] == [
        (0, 15, 1),
        (0, 60, 2),
    ]
