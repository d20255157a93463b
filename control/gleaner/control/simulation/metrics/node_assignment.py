"""The nodes on which work was, for a picture: known, or assigned afterwards where the replay only counted nodes."""

import math
from typing import Any, NamedTuple, cast

import numpy as np

from gleaner.control.simulation.model import Allocation, Counts, Schedule, Stretches


class _Wants(NamedTuple):
    """One entry for each stretch and node, or range of whole nodes: `units` units of those from `low` to `high`."""

    stretch: Counts
    low: Counts
    high: Counts
    units: Counts


def placed(schedule: Schedule, begin_s: float = -math.inf, end_s: float = math.inf) -> Stretches:
    """Return the stretches of jobs and agents between two instants, with their places.

    There is one entry for each stretch and range of neighbouring units (nodes, or cores numbered through all nodes):
    `node` is the first unit of the range, `units` is its length. Jobs get the lowest free units, agents the highest.
    Where the replay knows nodes, these are units of their own nodes. So no two stretches are on one unit at once, and
    the same schedule gives the same places.

    This takes about a second for some 10,000 stretches. Of a longer schedule, ask only for a period.
    """
    both = zip(schedule.jobs, schedule.agents, strict=True)
    columns: list[Any] = [np.concatenate(cast("Any", pair)) for pair in both]
    rows = Stretches(*columns)
    there = (rows.start_s < end_s) & (rows.end_s > begin_s) & (rows.end_s > rows.start_s)
    wants = _wanted(schedule, rows)
    wants = _Wants(*(column[there[wants.stretch]] for column in wants))
    stretch, first, length = _swept(rows, wants, schedule.machine.units)
    order = np.lexsort((first, stretch, rows.start_s[stretch]))
    row, node = rows.only(stretch[order]), first[order].astype(np.int32)
    return Stretches(row.job, row.start_s, row.end_s, length[order], row.restore_s, row.save_s, row.lost_s, node)


def _wanted(schedule: Schedule, rows: Stretches) -> _Wants:
    parts, machine = schedule.parts, schedule.machine
    if parts is None:
        every = np.arange(len(rows))
        return _Wants(every, np.zeros_like(every), np.full_like(every, machine.units), rows.units)
    agents = np.arange(len(schedule.jobs), len(rows))
    stretch = np.concatenate([parts.stretch, agents])
    node = np.concatenate([parts.node, rows.node[agents].astype(np.int64)])
    nodes = np.concatenate([parts.nodes, np.ones(len(agents), np.int64)])
    if machine.allocation is Allocation.NODES:
        return _Wants(stretch, node, node + nodes, nodes)
    total = machine.node_cores
    cores = np.concatenate([parts.cores, total[rows.node[agents]]])
    begins = np.cumsum(total) - total
    single = np.repeat(node - np.cumsum(nodes) + nodes, nodes) + np.arange(int(nodes.sum()))
    return _Wants(np.repeat(stretch, nodes), begins[single], begins[single] + total[single], np.repeat(cores, nodes))


def _swept(rows: Stretches, wants: _Wants, units: int) -> tuple[Counts, Counts, Counts]:
    """Return the stretch, first unit and length of each range. At each instant, what ends first frees its units."""
    count = len(wants.stretch)
    at_s = np.concatenate([rows.end_s[wants.stretch], rows.start_s[wants.stretch]])
    free = np.ones(units, np.bool_)
    held: dict[int, Counts] = {}
    found: list[tuple[int, int, int]] = []
    for event in (int(each) for each in np.argsort(at_s, kind="stable")):
        if event < count:
            free[held.pop(event)] = True
            continue
        want = event - count
        stretch, low, high, asked = (int(column[want]) for column in wants)
        there = low + np.flatnonzero(free[low:high])
        mine = there[:asked] if rows.job[stretch] >= 0 else there[len(there) - asked :]
        free[mine] = False
        held[want] = mine
        ranges = np.split(mine, np.flatnonzero(np.diff(mine) > 1) + 1)
        found += [(stretch, int(one[0]), len(one)) for one in ranges]
    told = np.array(found, np.int64).reshape(-1, 3)
    return told[:, 0], told[:, 1], told[:, 2]
