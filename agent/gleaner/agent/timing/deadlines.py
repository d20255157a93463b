"""Decide when jobs are saved: at the end of an agent, early in its slice, and periodically. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHUTDOWN_GRACE_S = 3.0
"""For this long before its exit, an agent no longer waits for anything, and abandons calls that hang."""
EARLY_SAVE_AFTER_S = 120.0
"""An early save is made after this much computing, or after a sixth of the slice if that is less."""
ASSUMED_MTBF_S = 7 * 86_400.0
"""The mean time between losses that is assumed where periodic saves are on and no mean time is known."""


@dataclass(frozen=True, slots=True)
class AtStake:
    """One job to be saved at the end, with the work that is lost without its save, and the cost of the save."""

    core_s: float
    """Processor time since the job was last saved, or since it started."""
    save_s: float


def saving_order(jobs: Sequence[AtStake]) -> list[int]:
    """Return the order of saves, as positions, beginning with the job that would lose most for each second of its save.

    If the time ends at an unknown instant, this order loses least (Smith's rule for weighted completion times: W. E.
    Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956, 59-66). Among
    jobs with the same loss, the smallest is first.

    >>> saving_order([AtStake(60, 4), AtStake(60, 1), AtStake(600, 4)])
    [2, 1, 0]
    """
    return sorted(range(len(jobs)), key=lambda at: -jobs[at].core_s / max(jobs[at].save_s, 1e-3))


def save_point_s(*, exit_by_s: float, margin_s: float, save_s: float) -> float:
    """Return the instant at which saving has to start, in seconds since the epoch.

    >>> save_point_s(exit_by_s=1000, margin_s=20, save_s=30)
    950
    """
    return exit_by_s - margin_s - save_s


def exit_by_s(end_s: float, *, now_s: float, kill_wait_s: float) -> float:
    """Return the planned exit of an agent, which precedes its end `end_s` by Slurm's kill wait.

    Slurm drains a node on which it finds a process after the end of its job. With this exit, a process that hangs in a
    storage call is killed long before Slurm checks. If the kill wait is more than half of the remaining time (a short
    grace time), half of that time is used.

    >>> exit_by_s(1000, now_s=0, kill_wait_s=30), exit_by_s(1000, now_s=960, kill_wait_s=30)
    (970, 980.0)
    """
    return end_s - min(kill_wait_s, max(end_s - now_s, 0) / 2)


def shutdown_grace_s(exit_by_s: float, *, now_s: float) -> float:
    """Return how long before its exit an agent stops waiting, which is 3 s, or a fifth of the remaining time if less.

    >>> shutdown_grace_s(1000, now_s=0), round(shutdown_grace_s(1000, now_s=996.7), 2)
    (3.0, 0.66)
    """
    return min(SHUTDOWN_GRACE_S, max(exit_by_s - now_s, 0.0) / 5)


def interval_s(
    setting: Literal["auto"] | bool, save_s: float, *, mtbf_s: float | None, shortest_s: float
) -> float | None:
    """Return the interval of periodic saves of one job, or None if it is not saved periodically.

    >>> interval_s("auto", 10, mtbf_s=None, shortest_s=60), interval_s("auto", 1, mtbf_s=300, shortest_s=60)
    (None, 60)
    """
    if setting is False or (mtbf_s is None and setting == "auto"):
        return None
    return max(optimal_interval_s(save_s, mtbf_s or ASSUMED_MTBF_S), shortest_s)


def optimal_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the interval of saves (each takes `save_s`) that loses least to saves and to lost nodes together.

    Daly's higher order estimate is used: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", Future Generation Computer Systems 22(3), 2006, 303-312, equation 37. If losses are so frequent that
    a save takes at least twice the mean time between them, that mean time is returned.

    >>> round(optimal_interval_s(10, 6 * 3600) / 60, 1)
    10.8
    >>> optimal_interval_s(10, 4)
    4
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


def early_save_s(began_s: float, *, exit_by_s: float) -> float:
    """Return the instant of the early save of jobs that started at `began_s`, on a node with too few measurements.

    The save is early, since until then no checkpoint protects the work. It is not immediate, since the jobs must
    already be using their memory.

    >>> early_save_s(1000, exit_by_s=1060), early_save_s(1000, exit_by_s=4600)
    (1010.0, 1120.0)
    """
    return began_s + min(max(exit_by_s - began_s, 0.0) / 6, EARLY_SAVE_AFTER_S)


def is_due(now_s: float, *, since_s: float, interval_s: float, save_point_s: float) -> bool:
    """Return True if a job that was last saved, or began to compute, at `since_s` is to be saved now.

    It is not saved if all jobs are saved anyway within half an interval, because such a save would cost more than it
    protects.

    >>> [is_due(now, since_s=0, interval_s=100, save_point_s=180) for now in (90, 100, 140)]
    [False, True, False]
    """
    return now_s >= since_s + interval_s and save_point_s - now_s >= interval_s / 2
