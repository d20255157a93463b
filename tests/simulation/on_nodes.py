"""The harness of tests of machines whose nodes matter: machines, jobs, and where these were."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from tests.simulation.oracle import workload_of

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Schedule, Workload
from gleaner.control.simulation.settings import (
    CostSettings,
    Migration,
    SchedulerKind,
    SchedulerMigration,
    SchedulerSettings,
)

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
    kind: str = "fcfs",
    migration: Migration = Migration.NONE,
    *,
    save_s: float = 10,
    restore_s: float = 5,
    every_s: float = 30,
) -> SchedulerSettings:
    save, restore = CostSettings(constant_s=save_s), CostSettings(constant_s=restore_s)
    moves = SchedulerMigration(kind=migration, every_s=every_s, save=save, restore=restore)
    return SchedulerSettings(kind=SchedulerKind(kind), migration=moves)


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
