"""When a user's own job is saved, and what becomes of it then. Pure."""

import signal
from dataclasses import dataclass
from enum import Enum

from gleaner.agent.margin import gone_s, save_point_s
from gleaner.agent.privileged.slurm_jobs import SlurmJob

MARGIN_S = 5.0
"""Kept free before the job has to be gone, for its last words and for asking Slurm."""
GOVERNED = "gleaner"
"""What the comment of a job begins with that Gleaner lets start (Slurm's AdminComment)."""

ASKED_TO_LEAVE = "gleaner: was asked to save itself"
"""The same, when Gleaner has sent the job its signal."""


class Wish(Enum):
    """What is to be done with a job that computes."""

    SAVE = "save"
    """Save it; it goes on."""
    LEAVE = "leave"
    """Save it, and have Slurm start it again later."""
    LEAVE_REQUEUED = "leave requeued"
    """Save it; somebody else has requeued it."""
    END = "end"
    """Its owner has cancelled it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """By what the clock is looked at. Times are seconds since the epoch."""

    end_s: float | None
    """When Slurm ends the job."""
    kill_wait_s: float
    every_s: float | None
    """So often it is saved while it goes on."""
    began_s: float


def by_clock(plan: Plan, *, now_s: float, since_s: float, save_s: float) -> Wish | None:
    """What the clock asks for. `since_s`: when it was last saved, or began; `save_s`: how long a save takes, at most.

    A job that has not even computed for as long as its save takes is left alone: it would come back and be no further.

    >>> plan = Plan(end_s=1000, kill_wait_s=30, every_s=None, began_s=0)
    >>> by_clock(plan, now_s=900, since_s=0, save_s=10), by_clock(plan, now_s=955, since_s=0, save_s=10)
    (None, <Wish.LEAVE: 'leave'>)
    """
    if plan.end_s is not None and now_s >= plan.began_s + save_s:
        leave_s = save_point_s(
            gone_s=gone_s(plan.end_s, now_s=plan.began_s, kill_wait_s=plan.kill_wait_s),
            margin_s=MARGIN_S,
            save_s=save_s,
        )
        if now_s >= leave_s:
            return Wish.LEAVE
    if plan.every_s is not None and now_s >= since_s + plan.every_s:
        return Wish.SAVE
    return None


def by_signal(number: int, job: SlurmJob | None) -> Wish:
    """What a signal asks for, by what Slurm then says of the job (None: it does not answer).

    USR1 is what a governor sends, and what `sbatch --signal=USR1@60` asks for. Slurm itself sends TERM: before it takes
    the nodes away for other work, at the time limit, when the job is requeued, and when it is cancelled.
    """
    states = frozenset[str]() if job is None else frozenset(job.states)
    if number == signal.SIGTERM and "CANCELLED" in states:
        return Wish.END
    if states & {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
        return Wish.LEAVE_REQUEUED
    return Wish.LEAVE


def is_governed(job: SlurmJob | None) -> bool:
    """Whether Gleaner decides when it starts again: then it is requeued held."""
    return job is not None and job.admin_comment.startswith(GOVERNED)


def was_asked_before(job: SlurmJob) -> bool:
    """Return whether the job was asked to leave before it could hear that: Slurm drops a signal that no step takes.

    Of a job that starts again the comment may be of an earlier time, if its owner has released it without Gleaner.
    """
    return job.restarts == 0 and job.admin_comment.startswith(ASKED_TO_LEAVE)
