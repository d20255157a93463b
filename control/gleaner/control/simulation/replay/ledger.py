"""The ledger of a replay on nodes, with running and ended work, free cores, and the choice of a job's nodes. This
module is compiled.

Each table is one array of records, so that only a few arrays are passed between functions, which keeps compilation
short.

Nodes are chosen by first fit, in the order of their priority and then of their number. All nodes of one priority are a
level, like the nodes of one Slurm partition. A job goes to the highest level that has room for the whole job. Only a
job that is larger than every level is given nodes of several levels.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.model import Counts, Machine
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.records import record_type

Table: TypeAlias = NDArray[Any]

JOBS = record_type(
    integers="processors migratable after", floats="submit_s run_s limit_s save_s restore_s start_s end_s key"
)
"""The jobs. The replay determines `start_s` and `end_s`, and also `submit_s` if the queue is kept full. `key` is the
job's priority (see `in_order.Ranks`), and `after` the next job in the queue."""
NODES = record_type(integers="cores free kind level number agent lent", floats="speed")
"""The nodes, in the order in which they are filled. `kind` is the node's class, and `number` its number in the machine.
`agent` is the stretch of the agent on the node, or -1. `lent` shows an agent that the scheduler does not see (see
`agents_on_nodes`)."""
LEVELS = record_type(integers="start cores free lowest", floats="speed")
"""The levels, one for each priority. The fields are the first node, the number of cores, the free cores, a node before
which no node has free cores, and the speed of the fastest node. The last level contains all nodes."""
STRETCHES = record_type(integers="job moved is_over ranges", floats="start_s end_s limit_s restore_s save_s")
"""The stretches. `limit_s` is the end of the stretch as far as the scheduler knows. `moved` is 1 if the job continues
in another stretch, so that this one is not in the order by job. `is_over` is 1 if the stretch has freed its cores.
`ranges` is its first range, and its last range is the one before the first range of the next stretch."""
RANGES = record_type(integers="node nodes cores")
"""The ranges, which are neighbouring nodes of one class with the same number of cores taken on each."""
RUNNING = record_type(integers="stretch", floats="time_s")

BY_END, BY_LIMIT, BY_JOB = range(3)
"""The orders in which running stretches are kept. The last order is by job number, which is the order of age. Agents
are listed only in the second."""
LENT = 4
"""The index in `many` of the number of nodes that are lent to agents."""
NO_JOB = -1
"""The job number of a stretch that is an agent or a claim."""


class Ledger(NamedTuple):
    """All tables of a replay."""

    jobs: Table
    nodes: Table
    levels: Table
    stretches: Table
    """The stretches, followed by one extra entry, which shows where the ranges of the next stretch begin."""
    ranges: Table
    running: Table
    """One row for each order, in descending order. So the next stretch to end is the last entry and can be removed
    without shifting the others."""
    many: Counts
    """The number of entries in each row of `running`, the number of stretches, and the number of lent nodes."""


def new_book(jobs: Table, nodes: Table, levels: Table) -> Ledger:
    """Return a ledger of an empty machine, with room for one decision (`has_room`)."""
    running = int(levels["cores"][-1]) + len(nodes) + 1
    room = len(jobs) + _decision(nodes, levels)
    return Ledger(
        jobs,
        nodes,
        levels,
        stretches=np.zeros(room, STRETCHES),
        ranges=np.zeros(room, RANGES),
        running=np.zeros((3, running), RUNNING),
        many=np.zeros(5, np.int64),
    )


def larger_book(book: Ledger) -> Ledger:
    """Return the same ledger with twice the room for stretches and ranges."""
    return book._replace(
        stretches=np.concatenate([book.stretches, np.zeros_like(book.stretches)]),
        ranges=np.concatenate([book.ranges, np.zeros_like(book.ranges)]),
    )


def _decision(nodes: Table, levels: Table) -> int:
    """Return the largest number of stretches or ranges that one instant can add. Each start takes at least one core."""
    return int(levels[len(levels) - 1]["cores"] + 2 * len(nodes) + 2)


@inner
def has_room(book: Ledger) -> bool:
    """Return True if there is room for everything that one instant can add."""
    stretches = book.many[3]
    more = _decision(book.nodes, book.levels)
    return bool(
        stretches + more < len(book.stretches) and book.stretches[stretches]["ranges"] + more < len(book.ranges)
    )


