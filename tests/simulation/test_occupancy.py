"""The time that nodes are full, partly used and empty."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.on_nodes import cases, migrations, savable, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.metrics.node_time import occupancy
from gleaner.control.simulation.model import (
    Allocation,
    Machine,
    NodeClass,
    Workload,
)
from gleaner.control.simulation.replay import nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.replay.request import ReplayRequest
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


@given(data=st.data(), case=cases())
def test_shares_add_up_and_agree_with_samples(data: st.DataObject, case: tuple[Workload, Machine]) -> None:
    workload, machine = case
    settings = scheduler("fcfs", data.draw(st.sampled_from(migrations(machine))))
    schedule = nodes.run(ReplayRequest(workload, machine, settings))
    end_s = float(schedule.jobs.end_s.max()) + 1
    found = occupancy(schedule, 0, end_s)
    assert found.full + found.mixed + found.empty == pytest.approx(1)
    assert found.by_node is not None
    assert found.by_node.sum(axis=1) == pytest.approx(1)
    assert schedule.parts is not None
    cores = np.array([kind.cores for kind in machine.classes for _ in range(kind.nodes)])
    busy = np.zeros(len(cores))
    for stretch, node, many, taken in zip(*schedule.parts, strict=True):
        busy[node : node + many] += taken * (schedule.jobs.end_s[stretch] - schedule.jobs.start_s[stretch])
    full, mixed, _ = found.by_node.T
    assert (full * end_s * cores <= busy + 1e-6).all()
    assert (busy <= (full + mixed) * end_s * cores + 1e-6).all()
