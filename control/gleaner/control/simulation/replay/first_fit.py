"""First fit: the choice of a job's nodes, on machines whose nodes matter. Compiled.

Nodes are filled by priority, then by number. All nodes of one priority are a level, like the nodes of one Slurm
partition. A job goes to the highest level that has room for all of the job. Only a job larger than every level gets
nodes of several levels.
"""

import numpy as np

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.ledger import LEVELS, NODES, Ledger, Table


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
    for node in range(begin, end):
        if book.nodes[node]["free"] >= processors:
            return node
    return -1


@inner
def choose(book: Ledger, level: int, processors: int, whole: bool, on_one: int) -> tuple[int, float]:
    """Choose by first fit where a job would go on a level that has room; with `whole`, take all cores of each node.

    `on_one` is a node that has room for all of the job and to which the job is to go; -1: none. The chosen ranges are
    written behind those of the last stretch. Return where the chosen ranges end, and the speed of the slowest node.
    """
    is_one = level < len(book.levels) - 1
    begin = on_one if on_one >= 0 else book.levels[level]["lowest"] if is_one else 0
    end = book.levels[level + 1]["start"] if is_one else len(book.nodes)
    ranges_end = int(book.stretches[book.many[3]]["ranges"])
    left = processors
    speed = np.inf
    for node in range(begin, end):
        free = book.nodes[node]["free"]
        if free == 0:
            continue
        if left == processors and is_one and on_one < 0:
            book.levels[level]["lowest"] = node
        cores = free if whole else min(free, left)
        ranges_end = extend(book, ranges_end, node, cores)
        speed = min(speed, book.nodes[node]["speed"])
        left -= cores
        if left <= 0:
            break
    return ranges_end, speed


@inner
def extend(book: Ledger, ranges_end: int, node: int, cores: int) -> int:
    """Add a node to the next stretch's ranges; return where they end. The node joins the last range if it can."""
    if ranges_end > book.stretches[book.many[3]]["ranges"]:
        before = book.ranges[ranges_end - 1]
        is_next = before["node"] + before["nodes"] == node and before["cores"] == cores
        if is_next and book.nodes[node]["kind"] == book.nodes[node - 1]["kind"]:
            before["nodes"] += 1
            return ranges_end
    new = book.ranges[ranges_end]
    new["node"] = node
    new["nodes"] = 1
    new["cores"] = cores
    return ranges_end + 1
