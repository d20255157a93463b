"""The time that nodes are full, partly used and empty, and where work is drawn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.on_nodes import TEN_JOBS, TWO_NODES, cases, migrations, savable, scheduler
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.metrics.node_assignment import placed
from gleaner.control.simulation.metrics.node_time import occupancy
from gleaner.control.simulation.model import (
    Allocation,
    Machine,
    NodeClass,
    Schedule,
    Stretches,
    Workload,
    of_processors,
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


def lines(schedule: Schedule) -> list[str]:
    """A line a unit, a letter a second: who holds it."""
    drawn = placed(schedule)
    grid = np.full((schedule.machine.units, int(drawn.end_s.max())), ".")
    for job, start_s, end_s, units, node in zip(
        drawn.job, drawn.start_s, drawn.end_s, drawn.units, drawn.node, strict=True
    ):
        field = grid[node : node + units, int(start_s) : int(end_s)]
        assert (field == ".").all()
        field[:] = "a" if job < 0 else "123456789A"[job]
    return ["".join(line) for line in grid]


def test_jobs_are_drawn_on_the_cores_of_their_nodes() -> None:
    assert lines(replay(TEN_JOBS, TWO_NODES, scheduler("easy"))) == [
        "11111444999..8888",
        "11111444AA...8888",
        "11111444AA...8888",
        "22222222AA...8888",
        "22222222AA...8888",
        ".3333444.....8888",
        ".3333556666668888",
        ".33337.6666668888",
    ]


def test_jobs_of_counted_nodes_are_drawn_on_the_lowest_that_are_free_and_agents_on_the_highest() -> None:
    schedule = replay(workload_of([(0, 2, 2, 2), (0, 4, 4, 1), (1, 2, 2, 2)]), of_processors(4), scheduler())
    row = np.array([1.0])
    agents = Stretches(
        np.array([-1]), row * 0, row * 2, np.array([1]), row * 0, row * 0, row * 0, np.array([-1], np.int32)
    )
    assert lines(replace(schedule, agents=agents)) == ["1133", "1133", "2222", "aa.."]


@given(data=st.data(), case=cases())
def test_every_stretch_is_drawn_whole_and_no_two_on_one_unit(
    data: st.DataObject, case: tuple[Workload, Machine]
) -> None:
    workload, machine = case
    settings = scheduler("easy", data.draw(st.sampled_from(migrations(machine))))
    schedule = nodes.run(ReplayRequest(workload, machine, settings))
    drawn = placed(schedule)
    jobs = schedule.jobs
    took_time = jobs.end_s > jobs.start_s
    assert np.bincount(drawn.job, drawn.units * (drawn.end_s - drawn.start_s), len(workload)) == pytest.approx(
        np.bincount(jobs.job, jobs.units * (jobs.end_s - jobs.start_s), len(workload))
    )
    for at_s in np.unique(jobs.start_s[took_time]):
        there = (drawn.start_s <= at_s) & (at_s < drawn.end_s)
        held = [
            unit
            for first, units in zip(drawn.node[there], drawn.units[there], strict=True)
            for unit in range(first, first + units)
        ]
        assert len(held) == len(set(held))
        assert all(0 <= unit < machine.units for unit in held)
