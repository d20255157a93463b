"""Pauses: waiting jobs that must go nowhere for a while, and then not to the nodes where they have failed.

A job that pauses waits in a lane that is open to nobody, so that a claim steps over all of them at once. The next claim
after its time puts the job back.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, insert, literal, or_, select, update

from gleaner.control.policy.node_health import LONGEST_ELSEWHERE_S
from gleaner.control.policy.retries import LONGEST_PAUSE_S
from gleaner.control.queue import lanes
from gleaner.control.queue.schema import ANY_KIND, FIT, JOB, LANE, MIGRATION, NODE, PAUSE
from gleaner.control.states import State

WOKEN_AT_ONCE = 100
"""So many jobs at most are put back by one claim, so that no claim takes long."""


def pause(db: Connection, job: int, attempt: int, *, until_s: float, not_on: Sequence[str]) -> None:
    """Offer the job to nobody until then, and after that for a while not to these nodes."""
    lanes.close(db, job)
    _note(db, job, attempt, wakes_s=until_s, not_on=not_on)


def keep_off(db: Connection, job: int, attempt: int, nodes: Sequence[str], *, now_s: float) -> None:
    """Offer the job to these nodes no more for a while: there may be no others."""
    for node in nodes:
        lanes.keep_off(db, job, node)
    _note(db, job, attempt, wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=())


def unless_nowhere_else(db: Connection, job: int, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return these nodes, if an agent was ever on another one that fits the job; else none, for the job must go on
    somewhere."""
    mine: Any = db.execute(
        select(JOB.c.from_attempt, JOB.c.from_number, LANE.c.kind)
        .join(LANE, LANE.c.id == JOB.c.lane)
        .where(JOB.c.id == job)
    ).one()
    wanted = tuple(sorted(set(nodes)))
    refused = lanes.refusing(db, job, (mine.from_attempt, mine.from_number))
    fits = or_(literal(mine.kind == ANY_KIND), exists().where(FIT.c.saved_on == mine.kind, FIT.c.node == NODE.c.kind))
    other = select(NODE.c.name).where(NODE.c.kind.is_not(None), NODE.c.name.not_in({*wanted, *refused}), fits)
    return wanted if db.execute(other.limit(1)).one_or_none() else ()


def wake(db: Connection, now_s: float) -> None:
    """Put back the jobs whose time is over. Jobs that another claim puts back at this moment are passed over."""
    due = (
        select(PAUSE, JOB.c.state, JOB.c.attempt.label("latest"), MIGRATION.c.job.is_not(None).label("is_moved"))
        .join_from(PAUSE, JOB, JOB.c.id == PAUSE.c.job)
        .outerjoin(MIGRATION, and_(MIGRATION.c.job == JOB.c.id, PAUSE.c.attempt < JOB.c.attempt))
        .where(PAUSE.c.wakes_s <= now_s)
        .order_by(PAUSE.c.wakes_s, PAUSE.c.job)
        .limit(WOKEN_AT_ONCE)
        .with_for_update(of=[PAUSE, JOB], skip_locked=True)
    )
    for row in db.execute(due).all():
        _wake(db, row, now_s)


def is_due(db: Connection, now_s: float) -> bool:
    """Return True if a job's time is over, so that it is to be put back."""
    return db.execute(select(PAUSE.c.job).where(PAUSE.c.wakes_s <= now_s).limit(1)).one_or_none() is not None


def limit(db: Connection, now_s: float) -> None:
    """Let no job pause longer than any may, as it would where the clock has been set back."""
    most_s = max(LONGEST_PAUSE_S, LONGEST_ELSEWHERE_S)
    db.execute(update(PAUSE).where(PAUSE.c.wakes_s > now_s + most_s).values(wakes_s=now_s))


def until(db: Connection, job: int) -> float | None:
    """Return the time until which the job pauses; None if it does not."""
    found = select(PAUSE.c.wakes_s).join(JOB, JOB.c.id == PAUSE.c.job).where(PAUSE.c.job == job)
    found = found.where(JOB.c.attempt == PAUSE.c.attempt, JOB.c.lane.in_(lanes.CLOSED))
    return db.execute(found).scalar_one_or_none()


def _wake(db: Connection, row: Any, now_s: float) -> None:
    mine = PAUSE.c.job == row.job
    if row.state is State.COMPLETE or row.is_moved:
        db.execute(delete(PAUSE).where(mine))
        return
    # Also a job that was claimed since: lost before it is saved again, it would wait for other nodes for ever.
    is_later = row.latest != row.attempt
    lanes.open_to(db, row.job, not_on=() if is_later else row.not_on.split())
    if row.not_on and not is_later:
        db.execute(update(PAUSE).where(mine).values(wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=""))
    else:
        db.execute(delete(PAUSE).where(mine))


def _note(db: Connection, job: int, attempt: int, *, wakes_s: float, not_on: Sequence[str]) -> None:
    db.execute(delete(PAUSE).where(PAUSE.c.job == job))
    db.execute(insert(PAUSE), {"job": job, "attempt": attempt, "wakes_s": wakes_s, "not_on": " ".join(not_on)})
