"""Agents on idle nodes: by hand, against second-by-second agents, and what must always hold."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle import jobs_of, workload_of
from tests.simulation.oracle_agents import Slice, simulated

from gleaner.control.simulation.model import Machine, NodeClass, Schedule, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    AgentQueueSettings,
    AgentSettings,
    CostSettings,
    SchedulerKind,
    SchedulerSettings,
)

KINDS = ("fcfs", "easy", pytest.param("conservative", marks=pytest.mark.extended))
every_kind = pytest.mark.parametrize("kind", KINDS)
without_deadline = settings(deadline=None, max_examples=60)  # the first example may have to compile


def scheduled(kind: str, workload: Workload, nodes: int, rules: AgentSettings | None, **stop: Any) -> Schedule:
    return replay(workload, of_nodes(nodes), SchedulerSettings(kind=SchedulerKind(kind)), rules, **stop)


def slices(schedule: Schedule) -> list[Slice]:
    """Each agent by itself."""
    parts = schedule.agents
    columns = zip(parts.start_s, parts.end_s, parts.compute_s, parts.save_s, parts.units, strict=True)
    return sorted(Slice(*map(float, column[:4])) for column in columns for _ in range(int(column[4])))


def length(length_s: float, **others: Any) -> AgentSettings:
    return AgentSettings.model_validate({"length_s": length_s, "shortest_slice_s": 1} | others)


FOUR_JOBS = workload_of(
    [  # submit, run, limit, nodes
        (0, 5, 6, 2),
        (2, 3, 4, 1),
        (3, 4, 4, 4),
        (4, 3, 3, 1),
    ]
)
"""For four nodes. Drawn below: a row a node, a column a second; an agent restores (r), computes (a) and saves (s)."""
COSTS: dict[str, Any] = {"save": CostSettings(constant_s=1), "restore": CostSettings(constant_s=1)}


def test_preempted_agents_are_saved_and_their_nodes_given_to_the_job_that_waits() -> None:
    # 11111.3333444   At 2 an agent is saved for job 2, at 4 the other one for job 4, which might end when job 3 is
    # 11111.3333raa   promised to start, at 7. It might not any more at 5, when the save is over. Job 2 ends early.
    # aas2223333raa
    # aaaas.3333aaa
    schedule = scheduled("easy", FOUR_JOBS, 4, length(8, preemption=True, **COSTS))
    assert schedule.start_s.tolist() == [0, 3, 6, 10]
    last = [Slice(10, 13, 2, 0)] * 2 + [Slice(10, 13, 3, 0)]
    assert slices(schedule) == [Slice(0, 3, 2, 1), Slice(0, 5, 4, 1), *last]


def test_a_finite_queue_is_worked_off_exactly() -> None:
    # 0-8: jobs 0 and 1 compute for 6 seconds, since to save both takes 2. 8-16: they go on at 10 and are complete at
    # 13. Job 2 starts then, on one place, and computes for 2 seconds, since to save it takes 1. 16-24: it goes on at
    # 17, has 7 seconds left, and is saved at 23. 24-26: it goes on at 25, and is complete at 26.
    one_node_left = workload_of([(0, 30, 30, 1)])
    queue = AgentQueueSettings(jobs=3, work_s=9, memory_mib=1)
    shared = CostSettings(shared_mib_s=1)
    schedule = scheduled(
        "easy", one_node_left, 2, length(8, jobs_per_agent=2, save=shared, restore=shared, queue=queue)
    )
    assert schedule.agent_jobs_end_s is not None
    assert schedule.agent_jobs_end_s.tolist() == [13, 13, 26]
    assert slices(schedule) == [Slice(0, 8, 6, 2), Slice(8, 16, 5, 1), Slice(16, 24, 6, 1), Slice(24, 26, 1, 0)]


@pytest.mark.parametrize("preemption", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_on_faster_nodes_low_priority_jobs_take_less_time(preemption: bool) -> None:
    machine = Machine((NodeClass(2, speed=2.0),))
    rules = length(100, preemption=preemption, queue=AgentQueueSettings(jobs=1, work_s=30))
    schedule = replay(workload_of([(0, 80, 80, 1)]), machine, SchedulerSettings(), rules)
    assert schedule.agent_jobs_end_s is not None
    assert schedule.agent_jobs_end_s.tolist() == [15]


@st.composite
def workloads(draw: st.DrawFn, *, least_run_s: int = 0) -> tuple[Workload, int]:
    """Few instants and few sizes, so that much happens at once. Unless told otherwise, some jobs run for no time."""
    nodes = draw(st.integers(1, 8))
    jobs = draw(st.integers(1, 16))
    span = draw(st.sampled_from([1, 20, 60]))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=jobs, max_size=jobs))

    limits = column(1, draw(st.sampled_from([4, 20])))
    runs = [min(run, limit) for run, limit in zip(column(least_run_s, 20), limits, strict=True)]
    return workload_of(zip(sorted(column(0, span)), runs, limits, column(1, nodes), strict=True)), nodes


costs = st.builds(CostSettings, constant_s=st.integers(0, 3), shared_mib_s=st.sampled_from([0, 1]))


@st.composite
def some_agents(draw: st.DrawFn, *, preemption: bool | None = None, free: bool = False) -> AgentSettings:
    length_s = draw(st.integers(1, 25))
    is_finite = draw(st.booleans())
    return AgentSettings(
        length_s=length_s,
        synchronised=draw(st.booleans()),
        shortest_slice_s=draw(st.integers(1, length_s)),
        agents_at_most=draw(st.sampled_from([3, 100])),
        jobs_per_agent=draw(st.integers(1, 3)),
        margin_s=draw(st.integers(0, 2)),
        save=CostSettings() if free else draw(costs),
        restore=CostSettings() if free else draw(costs),
        preemption=draw(st.booleans()) if preemption is None else preemption,
        queue=AgentQueueSettings(
            jobs=draw(st.integers(0, 15)) if is_finite else None,
            work_s=draw(st.integers(1, 25)) if is_finite else 0,
            memory_mib=draw(st.integers(0, 2)),
        ),
    )


@pytest.mark.slow
@every_kind
@without_deadline
@given(workloads(), st.data())
def test_it_agrees_with_agents_second_by_second(kind: str, case: tuple[Workload, int], data: st.DataObject) -> None:
    workload, nodes = case
    rules = data.draw(some_agents())
    schedule = scheduled(kind, workload, nodes, rules)
    jobs = jobs_of(workload)
    site = simulated(kind, jobs, nodes, rules)
    assert schedule.start_s.tolist() == [job.start_s for job in jobs]
    assert slices(schedule) == site.slices
    if schedule.agent_jobs_end_s is not None:
        ends = schedule.agent_jobs_end_s
        assert {number: ends[number] for number in np.flatnonzero(~np.isnan(ends))} == {
            job.number: job.end_s for job in site.done
        }


@pytest.mark.slow
@every_kind
@without_deadline
@given(workloads(least_run_s=1), some_agents(preemption=True, free=True))
def test_with_free_preemption_no_regular_job_starts_at_another_time(
    kind: str, case: tuple[Workload, int], rules: AgentSettings
) -> None:
    """Of jobs that run for some time. Others may end at the instant at which they start, before or after agents that
    leave at that instant: conservative backfilling may improve another promise first then."""
    workload, nodes = case
    with_agents, alone = scheduled(kind, workload, nodes, rules), scheduled(kind, workload, nodes, None)
    assert with_agents.start_s.tolist() == alone.start_s.tolist()


def test_a_log_that_outgrows_its_room_loses_nothing() -> None:
    jobs = 3000
    workload = workload_of((10.0 * job, 5.0, 6.0, 1) for job in range(jobs))
    schedule = scheduled("easy", workload, 2, length(4))
    parts = schedule.agents
    assert len(parts) > 2 * 1024
    held_s = float((parts.end_s - parts.start_s) @ parts.units) + 5 * jobs
    assert held_s == 2 * schedule.end_s.max()  # no node is ever idle