@inner
def settle(book: Ledger, stretch: int) -> None:
    """Begin a new stretch, by adding it to each order and taking its cores. If the stretch is over, undo both.

    One function does all this for all orders, because a function is compiled again for each of its callers.
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
    """Return the time at which the next stretch of a job ends, which is infinite if no job runs."""
    count = book.many[BY_END]
    return float(book.running[BY_END, count - 1]["time_s"]) if count > 0 else np.inf


def idle_nodes(machine: Machine) -> tuple[Table, Table]:
    """Return all nodes of the machine, empty and in the order in which they are filled, and their levels."""
    kinds = machine.classes
    kind = np.repeat(np.arange(len(kinds)), [each.nodes for each in kinds])
    priority = np.array([each.priority for each in kinds])[kind]
    order = np.argsort(-priority, kind="stable")
    kind, priority = kind[order], priority[order]
    begins = np.flatnonzero(np.diff(priority, prepend=priority[0] + 1))

    nodes = np.zeros(len(order), NODES)
    nodes["cores"] = nodes["free"] = np.array([each.cores for each in kinds])[kind]
    nodes["speed"] = np.array([each.speed for each in kinds])[kind]
    nodes["kind"] = kind
    nodes["number"] = order
    nodes["agent"] = -1
    nodes["level"] = np.searchsorted(begins, np.arange(len(order)), side="right") - 1

    levels = np.zeros(len(begins) + 1, LEVELS)
    levels["start"] = levels["lowest"] = np.append(begins, len(order))
    levels["cores"] = np.append(np.add.reduceat(nodes["cores"], begins), nodes["cores"].sum())
    levels["free"] = levels["cores"]
    levels["speed"] = np.append(np.maximum.reduceat(nodes["speed"], begins), nodes["speed"].max())
    return nodes, levels


@inner
def level_for(levels: Table, processors: int, after: int) -> int:
    """Return the first level after this one that has room, or -1. The last level contains all nodes."""
    last = len(levels) - 1
    fits_one = False
    for level in range(last):
        if levels[level]["cores"] >= processors:
            fits_one = True
            if level > after and levels[level]["free"] >= processors:
                return level
    if not fits_one and after < last and levels[last]["free"] >= processors:
        return last
    return -1


@inner
def first_with_room(book: Ledger, level: int, processors: int) -> int:
    """Return the first node of a level with room for the whole job, or -1."""
    is_one = level < len(book.levels) - 1
    begin = book.levels[level]["lowest"] if is_one else 0
    end = book.levels[level + 1]["start"] if is_one else len(book.nodes)
    for lent in range(3 if book.many[LENT] > 0 else 1):
        for node in range(begin, end):
            if book.nodes[node]["free"] >= processors and book.nodes[node]["lent"] == lent:
                return node
    return -1


@inner
def choose(book: Ledger, level: int, processors: int, whole: bool, on_one: int) -> tuple[int, float]:
    """Choose the nodes of a job by first fit on a level that has room. With `whole`, take all cores of each node.

    Nodes with agents are chosen last and, among these, first those whose agents are already leaving. `on_one` is a node
    with room for the whole job to which the job must go, or -1. The chosen ranges are written after those of the last
    stretch. Return the end of the chosen ranges, and the speed of the slowest node.
    """
    is_one = level < len(book.levels) - 1
    begin = on_one if on_one >= 0 else book.levels[level]["lowest"] if is_one else 0
    end = book.levels[level + 1]["start"] if is_one else len(book.nodes)
    ranges_end = int(book.stretches[book.many[3]]["ranges"])
    left = processors
    speed = np.inf
    lent, node = int(book.nodes[on_one]["lent"]) if on_one >= 0 else 0, begin
    while left > 0:
        if node == end:
            lent, node = lent + 1, begin
        free = book.nodes[node]["free"]
        if free > 0 and book.nodes[node]["lent"] == lent:
            if left == processors and is_one and on_one < 0 and book.many[LENT] == 0:
                book.levels[level]["lowest"] = node
            cores = free if whole else min(free, left)
            ranges_end = extend(book, ranges_end, node, cores)
            speed = min(speed, book.nodes[node]["speed"])
            left -= cores
        node += 1
    return ranges_end, speed


@inner
def extend(book: Ledger, ranges_end: int, node: int, cores: int) -> int:
    """Add a node to the ranges of the next stretch, and return their end. The node joins the last range if possible."""
    if ranges_end > book.stretches[book.many[3]]["ranges"]:
        before = book.ranges[ranges_end - 1]
        is_next = before["node"] + before["nodes"] == node and before["cores"] == cores
        is_alike = book.nodes[node]["lent"] == book.nodes[node - 1]["lent"]
        if is_next and is_alike and book.nodes[node]["kind"] == book.nodes[node - 1]["kind"]:
            before["nodes"] += 1
            return ranges_end
    new = book.ranges[ranges_end]
    new["node"] = node
    new["nodes"] = 1
    new["cores"] = cores
    return ranges_end + 1
