"""The instants of saves: at the end of an agent, early in its slice, and periodically. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LAST_WORDS_S = 3.0
"""So long before it has to be gone an agent waits for nothing any more; a call that hangs is left behind."""
EARLY_SAVE_AFTER_S = 120.0
"""A job has computed for so long, or for a sixth of its slice, before it is saved early."""
ASSUMED_MTBF_S = 7 * 86_400.0
"""Assumed for periodic saves that are wanted although nobody knows how often nodes are lost."""


@dataclass(frozen=True, slots=True)
class AtStake:
    """One job that is to be saved at the end: the work that is lost without its save, and the cost of the save."""

    core_s: float
    """Processor time since it was last saved, or since it began."""
    save_s: float


def saving_order(jobs: Sequence[AtStake]) -> list[int]:
    """Return the order of saves, as positions: first the job that loses most for each second of its save.

    If time runs out at an unknown instant, this loses least (Smith's rule for weighted completion times: W. E. Smith,
    "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956, 59-66). Jobs that
    have as much to lose are saved in the order of their size, the smallest first.

    >>> saving_order([AtStake(60, 4), AtStake(60, 1), AtStake(600, 4)])
    [2, 1, 0]
    """
    return sorted(range(len(jobs)), key=lambda at: -jobs[at].core_s / max(jobs[at].save_s, 1e-3))


def save_point_s(*, gone_s: float, margin_s: float, save_s: float) -> float:
    """Return the instant at which saving has to begin, seconds since the epoch.

    >>> save_point_s(gone_s=1000, margin_s=20, save_s=30)
    950
    """
    return gone_s - margin_s - save_s


def gone_s(end_s: float, *, now_s: float, kill_wait_s: float) -> float:
    """Return the instant at which an agent plans to be gone: Slurm's kill wait before its end `end_s`.

    A process that a stuck storage call holds has then been killed long before Slurm looks whether all have ended; one
    that Slurm finds makes it drain the node. If the kill wait is more than half of the time that is left (a short grace
    time), half of that time is used.

    >>> gone_s(1000, now_s=0, kill_wait_s=30), gone_s(1000, now_s=960, kill_wait_s=30)
    (970, 980.0)
    """
    return end_s - min(kill_wait_s, max(end_s - now_s, 0) / 2)


def last_words_s(gone_s: float, *, now_s: float) -> float:
    """Return how long before it has to be gone an agent waits for nothing any more: a fifth of what is left, or 3 s.

    >>> last_words_s(1000, now_s=0), round(last_words_s(1000, now_s=996.7), 2)
    (3.0, 0.66)
    """
    return min(LAST_WORDS_S, max(gone_s - now_s, 0.0) / 5)


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
