"""Jobs that are moved between nodes: by hand, and what must hold."""

import numpy as np
import pytest
from tests.simulation.on_nodes import TWO_NODES, places, savable, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import Allocation, Machine, NodeClass
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    Migration,
)


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


def test_what_is_moved_when_the_replay_stops_is_cut_off() -> None:
    workload = savable(workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 300, 300, 1)]))
    settings = scheduler(migration=Migration.COMPACTION)
    saving, restoring = (replay(workload, TWO_NODES, settings, until_s=until_s) for until_s in (35, 42))
    assert places(saving)[2:] == [(2, 0, 35, 0, 5, [(1, 1)])]
    assert places(restoring)[2:] == [(2, 0, 40, 0, 10, [(1, 1)]), (2, 40, 42, 2, 0, [(0, 1)])]
    assert np.isnan(restoring.end_s).tolist() == [True, False, True]
