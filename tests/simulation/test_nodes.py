"""Machines whose nodes matter: by hand, against an oracle, and what must hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.oracle import workload_of
from tests.simulation.oracle_nodes import replayed, work_of

from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.figures.integrals import between
from gleaner.control.simulation.machine import Allocation, Machine, NodeClass, of_nodes
from gleaner.control.simulation.replay import replay
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.settings import (
    AgentQueueSettings,
    AgentSettings,
    CostSettings,
    Discipline,
    Migration,
    MigrationSettings,
    SchedulerSettings,
)
from gleaner.control.simulation.workload import JobClass, Workload

TEN_JOBS = workload_of(
    [  # submit, run, limit, processors
        (0, 5, 6, 3),
        (0, 8, 8, 2),
        (1, 4, 4, 3),
        (1, 3, 3, 4),
        (2, 2, 3, 1),
        (3, 6, 7, 2),
        (3, 1, 2, 1),
        (6, 4, 4, 8),
        (7, 3, 5, 1),
        (8, 2, 2, 4),
    ]
)
"""For two nodes of four cores. Drawn below: a row a core, a column a second, A for the tenth job."""
TWO_NODES = Machine((NodeClass(2, 4),), Allocation.CORES)


def scheduler(
    kind: str = "fcfs", migration: Migration = Migration.NONE, *, save_s: float = 10, restore_s: float = 5
) -> SchedulerSettings:
    moves = MigrationSettings(
        kind=migration, save=CostSettings(constant_s=save_s), restore=CostSettings(constant_s=restore_s)
    )
    return SchedulerSettings(kind=Discipline(kind), migration=moves)


def savable(workload: Workload) -> Workload:
    return replace(workload, job_class=np.full(len(workload), JobClass.CHECKPOINTABLE, np.int8))


def places(schedule: Schedule) -> list[tuple[int, float, float, float, float, list[tuple[int, int]]]]:
    """Of each stretch: job, start, end, restore, save, and its cores by node."""
    assert schedule.parts is not None
    held: list[list[tuple[int, int]]] = [[] for _ in range(len(schedule.jobs))]
    for stretch, node, nodes, cores in zip(*schedule.parts, strict=True):
        held[stretch] += [(int(each), int(cores)) for each in range(node, node + nodes)]
    jobs = schedule.jobs
    columns = (jobs.job, jobs.start_s, jobs.end_s, jobs.restore_s, jobs.save_s)
    rows = zip(*(column.tolist() for column in columns), (sorted(each) for each in held), strict=True)
    return sorted(rows)


def test_ten_jobs_first_come_first_served_on_shared_nodes() -> None:
    # 111114447....88889AAA   Job 2 takes the last core of the first node and one of the second, job 4 three and one.
    # 11111444.....8888AA     Job 6 waits at 5 for a second core, and with it all behind it.
    # 11111444.....8888AA     (Job 9 runs from 17 to 20 on the first core; A from 17 to 19.)
    # 22222222.....8888AA
    # 22222222.....8888AA
    # .333344466666688888
    # .33335566666668888
    # .3333..
    schedule = replay(TEN_JOBS, TWO_NODES, scheduler())
    assert schedule.start_s.tolist() == [0, 0, 1, 5, 5, 7, 8, 13, 17, 17]
    assert schedule.jobs.node.tolist() == [0, -1, 1, -1, 1, 1, 0, -1, 0, -1]
    assert schedule.jobs.units.tolist() == TEN_JOBS.processors.tolist()


def test_ten_jobs_with_easy_backfill_on_shared_nodes() -> None:
    # At 5 job 6 is promised 8, by when job 7 has ended: it overtakes. At 8 job 8 needs all eight cores and is promised
    # 14, when job 6 has reached its limit; by then 9 and A have ended, so both overtake it. Job 6 ends early, at 13.
    schedule = replay(TEN_JOBS, TWO_NODES, scheduler("easy"))
    assert schedule.start_s.tolist() == [0, 0, 1, 5, 5, 7, 5, 13, 8, 8]
    assert schedule.jobs.job.tolist() == [0, 1, 2, 3, 4, 6, 5, 8, 9, 7]
    assert schedule.jobs.node.tolist() == [0, -1, 1, -1, 1, 1, 1, 0, -1, -1]


def test_compaction_by_hand() -> None:
    # Three nodes of four cores. Job 2 ends at 20, so the first node has an idle core: at 30, the next look, job 5 goes
    # there from the third. It is saved to 40, restored to 45 and ends 15 s later. When job 1 has ended, job 3 follows.
    workload = savable(
        workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 200, 200, 2), (0, 40, 40, 2), (0, 300, 300, 1)])
    )
    machine = Machine((NodeClass(3, 4),), Allocation.CORES)
    schedule = replay(workload, machine, scheduler(migration=Migration.COMPACTION))
    assert places(schedule) == [
        (0, 0, 100, 0, 0, [(0, 3)]),
        (1, 0, 20, 0, 0, [(0, 1)]),
        (2, 0, 130, 0, 10, [(1, 2)]),
        (2, 130, 215, 5, 0, [(0, 2)]),
        (3, 0, 40, 0, 0, [(1, 2)]),
        (4, 0, 40, 0, 10, [(2, 1)]),
        (4, 40, 315, 5, 0, [(0, 1)]),
    ]
    assert schedule.saves == 2
    assert schedule.end_s.tolist() == [100, 20, 215, 40, 315]


@pytest.mark.parametrize(("speed", "end_s"), [(1, 115), (2, 80)])
def test_migration_with_priorities_by_hand(speed: float, end_s: float) -> None:
    # The third node has priority. Job 1 leaves it at 20: at 30 the largest of the others that fits, job 2, moves there.
    # It has 70 s to go, which a node of double speed does in 35; 15 s go into the save and the restore.
    workload = savable(workload_of([(0, 20 * speed, 20 * speed, 4), (0, 100, 100, 3), (0, 50, 50, 2)]))
    machine = Machine((NodeClass(2, 4), NodeClass(1, 4, "fast", speed, priority=1)), Allocation.CORES)
    schedule = replay(workload, machine, scheduler(migration=Migration.PRIORITIES))
    assert places(schedule) == [
        (0, 0, 20, 0, 0, [(2, 4)]),
        (1, 0, 40, 0, 10, [(0, 3)]),
        (1, 40, end_s, 5, 0, [(2, 3)]),
        (2, 0, 50, 0, 0, [(0, 1), (1, 1)]),
    ]


def test_nothing_is_moved_while_a_job_waits() -> None:
    workload = savable(workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 300, 300, 1), (25, 10, 10, 8)]))
    schedule = replay(workload, TWO_NODES, scheduler(migration=Migration.COMPACTION))
    assert schedule.saves == 0  # at 30 job 3 would move to the first node, if job 4 did not wait for both


def test_one_job_is_moved_at_a_time() -> None:
    # At 30 job 3 can leave the second node, and job 5 the third: it does at 150, when job 3 computes again.
    workload = savable(
        workload_of([(0, 900, 900, 2), (0, 20, 20, 2), (0, 900, 900, 1), (0, 20, 20, 3), (0, 900, 900, 1)])
    )
    settings = scheduler(migration=Migration.COMPACTION, save_s=50, restore_s=50)
    schedule = replay(workload, Machine((NodeClass(3, 4),), Allocation.CORES), settings)
    moved = schedule.jobs.restore_s > 0
    assert schedule.jobs.job[moved].tolist() == [2, 4]
    assert schedule.jobs.start_s[moved].tolist() == [80, 200]


def test_what_was_moved_to_a_faster_node_is_expected_to_end_earlier() -> None:
    # Job 2 may take 200 s. At 30 it moves to the node of double speed, so it is expected at 130: 15 s, and half of 170.
    # That is the promise of job 3, which needs both nodes. Job 4 would be done at 140, so it may not overtake.
    workload = savable(workload_of([(0, 40, 40, 4), (0, 100, 200, 3), (50, 100, 100, 8), (50, 90, 90, 4)]))
    machine = Machine((NodeClass(1, 4), NodeClass(1, 4, "fast", speed=2, priority=1)), Allocation.CORES)
    schedule = replay(workload, machine, scheduler("easy", Migration.PRIORITIES))
    assert schedule.start_s.tolist() == [0, 0, 80, 180]


def test_a_job_is_as_slow_as_its_slowest_node() -> None:
    machine = Machine((NodeClass(1, 4, "fast", speed=2), NodeClass(1, 4, "slow", speed=0.5)), Allocation.CORES)
    schedule = replay(workload_of([(0, 10, 10, 4), (0, 10, 10, 4), (30, 10, 10, 5)]), machine, scheduler())
    assert (schedule.end_s - schedule.start_s).tolist() == [5, 20, 20]


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


def test_no_agent_starts_where_it_would_delay_a_promise() -> None:
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


def test_a_job_may_prefer_a_node_that_has_room_for_all_of_it() -> None:
    jobs = workload_of([(0, 10, 10, 3), (0, 10, 10, 2), (0, 10, 10, 3)])
    schedule = replay(jobs, replace(TWO_NODES, prefers_one=True), scheduler())
    assert [row[-1] for row in places(schedule)] == [[(0, 3)], [(1, 2)], [(0, 1), (1, 2)]]


def test_what_is_moved_when_the_replay_stops_is_cut_off() -> None:
    workload = savable(workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 300, 300, 1)]))
    settings = scheduler(migration=Migration.COMPACTION)
    saving, restoring = (replay(workload, TWO_NODES, settings, until_s=until_s) for until_s in (35, 42))
    assert places(saving)[2:] == [(2, 0, 35, 0, 5, [(1, 1)])]
    assert places(restoring)[2:] == [(2, 0, 40, 0, 10, [(1, 1)]), (2, 40, 42, 2, 0, [(0, 1)])]
    assert np.isnan(restoring.end_s).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("machine", "settings", "ours", "expected"),
    [
        (TWO_NODES, scheduler("conservative"), None, "scheduler conservative needs nodes that are alike"),
        (of_nodes(2, 4), scheduler(migration=Migration.COMPACTION), None, "needs allocation cores"),
        (TWO_NODES, scheduler(migration=Migration.PRIORITIES), None, "with different priorities"),
        (TWO_NODES, scheduler(migration=Migration.COMPACTION), None, "no job is checkpointable"),
        (TWO_NODES, scheduler(), AgentSettings(preemption=True), "preemption of agents needs nodes that are alike"),
        (TWO_NODES, scheduler(), AgentSettings(queue=AgentQueueSettings(jobs=5, work_s=60)), "queue that ends needs"),
    ],
)
def test_what_such_a_machine_cannot_do_is_said_in_one_line(
    machine: Machine, settings: SchedulerSettings, ours: AgentSettings | None, expected: str
) -> None:
    with pytest.raises(BadScenario, match=expected) as refused:
        replay(TEN_JOBS, machine, settings, ours)
    assert "\n" not in str(refused.value)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    allocation = draw(st.sampled_from([Allocation.CORES, Allocation.CORES, Allocation.NODES, Allocation.PROCESSORS]))
    kinds = draw(
        st.lists(
            st.builds(
                NodeClass,
                st.integers(1, 3),
                st.integers(1, 4),
                speed=st.sampled_from([1.0, 1.0, 2.0, 0.5]),
                priority=st.integers(0, 2),
            ),
            min_size=1,
            max_size=3,
        )
    )
    return Machine(tuple(kinds), allocation, prefers_one=draw(st.booleans()))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Machine]:
    """Few instants and few sizes, so that much happens at once. Some jobs run for no time, some may not be saved."""
    machine = draw(machines())
    count = draw(st.integers(1, 30))
    span = draw(st.sampled_from([1, 60, 200, 1000]))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    limits = column(1, draw(st.sampled_from([40, 400])))
    runs = [min(run, limit) for run, limit in zip(column(0, 400), limits, strict=True)]
    sizes = column(1, min(machine.cores, draw(st.sampled_from([3, 99]))))
    workload = workload_of(zip(sorted(column(0, span)), runs, limits, sizes, strict=True))
    kinds = draw(st.lists(st.sampled_from([2, 2, 2, 0]), min_size=count - 1, max_size=count - 1))
    return replace(workload, job_class=np.array([2, *kinds], np.int8)), machine


def migrations(machine: Machine) -> list[Migration]:
    """Those that go with it."""
    kinds = [Migration.NONE]
    if machine.allocation is not Allocation.NODES:
        kinds.append(Migration.COMPACTION)
    if len({kind.priority for kind in machine.classes}) > 1:
        kinds.append(Migration.PRIORITIES)
    return kinds


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(data=st.data(), case=cases())
def test_it_agrees_with_the_readable_scheduler(kind: str, data: st.DataObject, case: tuple[Workload, Machine]) -> None:
    from gleaner.control.simulation.engine import nodes

    workload, machine = case
    moves = data.draw(st.sampled_from(migrations(machine)))
    save_s, restore_s = data.draw(st.sampled_from([(0, 0), (10, 5), (20, 10), (7, 45)]))
    settings = scheduler(kind, moves, save_s=save_s, restore_s=restore_s)
    schedule = nodes.run(workload, machine, settings)
    expected = replayed(
        work_of(workload), machine, overtaking=kind == "easy", kind=moves, save_s=save_s, restore_s=restore_s
    )
    assert places(schedule) == sorted(stretch.row() for stretch in expected)


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(data=st.data(), case=cases())
def test_no_node_gives_more_cores_than_it_has(kind: str, data: st.DataObject, case: tuple[Workload, Machine]) -> None:
    from gleaner.control.simulation.engine import nodes

    workload, machine = case
    schedule = nodes.run(workload, machine, scheduler(kind, data.draw(st.sampled_from(migrations(machine)))))
    cores = [kind.cores for kind in machine.classes for _ in range(kind.nodes)]
    rows = places(schedule)
    for at_s in {row[1] for row in rows}:
        used = np.zeros(len(cores), int)
        for _, start_s, end_s, _, _, held in rows:
            for node, taken in held:
                used[node] += taken if start_s <= at_s < end_s else 0
        assert (used <= cores).all()


@given(data=st.data(), case=cases())
def test_a_job_computes_as_long_as_it_takes_however_often_it_is_moved(
    data: st.DataObject, case: tuple[Workload, Machine]
) -> None:
    from gleaner.control.simulation.engine import nodes

    workload, machine = case
    schedule = nodes.run(workload, machine, scheduler("easy", data.draw(st.sampled_from(migrations(machine)))))
    assert schedule.parts is not None
    speeds = np.array([kind.speed for kind in machine.classes for _ in range(kind.nodes)])
    slowest = np.full(len(schedule.jobs), np.inf)
    for stretch, node, nodes_, _ in zip(*schedule.parts, strict=True):
        slowest[stretch] = min(slowest[stretch], speeds[node : node + nodes_].min())
    computed = np.bincount(schedule.jobs.job, schedule.jobs.compute_s * slowest, len(workload))
    assert computed == pytest.approx(workload.run_s)
    assert schedule.saves == len(schedule.jobs) - len(workload)


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(data=st.data(), case=cases(), synchronised=st.booleans())
def test_agents_and_jobs_never_share_a_node(
    kind: str, data: st.DataObject, case: tuple[Workload, Machine], synchronised: bool
) -> None:
    from gleaner.control.simulation.engine import nodes

    workload, machine = case
    settings = scheduler(kind, data.draw(st.sampled_from(migrations(machine))))
    schedule = nodes.run(workload, machine, settings, agents(30, synchronised=synchronised), until_s=1000)
    ours, jobs = schedule.agents, schedule.jobs
    assert schedule.parts is not None
    assert (ours.compute_s >= 0).all()
    for stretch, node, nodes_, _ in zip(*schedule.parts, strict=True):
        there = (ours.node >= node) & (ours.node < node + nodes_)
        assert not (there & (ours.start_s < jobs.end_s[stretch]) & (jobs.start_s[stretch] < ours.end_s)).any()
    for node in set(ours.node.tolist()):
        mine = np.flatnonzero(ours.node == node)
        assert (ours.end_s[mine][:-1] <= ours.start_s[mine][1:]).all()


@given(case=cases(), synchronised=st.booleans())
def test_where_nodes_are_alike_agents_do_the_same_as_where_they_are_counted(
    case: tuple[Workload, Machine], synchronised: bool
) -> None:
    from gleaner.control.simulation.engine import nodes, queueing

    workload, machine = case
    ours = agents(50, synchronised=synchronised)
    one, other = (
        engine.run(workload, of_nodes(machine.cores), scheduler("easy"), ours, until_s=500)
        for engine in (nodes, queueing)
    )
    assert one.start_s.tobytes() == other.start_s.tobytes()
    assert between(one.agents, 0, 500) == pytest.approx(between(other.agents, 0, 500))


@pytest.mark.parametrize("kind", ["fcfs", "easy"])
@given(case=cases(), keep_waiting=st.sampled_from([0, 3]), until_s=st.sampled_from([None, 100.0]))
def test_where_nodes_are_alike_it_agrees_with_counting(
    kind: str, case: tuple[Workload, Machine], keep_waiting: int, until_s: float | None
) -> None:
    from gleaner.control.simulation.engine import nodes, queueing

    workload, machine = case
    alike = [Machine((NodeClass(machine.cores, 1),), Allocation.PROCESSORS), of_nodes(machine.cores)]
    for each in alike:
        one, other = (
            engine.run(workload, each, scheduler(kind), until_s=until_s, keep_waiting=keep_waiting)
            for engine in (nodes, queueing)
        )
        assert one.start_s.tobytes() == other.start_s.tobytes()
        assert one.end_s.tobytes() == other.end_s.tobytes()
        assert one.workload.submit_s.tobytes() == other.workload.submit_s.tobytes()
