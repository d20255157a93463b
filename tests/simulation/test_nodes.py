"""Machines whose nodes matter: by hand, against an oracle, and what must hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.on_nodes import TEN_JOBS, TWO_NODES, cases, migrations, places, scheduler
from tests.simulation.oracle import workload_of
from tests.simulation.oracle_nodes import replayed, work_of

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import AgentSettings, Backfill, Migration, PrioritySettings, SchedulerSettings

LARGE_FIRST = PrioritySettings(per_unit=5, backfill=Backfill.EASY)


def test_ten_jobs_with_easy_backfill_on_shared_nodes() -> None:
    # At 5 job 6 is promised 8, by when job 7 has ended: it overtakes. At 8 job 8 needs all eight cores and is promised
    # 14, when job 6 has reached its limit; by then 9 and A have ended, so both overtake it. Job 6 ends early, at 13.
    schedule = replay(TEN_JOBS, TWO_NODES, scheduler("easy"))
    assert schedule.start_s.tolist() == [0, 0, 1, 5, 5, 7, 5, 13, 8, 8]
    assert schedule.jobs.job.tolist() == [0, 1, 2, 3, 4, 6, 5, 8, 9, 7]
    assert schedule.jobs.node.tolist() == [0, -1, 1, -1, 1, 1, 1, 0, -1, -1]


def test_whole_nodes_of_several_classes_are_taken_until_their_cores_are_enough() -> None:
    machine = Machine((NodeClass(2, 4), NodeClass(1, 16, "large")), Allocation.NODES)
    schedule = replay(workload_of([(0, 10, 10, 5), (0, 10, 10, 1), (1, 10, 10, 1)]), machine, scheduler())
    assert places(schedule) == [
        (0, 0, 10, 0, 0, [(0, 4), (1, 4)]),
        (1, 0, 10, 0, 0, [(2, 16)]),
        (2, 10, 20, 0, 0, [(0, 4)]),
    ]
    assert schedule.jobs.units.tolist() == [2, 1, 1]


def test_a_job_goes_to_one_priority_whole_unless_it_is_larger_than_each() -> None:
    machine = Machine((NodeClass(2, 4, priority=1), NodeClass(2, 4, "low")), Allocation.CORES)
    schedule = replay(workload_of([(0, 10, 10, 6), (0, 10, 10, 3), (10, 10, 10, 9)]), machine, scheduler())
    assert [row[-1] for row in places(schedule)] == [
        [(0, 4), (1, 2)],
        [(2, 3)],
        [(0, 4), (1, 4), (2, 1)],
    ]


@pytest.mark.parametrize(
    ("machine", "settings", "ours", "expected"),
    [
        (TWO_NODES, scheduler("conservative"), None, "scheduler conservative needs nodes that are alike"),
        (of_nodes(2, 4), scheduler(migration=Migration.COMPACTION), None, "needs allocation cores"),
        (TWO_NODES, scheduler(migration=Migration.PRIORITIES), None, "with different priorities"),
        (TWO_NODES, scheduler(migration=Migration.COMPACTION), None, "no job is checkpointable"),
        (TWO_NODES, scheduler(migration=Migration.COMPACTION), AgentSettings(preemption=True), "go with migration"),
    ],
)
def test_what_such_a_machine_cannot_do_is_said_in_one_line(
    machine: Machine, settings: SchedulerSettings, ours: AgentSettings | None, expected: str
) -> None:
    with pytest.raises(BadScenario, match=expected) as refused:
        replay(TEN_JOBS, machine, settings, ours)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(data=st.data(), case=cases())
def test_it_agrees_with_the_readable_scheduler(kind: str, data: st.DataObject, case: tuple[Workload, Machine]) -> None:
    from gleaner.control.simulation.replay import nodes

    workload, machine = case
    moves = data.draw(st.sampled_from(migrations(machine)))
    save_s, restore_s = data.draw(st.sampled_from([(0, 0), (10, 5), (20, 10), (7, 45)]))
    settings = scheduler(kind, moves, save_s=save_s, restore_s=restore_s)
    schedule = nodes.run(ReplayRequest(workload, machine, settings))
    expected = replayed(
        work_of(workload), machine, overtaking=kind == "easy", kind=moves, save_s=save_s, restore_s=restore_s
    )
    assert places(schedule) == sorted(stretch.row() for stretch in expected)


@pytest.mark.parametrize("kind", ["fcfs", "easy", "priority"])
@given(case=cases(), keep_waiting=st.sampled_from([0, 3]), until_s=st.sampled_from([None, 100.0]))
def test_where_nodes_are_alike_it_agrees_with_counting(
    kind: str, case: tuple[Workload, Machine], keep_waiting: int, until_s: float | None
) -> None:
    from gleaner.control.simulation.replay import nodes, queueing

    workload, machine = case
    alike = [Machine((NodeClass(machine.cores, 1),), Allocation.PROCESSORS), of_nodes(machine.cores)]
    settings = scheduler(kind).model_copy(update={"priority": LARGE_FIRST})
    for each in alike:
        one, other = (
            loop.run(ReplayRequest(workload, each, settings, until_s=until_s, keep_waiting=keep_waiting))
            for loop in (nodes, queueing)
        )
        assert one.start_s.tobytes() == other.start_s.tobytes()
        assert one.end_s.tobytes() == other.end_s.tobytes()
        assert one.workload.submit_s.tobytes() == other.workload.submit_s.tobytes()
