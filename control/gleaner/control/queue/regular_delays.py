"""The delays of regular jobs that took nodes from agents. Only the leader writes here."""

from collections.abc import Iterable

from sqlalchemy import Connection, case, delete, insert, select, update

from gleaner.control.policy.harm import Delay
from gleaner.control.queue.tables import REGULAR_DELAY


def record(db: Connection, delays: Iterable[Delay]) -> None:
    """Record these delays, one for each start.

    If a start is recorded twice, the shorter delay counts, because the agent that was found later also left later.
    """
    for one in delays:
        key = {"job": one.job, "start_s": one.start_s}
        known_s = REGULAR_DELAY.c.delay_s
        shorter = case((known_s > one.delay_s, one.delay_s), else_=known_s)
        if not db.execute(update(REGULAR_DELAY).filter_by(**key).values(delay_s=shorter)).rowcount:
            db.execute(insert(REGULAR_DELAY).values(**key, delay_s=one.delay_s))


def delays_s(db: Connection, *, begin_s: float, end_s: float) -> list[float]:
    """Return the delays, in seconds, of the jobs that started between these times."""
    started = (REGULAR_DELAY.c.start_s >= begin_s) & (REGULAR_DELAY.c.start_s < end_s)
    return list(db.execute(select(REGULAR_DELAY.c.delay_s).where(started)).scalars())


def remove_old(db: Connection, *, before_s: float) -> int:
    """Remove the delays of jobs that started before that time. Return how many."""
    return db.execute(delete(REGULAR_DELAY).where(REGULAR_DELAY.c.start_s < before_s)).rowcount
