"""The ledger of a replay on nodes: what runs, what ran, what is free, and the choice of a job's nodes. Compiled.

A table is one array of records. So few arrays go from function to function, which keeps compilation short.

Nodes are chosen by first fit: they are filled by priority, then by number. All nodes of one priority are a level, like
the nodes of one Slurm partition. A job goes to the highest level that has room for all of the job. Only a job larger
than every level gets nodes of several levels.
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
"""The jobs. The replay finds `start_s` and `end_s`, and `submit_s` where the queue is kept full. `key`: the job's
priority, see `in_order.Ranks`. `after`: the next job in the queue."""
NODES = record_type(integers="cores free kind level number agent lent", floats="speed")
"""The nodes, in the order in which they are filled. `kind`: the node's class. `number`: the node's number in the
machine. `agent`: the stretch of the agent on the node (-1: none). `lent`: an agent that the scheduler does not see (see
`agents_on_nodes`)."""
LEVELS = record_type(integers="start cores free lowest", floats="speed")
"""The levels, one for each priority: the first node, all cores, the free cores, a node before which no node has free
cores, and the speed of the fastest node. The last level is that of all nodes together."""
STRETCHES = record_type(integers="job moved is_over ranges", floats="start_s end_s limit_s restore_s save_s")
"""The stretches. `limit_s`: when the stretch ends as far as the scheduler knows. `moved`: the job goes on in another
stretch, and this stretch is not in the order by job. `is_over`: the stretch has freed its cores. `ranges`: its first
range. Its ranges go up to the first range of the next stretch."""
RANGES = record_type(integers="node nodes cores")
"""The ranges: neighbouring nodes of one class, with equally many cores taken of each node."""
RUNNING = record_type(integers="stretch", floats="time_s")

BY_END, BY_LIMIT, BY_JOB = range(3)
"""The orders in which running stretches are kept. The last is by number, which is a job's age. Agents are only in the
second."""
LENT = 4
"""The place in `many` of the number of nodes that are lent to agents."""
NO_JOB = -1
"""The number that stands for an agent, or a claim, in the place of a job."""


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
    """The number of entries in each row of `running`, the number of stretches, and the number of lent nodes."""


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
        many=np.zeros(5, np.int64),
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
    """Return the first level after this one that has room, or -1. The last level is all nodes together."""
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
    """Return the first node of a level with room for all of a job, or -1."""
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
    """Choose by first fit where a job would go on a level that has room; with `whole`, take all cores of each node.

    Nodes of agents are chosen last, and of these first the nodes whose agents leave already.
    `on_one` is a node that has room for all of the job and to which the job is to go; -1: none. The chosen ranges are
    written behind those of the last stretch. Return where the chosen ranges end, and the speed of the slowest node.
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
    """Add a node to the next stretch's ranges; return where they end. The node joins the last range if it can."""
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
