"""Fairness: how much of the machine each owner got over time, and Jain's index of these amounts."""

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.metrics.integrals import by_bin
from gleaner.control.simulation.schedule import Stretches
from gleaner.control.simulation.workload import Codes, Seconds


def jain(got: NDArray[np.float64], ought: NDArray[np.float64] | None = None) -> float:
    """Return Jain's index of fairness: 1 if all owners got equally much, 1/n if one of n got everything.

    (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984). Here x is what an owner got. With `ought`, what each
    owner should have got, x is the ratio of both, and an owner that should have got nothing does not count. The index
    is 1 if nobody got anything, and NaN if there is no owner.

    >>> jain(np.array([5.0, 5.0, 0.0, 0.0]))
    0.5
    >>> jain(np.array([20.0, 40.0]), ought=np.array([1.0, 2.0]))
    1.0
    """
    if ought is not None:
        got = got[ought > 0] / ought[ought > 0]
    if len(got) == 0:
        return float("nan")
    largest = float(np.max(np.abs(got)))
    if largest == 0:
        return 1.0
    got = got / largest  # so that no square is too large or too small
    return float(np.sum(got) ** 2 / (len(got) * np.sum(got**2)))


def throughput(stretches: Stretches, owner: Codes, owners: int, edges_s: Seconds) -> NDArray[np.float64]:
    """Return the units on which each owner's jobs computed, as a mean over each bin between two edges: [owner, bin].

    `owner` has for each job of the workload its owner (its user, or its group). Only time that was computed and kept
    counts: not restores, not saves, and not time that a job lost.
    """
    whose = owner[stretches.job]
    order = np.argsort(whose, kind="stable")
    borders = np.searchsorted(whose[order], np.arange(owners + 1))
    bins_s = np.diff(edges_s)
    means = np.zeros((owners, len(bins_s)))
    for one in np.flatnonzero(np.diff(borders)):
        chosen = order[borders[one] : borders[one + 1]]
        means[one] = by_bin(stretches.only(chosen), edges_s).compute / bins_s
    return means
