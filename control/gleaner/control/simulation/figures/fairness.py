"""How evenly a machine was shared: what each owner got over time, and Jain's index of it."""

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.figures.integrals import by_bin
from gleaner.control.simulation.schedule import Stretches
from gleaner.control.simulation.workload import Codes, Seconds


def jain(got: NDArray[np.float64], ought: NDArray[np.float64] | None = None) -> float:
    """Jain's index of fairness of what each owner got: 1 if all alike, 1/n if one of n got everything.

    (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems", DEC-TR-301, 1984). With `ought`, what each should have got, x is the ratio
    of both; who should have got nothing does not count. 1 if nobody got anything, NaN of nobody.

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
    """The units that each owner's jobs computed on, as a mean over each bin between two edges: [owner, bin].

    `owner` is of each job of the workload (its user, or its group). Time of restores and saves does not count, nor
    what a job lost.
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
