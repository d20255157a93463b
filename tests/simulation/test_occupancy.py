"""The time that nodes are full, partly used and empty."""

import numpy as np
import pytest
from tests.simulation.on_nodes import savable, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.metrics.node_time import occupancy
from gleaner.control.simulation.model import (
    Allocation,
    Machine,
    NodeClass,
)
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import Migration


def test_compaction_by_hand() -> None:
    # The schedule of test_migration_on_nodes: the first node is full for 20 + 60 of 315 s and partly used else, the
    # second is full to 40 and partly used to 130, the third partly used to 40.
    workload = savable(
        workload_of([(0, 100, 100, 3), (0, 20, 20, 1), (0, 200, 200, 2), (0, 40, 40, 2), (0, 300, 300, 1)])
    )
    machine = Machine((NodeClass(3, 4),), Allocation.CORES)
    found = occupancy(replay(workload, machine, scheduler(migration=Migration.COMPACTION)), 0, 315)
    assert found.by_node is not None
    assert found.by_node * 315 == pytest.approx(np.array([[80, 235, 0], [40, 90, 185], [0, 40, 275]]))
    assert (found.full, found.mixed, found.empty) == pytest.approx((120 / 945, 365 / 945, 460 / 945))
