"""Occupancy: the time that nodes were full, partly used and empty, as exact integrals and not as samples."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.metrics.integrals import between
from gleaner.control.simulation.replay.compiler import compiled
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.workload import Counts, Seconds

FULL, MIXED, EMPTY = range(3)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of the nodes' time; they add up to 1. A node that an agent holds is full."""

    full: float
    mixed: float
    empty: float
    by_node: NDArray[np.float64] | None = None
    """The three shares of each node, one row per node in the order of numbers; None where nodes are only counted."""


def occupancy(schedule: Schedule, begin_s: float, end_s: float) -> Occupancy:
    """Return the occupancy between two instants, the first before the second.

    Where nodes are only counted, no node is ever partly used.
    """
    parts = schedule.parts
    if parts is None:
        held = sum(float(use) for each in (schedule.jobs, schedule.agents) for use in between(each, begin_s, end_s))
        full = held / (schedule.machine.units * (end_s - begin_s))
        return Occupancy(full, 0.0, max(0.0, 1 - full))
    cores = node_cores(schedule.machine)
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
        float(begin_s),  # from a whole number the compiler would make an array of whole numbers
        float(end_s),
    )
    by_node = spent_s / (end_s - begin_s)
    full, mixed, empty = (float(share) for share in by_node.mean(axis=0))
    return Occupancy(full, mixed, empty, by_node)


def node_cores(machine: Machine) -> Counts:
    """Return how many cores each node has, in the order of the nodes' numbers."""
    return np.repeat(np.array([kind.cores for kind in machine.classes]), [kind.nodes for kind in machine.classes])


@compiled
def _spent_s(  # noqa: PLR0917 - numba takes no keywords
    at_s: Seconds, first: Counts, nodes: Counts, cores: Counts, total: Counts, begin_s: float, end_s: float
) -> NDArray[np.float64]:
    """Return the seconds of each node in each state. At each event, cores of some nodes are taken or freed."""
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
