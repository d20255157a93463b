"""The ledger of a replay on nodes: what runs, what ran, and what is free. Compiled functions work on its tables.

A table is one array of records. So few arrays go from function to function, which keeps compilation short.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.workload import Counts

Table: TypeAlias = NDArray[Any]

JOBS = np.dtype(
    [(name, np.float64) for name in ("submit_s", "run_s", "limit_s", "save_s", "restore_s", "start_s", "end_s")]
    + [(name, np.int64) for name in ("processors", "migratable", "after")]
)
"""The jobs. The replay finds `start_s` and `end_s`, and `submit_s` where the queue is kept full. `after`: the next job
in the queue."""
NODES = np.dtype([(name, np.int64) for name in ("cores", "free", "kind", "level", "number")] + [("speed", np.float64)])
"""The nodes, in the order in which they are filled. `kind`: the node's class. `number`: the node's number in the
machine."""
LEVELS = np.dtype([(name, np.int64) for name in ("start", "cores", "free", "lowest")] + [("speed", np.float64)])
"""The levels, one for each priority: the first node, all cores, the free cores, a node before which no node has free
cores, and the speed of the fastest node. The last level is that of all nodes together."""
STRETCHES = np.dtype(
    [(name, np.float64) for name in ("start_s", "end_s", "limit_s", "restore_s", "save_s")]
    + [(name, np.int64) for name in ("job", "moved", "is_over", "ranges")]
)
"""The stretches. `limit_s`: when the stretch ends as far as the scheduler knows. `moved`: the job goes on in another
stretch, and this stretch is not in the order by job. `is_over`: the stretch has freed its cores. `ranges`: its first
range. Its ranges go up to the first range of the next stretch."""
RANGES = np.dtype([(name, np.int64) for name in ("node", "nodes", "cores")])
"""The ranges: neighbouring nodes of one class, with equally many cores taken of each node."""
RUNNING = np.dtype([("time_s", np.float64), ("stretch", np.int64)])

BY_END, BY_LIMIT, BY_JOB = range(3)
"""The orders in which running stretches are kept. The last is by number, which is a job's age. Agents are only in the
second."""


class Ledger(NamedTuple):
    """All tables of a replay."""

    jobs: Table
    nodes: Table
    levels: Table
    stretches: Table
    """One entry more than `many` counts. The extra entry says where the ranges of the next stretch begin."""
    ranges: Table
    running: Table
    """One row for each order, the latest entry first: the next entry is at the end, and leaves without a shift."""
    many: Counts
    """The number of entries in each row of `running`, then the number of stretches."""


def new_book(jobs: Table, nodes: Table, levels: Table) -> Ledger:
    """Return a ledger in which nothing runs yet, with room for a decision (`has_room`)."""
    running = int(levels["cores"][-1]) + len(nodes) + 1
    room = len(jobs) + _decision(nodes, levels)
    return Ledger(
        jobs,
        nodes,
        levels,
        stretches=np.zeros(room, STRETCHES),
        ranges=np.zeros(room, RANGES),
        running=np.zeros((3, running), RUNNING),
        many=np.zeros(4, np.int64),
    )


def larger_book(book: Ledger) -> Ledger:
    """Return the same ledger with twice the room for stretches and ranges."""
    return book._replace(
        stretches=np.concatenate([book.stretches, np.zeros_like(book.stretches)]),
        ranges=np.concatenate([book.ranges, np.zeros_like(book.ranges)]),
    )


def _decision(nodes: Table, levels: Table) -> int:
    """Return the most stretches, or ranges, that one instant may add. Each start takes at least one core."""
    return int(levels[len(levels) - 1]["cores"] + 2 * len(nodes) + 2)


@inner
def has_room(book: Ledger) -> bool:
    """Return True if there is room for what one instant may add."""
    stretches = book.many[3]
    more = _decision(book.nodes, book.levels)
    return bool(
        stretches + more < len(book.stretches) and book.stretches[stretches]["ranges"] + more < len(book.ranges)
    )


@inner
def settle(book: Ledger, stretch: int) -> None:
    """Begin an entered stretch: give it its place in each order, and its cores. If the stretch is over, take both away.

    One function does both and for all orders, since each function is compiled once more into each of its callers.
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
def next_s(book: Ledger) -> float:
    """Return when the next stretch of a job ends; infinite where no job runs."""
    count = book.many[BY_END]
    return float(book.running[BY_END, count - 1]["time_s"]) if count > 0 else np.inf
