"""What control has done to the owners' jobs, so that one that was killed and started again can go on."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from gleaner.control.queue.governed_tables import GOVERNED, TOLD


@dataclass(frozen=True, slots=True)
class GovernedJob:
    """What was done to one job, and when. `released_s`: it may start; `told_s`: it was told to give way."""

    job: str
    released_s: float | None = None
    at_top: bool = False
    told_s: float | None = None


def all_of_them(db: Connection) -> dict[str, GovernedJob]:
    """All that something was done to."""
    rows = db.execute(select(GOVERNED))
    return {row.job: GovernedJob(row.job, row.released_s, row.at_top, row.told_s) for row in rows}


def note(db: Connection, job: GovernedJob) -> None:
    """Something has been, or is about to be done to it."""
    values = {"released_s": job.released_s, "at_top": job.at_top, "told_s": job.told_s}
    if not db.execute(update(GOVERNED).where(GOVERNED.c.job == job.job).values(values)).rowcount:
        db.execute(insert(GOVERNED), {"job": job.job} | values)


def count_told(db: Connection, job: str, now_s: float) -> None:
    """A job of an owner's was told to give way: one more for the ceiling of this hour."""
    db.execute(insert(TOLD), {"job": job, "at_s": now_s})


def told_since(db: Connection, since_s: float) -> int:
    """How many owners' jobs were told to give way since then."""
    return int(db.execute(select(func.count()).select_from(TOLD).where(TOLD.c.at_s >= since_s)).scalar_one())


def forget(db: Connection, jobs: Collection[str], *, told_before_s: float) -> None:
    """Of these nothing is left to remember."""
    if jobs:
        db.execute(delete(GOVERNED).where(GOVERNED.c.job.in_(jobs)))
    db.execute(delete(TOLD).where(TOLD.c.at_s < told_before_s))
