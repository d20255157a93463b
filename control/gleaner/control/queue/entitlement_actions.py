"""Control's actions on the owners' jobs, stored so that a restarted control can continue."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from gleaner.control.queue.tables import ACTED, TOLD


@dataclass(frozen=True, slots=True)
class JobActions:
    """Control's actions on one job, with their times.

    `released_s` is set when the job is allowed to start, and `told_s` when it is preempted.
    """

    job: str
    released_s: float | None = None
    at_top: bool = False
    told_s: float | None = None


def actions(db: Connection) -> dict[str, JobActions]:
    """Return the recorded actions on each job, by the job's id."""
    rows = db.execute(select(ACTED))
    return {row.job: JobActions(row.job, row.released_s, row.at_top, row.told_s) for row in rows}


def record_action(db: Connection, job: JobActions) -> None:
    """Record the action that was, or is about to be, taken on the job."""
    values = {"released_s": job.released_s, "at_top": job.at_top, "told_s": job.told_s}
    if not db.execute(update(ACTED).where(ACTED.c.job == job.job).values(values)).rowcount:
        db.execute(insert(ACTED), {"job": job.job} | values)


def record_preemption(db: Connection, job: str, now_s: float) -> None:
    """Record that an owner's job is preempted. It counts towards the hourly limit."""
    db.execute(insert(TOLD), {"job": job, "at_s": now_s})


def preemptions_since(db: Connection, since_s: float) -> int:
    """Return how many jobs of owners were preempted since that time."""
    return int(db.execute(select(func.count()).select_from(TOLD).where(TOLD.c.at_s >= since_s)).scalar_one())


def forget(db: Connection, jobs: Collection[str], *, told_before_s: float) -> None:
    """Remove the rows of these jobs, and the preemptions before that time."""
    if jobs:
        db.execute(delete(ACTED).where(ACTED.c.job.in_(jobs)))
    db.execute(delete(TOLD).where(TOLD.c.at_s < told_before_s))
