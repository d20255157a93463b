"""The interval at which a job that goes on is saved, so that the loss of a node costs little. Pure."""

import math
from typing import Literal

EARLY_SAVE_AFTER_S = 120.0
"""A job has computed for so long, or for a sixth of its slice, before it is saved early."""
ASSUMED_MTBF_S = 7 * 86_400.0
"""Assumed for periodic saves that are wanted although nobody knows how often nodes are lost."""


def interval_s(
    wanted: Literal["auto"] | bool, save_s: float, *, mtbf_s: float | None, shortest_s: float
) -> float | None:
    """Return the time to compute between two saves of one job; None if it is not saved before its slice ends.

    >>> interval_s("auto", 10, mtbf_s=None, shortest_s=60), interval_s("auto", 1, mtbf_s=300, shortest_s=60)
    (None, 60)
    """
    if wanted is False or (mtbf_s is None and wanted == "auto"):
        return None
    return max(optimal_interval_s(save_s, mtbf_s or ASSUMED_MTBF_S), shortest_s)


def optimal_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the time to compute between two saves of `save_s` each that loses least to saves and to losses of nodes.

    Daly's higher order estimate: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", Future Generation Computer Systems 22(3), 2006, 303-312, equation 37. With losses so frequent that half
    of their mean distance is shorter than a save, that distance itself.

    >>> round(optimal_interval_s(10, 6 * 3600) / 60, 1)
    10.8
    >>> optimal_interval_s(10, 4)
    4
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


def early_save_s(began_s: float, *, gone_s: float) -> float:
    """Return the instant of the early save of jobs that began at `began_s`, on a node of which too little is known.

    Early, since what is computed until then is what can be lost; not at once, since a job's memory is to be in use.

    >>> early_save_s(1000, gone_s=1060), early_save_s(1000, gone_s=4600)
    (1010.0, 1120.0)
    """
    return began_s + min(max(gone_s - began_s, 0.0) / 6, EARLY_SAVE_AFTER_S)


def is_due(now_s: float, *, since_s: float, interval_s: float, save_point_s: float) -> bool:
    """Return True if a job that was last saved, or began to compute, at `since_s` is to be saved now.

    It is not saved if everything is saved anyway within half an interval: such a save protects less than it costs.

    >>> [is_due(now, since_s=0, interval_s=100, save_point_s=180) for now in (90, 100, 140)]
    [False, True, False]
    """
    return now_s >= since_s + interval_s and save_point_s - now_s >= interval_s / 2
