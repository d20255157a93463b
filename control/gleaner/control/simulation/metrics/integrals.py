"""Unit time in the stretches of a schedule by use: in one window, or in many bins."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gleaner.control.simulation.schedule import Stretches
from gleaner.control.simulation.workload import Seconds


class UnitTime(NamedTuple):
    """Unit seconds by use: one number each, or one for each bin."""

    restore: Seconds
    compute: Seconds
    lost: Seconds
    save: Seconds


def between(stretches: Stretches, begin_s: float, end_s: float) -> UnitTime:
    """Return the unit seconds between two instants. Time that a stretch lost lies just before its save."""
    borders = _borders(stretches)
    units = stretches.units
    inside = [np.clip(border, begin_s, end_s) for border in borders]
    return UnitTime(*(_sum((after - before) * units) for before, after in pairwise(inside)))


def _sum(amounts: Seconds) -> Any:
    """Return the sum in one order, whatever the number of cores: a dot product may be split among cores."""
    return np.sum(amounts)


def by_bin(stretches: Stretches, edges_s: Seconds) -> UnitTime:
    """Return the unit seconds in each bin between two edges.

    The time to compute this grows with the sum of stretches and bins, not with their product.
    """
    # Times count from the first edge on, so that large times of an epoch cost no digits.
    units = stretches.units.astype(np.float64)
    past = [_past(border - edges_s[0], units, edges_s - edges_s[0]) for border in _borders(stretches)]
    return UnitTime(*(np.diff(before - after) for before, after in pairwise(past)))


def waiting(submit_s: Seconds, start_s: Seconds, edges_s: Seconds) -> Seconds:
    """Return the mean number of waiting jobs in each bin. A job without a start waits to the end."""
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
    """Return for each edge the time since each earlier instant, summed with the weights."""
    order = np.argsort(at_s, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(weight[order])))
    moments = np.concatenate(([0.0], np.cumsum(weight[order] * at_s[order])))
    before = np.searchsorted(at_s[order], edges_s)
    return edges_s * sums[before] - moments[before]
