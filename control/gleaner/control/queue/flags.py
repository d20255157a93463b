"""What people change of a job: held or not, priority, cancelled. For one job, or for all of a campaign.

The event of each change says by whom it was made, as far as the caller knows it.
"""

from typing import Any

from sqlalchemy import Connection, and_, func, select, update
from sqlalchemy.sql import ColumnElement

from gleaner.control.life import Move, Outcome, State
from gleaner.control.queue import attempts
from gleaner.control.queue.arrows import lock, move, move_all, record, record_all
from gleaner.control.queue.errors import Refused
from gleaner.control.queue.tables import JOB, Ending


def hold(db: Connection, job: int, *, reason: str, now_s: float) -> None:
    """No agent may claim it until it is released; a running one is saved. Holding it again changes nothing."""
    put_on_hold(db, _incomplete(db, job, "held"), reason=reason, now_s=now_s)


def put_on_hold(db: Connection, row: Any, *, reason: str, now_s: float) -> None:
    """Hold a job whose row is locked; one that is held keeps its reason."""
    if row.held:
        return
    db.execute(update(JOB).where(JOB.c.id == row.id).values(held=True, hold_reason=reason))
    record(db, row.id, "hold", now_s=now_s, detail=reason)


def _signed(by: str) -> str:
    return f"by {by}" if by else ""


def release(db: Connection, job: int, *, now_s: float, by: str = "") -> None:
    """Agents may claim it again, and its losses count anew. Releasing what is not held changes nothing."""
    row = _incomplete(db, job, "released")
    if row.held:
        _let_go(db, JOB.c.id == job)
        record(db, job, "release", now_s=now_s, detail=_signed(by))


def _let_go(db: Connection, which: ColumnElement[bool]) -> None:
    freed = {"held": False, "hold_reason": None, "sound_attempt": JOB.c.attempt}
    db.execute(update(JOB).where(which, JOB.c.held).values(freed))


def set_priority(db: Connection, job: int, priority: int, *, now_s: float, by: str = "") -> None:
    """The higher, the sooner it is claimed."""
    row = _incomplete(db, job, "given another priority")
    db.execute(update(JOB).where(JOB.c.id == job).values(priority=priority))
    detail = f"from {row.priority} to {priority}" + (f", by {by}" if by else "")
    record(db, job, "priority", now_s=now_s, detail=detail)


def cancel(db: Connection, job: int, *, now_s: float, by: str = "") -> None:
    """End it for good; its agent is told to drop it. Cancelling it again changes nothing."""
    row = lock(db, job)
    if row.outcome is not Outcome.CANCELLED:
        _cancel(db, row, now_s, _signed(by))


def _cancel(db: Connection, row: Any, now_s: float, detail: str) -> None:
    told: dict[str, Any] = {"now_s": now_s, "detail": detail, "outcome": Outcome.CANCELLED}
    if row.state is State.RUNNING:
        end = attempts.ended(Ending.CANCELLED, ended_s=now_s)
        move(db, row.id, Move.CANCEL, attempt=row.attempt, end=end, **told)
    else:
        move(db, row.id, Move.CANCEL, **told)


def hold_campaign(db: Connection, campaign: int, *, reason: str, now_s: float) -> None:
    """Hold all jobs of it that are not Complete."""
    free = _locked_ones(db, campaign) & ~JOB.c.held
    record_all(db, free, "hold", now_s=now_s, detail=reason)
    db.execute(update(JOB).where(free).values(held=True, hold_reason=reason))


def release_campaign(db: Connection, campaign: int, *, now_s: float, by: str = "") -> None:
    """Release all jobs of it that are held."""
    held = _locked_ones(db, campaign) & JOB.c.held
    record_all(db, held, "release", now_s=now_s, detail=_signed(by))
    _let_go(db, held)


def cancel_campaign(db: Connection, campaign: int, *, now_s: float, by: str = "") -> None:
    """Cancel all jobs of it that are not Complete."""
    incomplete = _locked_ones(db, campaign)
    attempts.end_live_ones(db, campaign, attempts.ended(Ending.CANCELLED, ended_s=now_s))
    move_all(db, incomplete, Move.CANCEL, now_s=now_s, detail=_signed(by), outcome=Outcome.CANCELLED)


def _incomplete(db: Connection, job: int, what: str) -> Any:
    row = lock(db, job)
    if row.state is State.COMPLETE:
        raise Refused(f"job {job} cannot be {what}: it is Complete ({row.outcome})")
    return row


def _locked_ones(db: Connection, campaign: int) -> ColumnElement[bool]:
    """Which jobs of it are not Complete; their rows are locked in the order of their ids."""
    incomplete = and_(JOB.c.campaign == campaign, JOB.c.state != State.COMPLETE)
    rows = select(JOB.c.id).where(incomplete).order_by(JOB.c.id).with_for_update().subquery()
    db.execute(select(func.count()).select_from(rows))
    return incomplete
