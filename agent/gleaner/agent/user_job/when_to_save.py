"""Decide when a user job is saved, and whether it then continues here or elsewhere. Pure."""

import signal
from dataclasses import dataclass
from enum import Enum

from gleaner.agent.privileged.common.slurm_job import SlurmJobRecord
from gleaner.agent.timing.deadlines import exit_by_s, save_point_s

MARGIN_S = 5.0
"""The time kept free before the job has to be gone, for its last output and for queries to Slurm."""
COMMENT = "gleaner"
"""The beginning of the comment (Slurm's AdminComment) of a job whose start Gleaner controls."""

ASKED_TO_SAVE = "gleaner: was asked to save itself"
"""The beginning of that comment after Gleaner has sent the job its signal."""


class SaveWish(Enum):
    """The action that the clock or a signal asks for while a job computes."""

    SAVE = "save"
    """Save the job, which then continues."""
    VACATE = "vacate"
    """Save the job, and have Slurm start it again later."""
    VACATE_REQUEUED = "vacate requeued"
    """Save the job, which has already been requeued by someone else."""
    END = "end"
    """End the job, because its owner has cancelled it."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The times that determine when a job is saved. Instants are in seconds since the epoch."""

    end_s: float | None
    """The instant at which Slurm ends the job."""
    kill_wait_s: float
    every_s: float | None
    """The interval of periodic saves."""
    began_s: float


def by_clock(plan: SavePlan, *, now_s: float, since_s: float, save_s: float) -> SaveWish | None:
    """Return the action that is due, if any.

    `since_s` is the instant of the job's last save or start, and `save_s` the longest time that a save can take.

    A job that has computed for less time than its save takes is left alone, since a save would gain nothing.

    >>> plan = SavePlan(end_s=1000, kill_wait_s=30, every_s=None, began_s=0)
    >>> by_clock(plan, now_s=900, since_s=0, save_s=10), by_clock(plan, now_s=955, since_s=0, save_s=10)
    (None, <SaveWish.VACATE: 'vacate'>)
    """
    if plan.end_s is not None and now_s >= plan.began_s + save_s:
        vacate_s = save_point_s(
            exit_by_s=exit_by_s(plan.end_s, now_s=plan.began_s, kill_wait_s=plan.kill_wait_s),
            margin_s=MARGIN_S,
            save_s=save_s,
        )
        if now_s >= vacate_s:
            return SaveWish.VACATE
    if plan.every_s is not None and now_s >= since_s + plan.every_s:
        return SaveWish.SAVE
    return None


def by_signal(number: int, job: SlurmJobRecord | None) -> SaveWish:
    """Return the action that a signal asks for. `job` is Slurm's record at that time; None if Slurm does not answer.

    Gleaner sends USR1 to an owner's job, and so does `sbatch --signal=USR1@60`. Slurm itself sends TERM before it takes
    the nodes for other work, at the time limit, when the job is requeued, and when it is cancelled.
    """
    states = frozenset[str]() if job is None else frozenset(job.states)
    if number == signal.SIGTERM and "CANCELLED" in states:
        return SaveWish.END
    if states & {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
        return SaveWish.VACATE_REQUEUED
    return SaveWish.VACATE


def is_started_by_gleaner(job: SlurmJobRecord | None) -> bool:
    """Return True if Gleaner decides when the job starts again. Such a job is requeued held."""
    return job is not None and job.admin_comment.startswith(COMMENT)


def had_missed_signal(job: SlurmJobRecord) -> bool:
    """Return True if the job was asked to vacate before it had a step, without which Slurm drops a signal.

    The comment of a job that starts again might be outdated, if its owner has released the job without Gleaner.
    """
    return job.restarts == 0 and job.admin_comment.startswith(ASKED_TO_SAVE)
