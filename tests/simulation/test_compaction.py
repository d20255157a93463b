"""Compaction and migration with priorities in the simulator: by hand, against a readable form, and what must hold."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation import oracle_compaction as oracle
from tests.simulation.oracle_compaction import Job, Node

from gleaner.control.simulation.replay import array_policies as migration

Move = tuple[int, list[int]]
NOTHING = -1


def compaction(nodes: Sequence[Node], jobs: Sequence[Job], *, spreads: bool = True) -> Move:
    on_one = [list(nodes).index(next(iter(job.on))) if len(job.on) == 1 else -1 for job in jobs]
    job, taken = migration.compaction(
        np.array([node.used for node in nodes], np.int64),
        np.array([node.cores for node in nodes], np.int64),
        np.array(on_one, np.int64),
        np.array([job.cores for job in jobs], np.int64),
        np.array([job.migratable for job in jobs], np.bool_),
        spreads,
    )
    return job, taken.tolist()


def priorities(nodes: Sequence[Node], jobs: Sequence[Job], *, spreads: bool = True) -> Move:
    job, taken = migration.priorities(
        np.array([node.used for node in nodes], np.int64),
        np.array([node.cores for node in nodes], np.int64),
        np.array([node.priority for node in nodes], np.int64),
        np.array([max(node.priority for node in job.on) for job in jobs], np.int64),
        np.array([job.cores for job in jobs], np.int64),
        np.array([job.migratable for job in jobs], np.bool_),
        spreads,
    )
    return job, taken.tolist()


def running(nodes: Sequence[Node], *places: dict[int, int]) -> list[Job]:
    """Jobs by their cores on each node; the nodes know of them."""
    jobs = [Job({nodes[index]: cores for index, cores in place.items()}) for place in places]
    for job in jobs:
        for node, cores in job.on.items():
            node.used += cores
    return jobs


def test_the_first_node_whose_jobs_fit_before_it_is_emptied() -> None:
    nodes = [Node(4) for _ in range(5)]  # full, 1 idle, empty, 2 idle, 3 idle
    jobs = running(nodes, {0: 4}, {1: 3}, {3: 2}, {4: 1})
    assert compaction(nodes, jobs) == (3, [0, 1, 0, 0, 0])


def test_the_largest_job_that_fits_moves_up() -> None:
    nodes = [Node(4, priority=1), Node(4), Node(4), Node(4)]
    jobs = running(nodes, {0: 1}, {1: 2}, {2: 3}, {3: 3}, {1: 1})
    assert priorities(nodes, jobs) == (2, [3, 0, 0, 0])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Job]]:
    """Some nodes with some jobs on them, one node or several each."""
    count = draw(st.integers(1, 6))
    nodes = [Node(draw(st.integers(1, 6)), priority=draw(st.integers(-1, 1))) for _ in range(count)]
    jobs: list[Job] = []
    for _ in range(draw(st.integers(0, 10))):
        begin = draw(st.integers(0, count - 1))
        end = min(begin + draw(st.sampled_from([1, 1, 1, 2, 3])), count)
        wanted = {index: draw(st.integers(1, 4)) for index in range(begin, end)}
        place = {index: min(cores, nodes[index].idle) for index, cores in wanted.items() if nodes[index].idle}
        if place:
            jobs += running(nodes, place)
            jobs[-1].migratable = draw(st.integers(0, 9)) > 0
    return nodes, jobs


def as_move(nodes: Sequence[Node], jobs: Sequence[Job], found: tuple[Job, dict[Node, int]] | None) -> Move:
    if found is None:
        return NOTHING, [0] * len(nodes)
    job, taken = found
    return list(jobs).index(job), [taken.get(node, 0) for node in nodes]


POLICIES = ((compaction, oracle.compaction), (priorities, oracle.priorities))


@pytest.mark.parametrize(("array", "readable"), POLICIES)
@given(cluster=clusters(), spreads=st.booleans())
def test_it_agrees_with_the_readable_form(
    array: Callable[..., Move],
    readable: Callable[..., tuple[Job, dict[Node, int]] | None],
    cluster: tuple[list[Node], list[Job]],
    spreads: bool,
) -> None:
    nodes, jobs = cluster
    assert array(nodes, jobs, spreads=spreads) == as_move(nodes, jobs, readable(nodes, jobs, spreads=spreads))
