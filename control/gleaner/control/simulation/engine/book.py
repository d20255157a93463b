"""The book of a replay on nodes: what runs, what ran, and what is free. Compiled functions over tables.

A table is one array of records, so that few arrays go from function to function: that keeps compilation short.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.compiled import compiled, inner
from gleaner.control.simulation.workload import Counts

Table: TypeAlias = NDArray[Any]

JOBS = np.dtype(
    [(name, np.float64) for name in ("submit_s", "run_s", "limit_s", "save_s", "restore_s", "start_s", "end_s")]
    + [(name, np.int64) for name in ("processors", "movable", "after")]
)
"""`start_s` and `end_s` are found out, and `submit_s` where the queue is kept full. `after`: the next in the queue."""
NODES = np.dtype([(name, np.int64) for name in ("cores", "free", "kind", "level", "number")] + [("speed", np.float64)])
"""In the order in which they are filled. `kind`: which class of the machine; `number`: which node of the machine."""
LEVELS = np.dtype([(name, np.int64) for name in ("start", "cores", "free", "lowest")] + [("speed", np.float64)])
"""Of each priority the first node, all cores, the free ones, a node before which none has any, and the speed of the
fastest; then one for all."""
STRETCHES = np.dtype(
    [(name, np.float64) for name in ("start_s", "end_s", "limit_s", "restore_s", "save_s")]
    + [(name, np.int64) for name in ("job", "moved", "is_over", "ranges")]
)
"""`limit_s`: when it ends as far as the scheduler knows. `moved`: its job goes on in another stretch, and it is not in
the order by job. `is_over`: it gave its cores back. `ranges`: its first; they go up to the next stretch's first."""
RANGES = np.dtype([(name, np.int64) for name in ("node", "nodes", "cores")])
"""Neighbours of one class, with as many cores taken of each."""
RUNNING = np.dtype([("time_s", np.float64), ("stretch", np.int64)])

BY_END, BY_LIMIT, BY_JOB = range(3)
"""The orders in which what runs is kept, the last by number, which is a job's age. Agents are in the second alone."""


class Book(NamedTuple):
    """All tables."""

    jobs: Table
    nodes: Table
    levels: Table
    stretches: Table
    """One more than `many` counts, for where the ranges of the next begin."""
    ranges: Table
    running: Table
    """For each order a row, the latest first, so that the next is at the end and goes without a shift."""
    many: Counts
    """How many are in each of these rows; then, how many stretches there are."""


def new_book(jobs: Table, nodes: Table, levels: Table) -> Book:
    """Nothing runs yet, and `has_room` for a decision."""
    running = int(levels["cores"][-1]) + len(nodes) + 1
    room = len(jobs) + _decision(nodes, levels)
    return Book(
        jobs,
        nodes,
        levels,
        stretches=np.zeros(room, STRETCHES),
        ranges=np.zeros(room, RANGES),
        running=np.zeros((3, running), RUNNING),
        many=np.zeros(4, np.int64),
    )


def larger_book(book: Book) -> Book:
    """The same with twice the room for stretches and ranges."""
    return book._replace(
        stretches=np.concatenate([book.stretches, np.zeros_like(book.stretches)]),
        ranges=np.concatenate([book.ranges, np.zeros_like(book.ranges)]),
    )


@compiled
def _decision(nodes: Table, levels: Table) -> int:
    """The most stretches, or ranges, that one instant may add: each start takes a core at least."""
    return int(levels[len(levels) - 1]["cores"] + 2 * len(nodes) + 2)


@inner
def has_room(book: Book) -> bool:
    """Whether what one instant may add fits."""
    stretches = book.many[3]
    more = _decision(book.nodes, book.levels)
    return bool(
        stretches + more < len(book.stretches) and book.stretches[stretches]["ranges"] + more < len(book.ranges)
    )


@inner
def settle(book: Book, stretch: int) -> None:
    """What was entered begins: it has its place in each order, and its cores. Or, if it is over, neither any more.

    One function for both and for all orders: each that is called is compiled once more into its callers.
    """
    row = book.stretches[stretch]
    is_over = row["is_over"] == 1
    for order in range(3):
        if (order == BY_JOB and row["moved"] == 1) or (order != BY_LIMIT and row["job"] < 0):
            continue
        time_s = row["end_s"] if order == BY_END else row["limit_s"] if order == BY_LIMIT else float(row["job"])
        low, high = 0, book.many[order]
        while low < high:
            middle = (low + high) // 2
            other = book.running[order, middle]
            if other["time_s"] > time_s or (other["time_s"] == time_s and other["stretch"] > stretch):
                low = middle + 1
            else:
                high = middle
        if is_over:
            book.many[order] -= 1
            for at in range(low, book.many[order]):
                book.running[order, at] = book.running[order, at + 1]
        else:
            for at in range(book.many[order], low, -1):
                book.running[order, at] = book.running[order, at - 1]
            book.running[order, low]["time_s"] = time_s
            book.running[order, low]["stretch"] = stretch
            book.many[order] += 1

    sign = 1 if is_over else -1
    everywhere = book.levels[len(book.levels) - 1]
    for at in range(row["ranges"], book.stretches[stretch + 1]["ranges"]):
        entry = book.ranges[at]
        first = entry["node"]
        for node in range(first, first + entry["nodes"]):
            book.nodes[node]["free"] += sign * entry["cores"]
        cores = sign * entry["nodes"] * entry["cores"]
        level = book.levels[book.nodes[first]["level"]]
        level["free"] += cores
        everywhere["free"] += cores
        if is_over and first < level["lowest"]:
            level["lowest"] = first


@inner
def next_s(book: Book) -> float:
    """When the next stretch ends; infinite where nothing runs."""
    count = book.many[BY_END]
    return float(book.running[BY_END, count - 1]["time_s"]) if count > 0 else np.inf
