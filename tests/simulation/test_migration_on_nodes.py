"""Jobs that are moved between nodes: by hand, and what must hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.on_nodes import TWO_NODES, cases, migrations, places, savable, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import (
    Migration,
)


def test_ten_jobs_with_compaction() -> None:
    # Three nodes of four cores, a look every 10 s; a save takes 2 s, a restore 1 s. Drawn below: a row a core, a column
    # a second, A for the tenth job. From 3 to 12 job 7 waits for four cores: nothing is moved at 10. At 30 all nodes
    # are full. At 40 job 2 has ended, but the two cores of job 5 do not fit in the one that is idle on the first node.
    # At 50 they do, when job 8 has ended: job 5 is saved to 52, and goes on at 53 with 11 s to go. The next look is
    # at 60. Job 3 has just ended then, and job 6 moves: it has 12 s to go from 63 on.
    #
    # 111111111111777777888888888888888888888888888888....555555555555
    # 111111111111777777..999999999999999.................555555555555
    # 111111111111777777....AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA..........6666666666666
    # 44444444....777777....AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
    #
    # 2222222222222222222222222222222222222222
    # 2222222222222222222222222222222222222222
    # .555555555555555555555555555555555555555555555555555
    # .555555555555555555555555555555555555555555555555555
    #
    # 333333333333333333333333333333333333333333333333333333333333
    # 333333333333333333333333333333333333333333333333333333333333
    # 333333333333333333333333333333333333333333333333333333333333
    # ..666666666666666666666666666666666666666666666666666666666666
    workload = savable(
        workload_of(
            [  # submit, run, limit, cores
                (0, 12, 12, 3),
                (0, 40, 40, 2),
                (0, 60, 60, 3),
                (0, 8, 8, 1),
                (1, 60, 60, 2),
                (2, 70, 70, 1),
                (3, 6, 6, 4),
                (14, 30, 30, 1),
                (20, 15, 15, 1),
                (22, 30, 30, 2),
            ]
        )
    )
    machine = Machine((NodeClass(3, 4),), Allocation.CORES, prefers_one=True)
    settings = scheduler(migration=Migration.COMPACTION, save_s=2, restore_s=1, every_s=10)
    schedule = replay(workload, machine, settings)
    assert schedule.start_s.tolist() == [0, 0, 0, 0, 1, 2, 12, 18, 20, 22]
    assert schedule.end_s.tolist() == [12, 40, 60, 8, 64, 75, 18, 48, 35, 52]
    assert [row for row in places(schedule) if row[0] in {4, 5}] == [
        (4, 1, 52, 0, 2, [(1, 2)]),
        (4, 52, 64, 1, 0, [(0, 2)]),
        (5, 2, 62, 0, 2, [(2, 1)]),
        (5, 62, 75, 1, 0, [(0, 1)]),
    ]
    assert schedule.saves == 2


def test_ten_jobs_with_migration_with_priorities() -> None:
    """The third node has priority, and jobs overtake (easy). Costs and looks are as above.

    - 0: 2 and 3 do not fit on the third node beside 1. 5: 6 needs four cores, and is promised 22 on the third node,
      when 4 will have ended. 6: 7 ends by then. 16: 8 does too, so it may have cores there; 17: 9 does not, and goes to
      the last idle core of the others.
    - 10, 20, 30: 6, and then 10, wait, so nothing is moved. 32: 10 starts on the third node, which is idle at 38.
    - 40: 2 is the larger of the two that are left. It is saved to 42, goes on at 43 and ends at 53 instead of 50.
    - 50: 9 moves too. It has 12 s to go, from 53 on.
    """
    workload = savable(
        workload_of(
            [  # submit, run, limit, cores
                (0, 15, 15, 3),
                (0, 50, 50, 2),
                (0, 40, 40, 3),
                (2, 20, 20, 1),
                (4, 30, 30, 2),
                (5, 10, 10, 4),
                (6, 8, 8, 1),
                (16, 5, 5, 2),
                (17, 45, 45, 1),
                (25, 6, 6, 2),
            ]
        )
    )
    machine = Machine((NodeClass(2, 4), NodeClass(1, 4, "fast", priority=1)), Allocation.CORES)
    settings = scheduler("easy", Migration.PRIORITIES, save_s=2, restore_s=1, every_s=10)
    schedule = replay(workload, machine, settings)
    assert schedule.start_s.tolist() == [0, 0, 0, 2, 4, 22, 6, 16, 17, 32]
    assert schedule.end_s.tolist() == [15, 53, 40, 22, 34, 32, 14, 21, 65, 38]
    assert [row for row in places(schedule) if row[0] in {1, 8}] == [
        (1, 0, 42, 0, 2, [(0, 2)]),
        (1, 42, 53, 1, 0, [(2, 2)]),
        (8, 17, 52, 0, 2, [(1, 1)]),
        (8, 52, 65, 1, 0, [(2, 1)]),
    ]
    assert schedule.saves == 2


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


def test_what_is_moved_when_the_replay_stops_is_cut_off() -> None:
    workload = savable(workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 300, 300, 1)]))
    settings = scheduler(migration=Migration.COMPACTION)
    saving, restoring = (replay(workload, TWO_NODES, settings, until_s=until_s) for until_s in (35, 42))
    assert places(saving)[2:] == [(2, 0, 35, 0, 5, [(1, 1)])]
    assert places(restoring)[2:] == [(2, 0, 40, 0, 10, [(1, 1)]), (2, 40, 42, 2, 0, [(0, 1)])]
    assert np.isnan(restoring.end_s).tolist() == [True, False, True]


@given(data=st.data(), case=cases())
def test_a_job_computes_as_long_as_it_takes_however_often_it_is_moved(
    data: st.DataObject, case: tuple[Workload, Machine]
) -> None:
    from gleaner.control.simulation.replay import nodes

    workload, machine = case
    settings = scheduler("easy", data.draw(st.sampled_from(migrations(machine))))
    schedule = nodes.run(ReplayRequest(workload, machine, settings))
    assert schedule.parts is not None
    speeds = np.array([kind.speed for kind in machine.classes for _ in range(kind.nodes)])
    slowest = np.full(len(schedule.jobs), np.inf)
    for stretch, node, nodes_, _ in zip(*schedule.parts, strict=True):
        slowest[stretch] = min(slowest[stretch], speeds[node : node + nodes_].min())
    computed = np.bincount(schedule.jobs.job, schedule.jobs.compute_s * slowest, len(workload))
    assert computed == pytest.approx(workload.run_s)
    assert schedule.saves == len(schedule.jobs) - len(workload)
