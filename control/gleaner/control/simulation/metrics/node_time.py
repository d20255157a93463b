"""The use of the machine's time by kind and by owner (Jain's index), and the time for which nodes are full, partly used
or empty.

All figures are exact integrals over the stretches of a schedule, not samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.model import Counts, Schedule, Seconds, Stretches
from gleaner.control.simulation.replay.compiler import compiled


class UnitTime(NamedTuple):
    """Unit seconds by use. Each field is one number, or an array with one number per bin."""

    restore: Seconds
    compute: Seconds
    lost: Seconds
    save: Seconds


def between(stretches: Stretches, begin_s: float, end_s: float) -> UnitTime:
    """Return the unit seconds between two instants. The time that a stretch lost is placed just before its save."""
    borders = _borders(stretches)
    units = stretches.units
    inside = [np.clip(border, begin_s, end_s) for border in borders]
    return UnitTime(*(_sum((after - before) * units) for before, after in pairwise(inside)))


def _sum(amounts: Seconds) -> Any:
    """Return the sum of the amounts, which are always added in the same order. A dot product might be split differently
    on a machine with more cores."""
    return np.sum(amounts)


def by_bin(stretches: Stretches, edges_s: Seconds) -> UnitTime:
    """Return the unit seconds in each bin between two edges.

    The cost grows with the sum of the numbers of stretches and bins, not with their product.
    """
    # Times are counted from the first edge, so that no digits are lost if they are seconds since 1970.
    units = stretches.units.astype(np.float64)
    past = [_past(border - edges_s[0], units, edges_s - edges_s[0]) for border in _borders(stretches)]
    return UnitTime(*(np.diff(before - after) for before, after in pairwise(past)))


def waiting(submit_s: Seconds, start_s: Seconds, edges_s: Seconds) -> Seconds:
    """Return the mean number of waiting jobs in each bin. A job that never started waits until the end."""
    came = ~np.isnan(submit_s)
    went = came & ~np.isnan(start_s)
    entered = _past(submit_s[came] - edges_s[0], np.ones(np.count_nonzero(came)), edges_s - edges_s[0])
    left = _past(start_s[went] - edges_s[0], np.ones(np.count_nonzero(went)), edges_s - edges_s[0])
    return np.maximum(np.diff(entered - left), 0) / np.diff(edges_s)


def _borders(stretches: Stretches) -> tuple[Seconds, Seconds, Seconds, Seconds, Seconds]:
    computes = stretches.start_s + stretches.restore_s
    saves = stretches.end_s - stretches.save_s
    return stretches.start_s, computes, saves - stretches.lost_s, saves, stretches.end_s


def _past(at_s: Seconds, weight: Seconds, edges_s: Seconds) -> Seconds:
    """Return, for each edge, the weighted sum of the times since all earlier instants."""
    order = np.argsort(at_s, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(weight[order])))
    moments = np.concatenate(([0.0], np.cumsum(weight[order] * at_s[order])))
    before = np.searchsorted(at_s[order], edges_s)
    return edges_s * sums[before] - moments[before]


def jain(got: Sequence[float]) -> float | None:
    """Return Jain's index of fairness, which is 1 if all owners had the same amount, and 1/n if one of n had
    everything.

    (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984). Here x is the amount that an owner had. The index is None
    if there is only one owner, or if no owner had anything.

    >>> jain([5.0, 5.0, 0.0, 0.0])
    0.5
    """
    if len(got) < 2 or not any(got):
        return None
    shares = np.array(got) / max(got)  # so that no square is too large or too small
    return float(np.sum(shares) ** 2 / (len(shares) * np.sum(shares**2)))


FULL, MIXED, EMPTY = range(3)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of the nodes' time, whose sum is 1. A node that an agent holds counts as full."""

    full: float
    mixed: float
    empty: float
    by_node: NDArray[np.float64] | None = None
    """The three shares of each node, with one row per node in the order of their numbers, or None if nodes are only
    counted."""


def occupancy(schedule: Schedule, begin_s: float, end_s: float) -> Occupancy:
    """Return the occupancy between two instants. The first must be before the second.

    If nodes are only counted, no node is ever partly used.
    """
    parts = schedule.parts
    if parts is None:
        held = sum(float(use) for each in (schedule.jobs, schedule.agents) for use in between(each, begin_s, end_s))
        full = held / (schedule.machine.units * (end_s - begin_s))
        return Occupancy(full, 0.0, max(0.0, 1 - full))
    cores = schedule.machine.node_cores
    start, end = schedule.jobs.start_s[parts.stretch], schedule.jobs.end_s[parts.stretch]
    agents = schedule.agents
    at_s = np.concatenate([start, agents.start_s, end, agents.end_s])
    first = np.tile(np.concatenate([parts.node, agents.node.astype(np.int64)]), 2)
    nodes = np.tile(np.concatenate([parts.nodes, np.ones(len(agents), np.int64)]), 2)
    held_of_each = np.concatenate([parts.cores, cores[agents.node]])
    order = np.argsort(at_s, kind="stable")
    spent_s = _spent_s(
        at_s[order],
        first[order],
        nodes[order],
        np.concatenate([held_of_each, -held_of_each])[order],
        cores,
        float(begin_s),  # for a whole number, the compiler would create an array of whole numbers
        float(end_s),
    )
    by_node = spent_s / (end_s - begin_s)
    full, mixed, empty = (float(share) for share in by_node.mean(axis=0))
    return Occupancy(full, mixed, empty, by_node)


@compiled
def _spent_s(  # noqa: PLR0917 - numba takes no keywords
    at_s: Seconds, first: Counts, nodes: Counts, cores: Counts, total: Counts, begin_s: float, end_s: float
) -> NDArray[np.float64]:
    """Return the seconds that each node spent in each state. At each event, cores of some nodes are taken or freed."""
    spent_s = np.zeros((len(total), 3))
    used = np.zeros(len(total), np.int64)
    since_s = np.full(len(total), begin_s)
    for event in range(len(at_s) + 1):
        is_last = event == len(at_s)
        now_s = end_s if is_last else min(max(at_s[event], begin_s), end_s)
        low = 0 if is_last else first[event]
        high = len(total) if is_last else low + nodes[event]
        for node in range(low, high):
            state = EMPTY if used[node] == 0 else FULL if used[node] == total[node] else MIXED
            spent_s[node, state] += now_s - since_s[node]
            since_s[node] = now_s
            if not is_last:
                used[node] += cores[event]
    return spent_s
