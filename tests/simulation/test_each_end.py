"""`decide_at each-end`: each job that ends has a decision of its own, as in the simulator pyss."""

import pytest
from hypothesis import given, settings
from tests.simulation.oracle import jobs_of, starts_one_by_one, workload_of
from tests.simulation.test_queueing import workloads

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, DecideAt, SchedulerKind, SchedulerSettings

EASY = SchedulerSettings(kind=SchedulerKind.EASY, decide_at=DecideAt.EACH_END)
HEAD_NEEDS_BOTH = [(0, 2, 9, 2), (0, 2, 9, 2), (1, 5, 5, 4), (1, 5, 5, 2)]
"""Jobs 1 and 2 end together. Job 3 needs the processors of both, job 4 those of one."""


def test_the_first_of_two_ends_does_not_know_of_the_second() -> None:
    # 11444443333   With one decision for the instant, job 3 starts at 2.
    # 11444443333
    # 22.....3333
    # 22.....3333
    workload = workload_of(HEAD_NEEDS_BOTH)
    assert replay(workload, of_processors(4), EASY).start_s.tolist() == [0, 0, 7, 2]
    at_once = SchedulerSettings(kind=SchedulerKind.EASY)
    assert replay(workload, of_processors(4), at_once).start_s.tolist() == [0, 0, 2, 7]


def test_a_job_at_its_limit_counts_as_ended_from_the_first_decision_on() -> None:
    # Job 2 ends at its limit: the decision at the end of job 1 has room for jobs 3 and 4. Else job 5 would overtake.
    rows = [(0, 2, 9, 2), (0, 2, 2, 6), (1, 5, 5, 3), (1, 5, 5, 5), (1, 5, 5, 1)]
    assert replay(workload_of(rows), of_processors(8), EASY).start_s.tolist() == [0, 0, 2, 2, 7]


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@settings(deadline=None)
@given(case=workloads())
def test_it_agrees_with_the_readable_scheduler(kind: str, case: tuple[Workload, int]) -> None:
    workload, processors = case
    scheduler = SchedulerSettings(kind=SchedulerKind(kind), decide_at=DecideAt.EACH_END)
    answer_s = replay(workload, of_processors(processors), scheduler).start_s.tolist()
    assert answer_s == starts_one_by_one(kind, jobs_of(workload), processors)


@pytest.mark.parametrize(
    ("change", "agents", "allocation", "what"),
    [
        ({"kind": "conservative"}, None, Allocation.PROCESSORS, "scheduler conservative"),
        ({"kind": "omfs"}, None, Allocation.PROCESSORS, "scheduler omfs"),
        ({"decide_every_s": 30}, None, Allocation.PROCESSORS, "decide_every_s"),
        ({}, AgentSettings(), Allocation.PROCESSORS, "agents"),
        ({}, None, Allocation.CORES, "machines whose nodes matter"),
    ],
)
def test_what_other_simulators_do_not_do_is_refused(
    change: dict[str, object], agents: AgentSettings | None, allocation: Allocation, what: str
) -> None:
    scheduler = SchedulerSettings.model_validate({"decide_at": "each-end", **change})
    machine = Machine((NodeClass(nodes=2, cores=2),), allocation)
    with pytest.raises(BadScenario, match=f"decide_at each-end does not go with {what}"):
        replay(workload_of(HEAD_NEEDS_BOTH), machine, scheduler, agents)
