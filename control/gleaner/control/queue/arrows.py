"""The one place that writes `Job.state`. Each move is one guarded UPDATE and an event, in the caller's transaction.

Of two callers that race for a job, the UPDATE of the second finds the state changed and is refused. A report is
let through only for the job's latest attempt, and only while that runs or was merely given up as lost.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Boolean, Table, Text, and_, bindparam, false, insert, literal_column, null, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import Insert, Update
from sqlmodel import Session

from gleaner.control.life import Move, State
from gleaner.control.queue.errors import MoveRefused, NotCurrent, Unknown
from gleaner.control.queue.tables import EVENT, JOB, listed

_ADD_EVENT = insert(EVENT).inline()


def move(
    db: Session, job: int, move: Move, *, now_s: float, attempt: int | None = None, detail: str = "", **facts: object
) -> None:
    """Make the move, with the facts that its target state needs, or raise `Unknown`, `NotCurrent`, `MoveRefused`.

    With `attempt` it is a report: that attempt must be the latest, and running or given up as lost.
    """
    statement = _guarded(move, tuple(sorted(facts)), attempt is not None)
    values = {f"to_{name}": value for name, value in facts.items()} | {"job_": job}
    if attempt is not None:
        values["attempt_"] = attempt
    if move.target is State.COMPLETE:
        values["now_"] = now_s
    result = run(db, statement, values)
    if result.rowcount == 0:
        refuse(db, job, move, attempt)
    record(db, job, move.name.lower(), now_s=now_s, attempt=attempt, detail=detail)


def run(
    db: Session, statement: Any, values: Mapping[str, object] | Sequence[Mapping[str, object]]
) -> CursorResult[Any]:
    """Execute a Core statement: once, or once for each of several values."""
    if not isinstance(values, Mapping) and len(values) == 1:
        values = values[0]  # a driver's executemany costs more than one execute
    return db.connection().execute(statement, values)


def insert_unless_there(db: Session, table: Table) -> Insert:
    """An INSERT that skips rows whose key is taken, also by a transaction that has not ended (it is waited for)."""
    if db.connection().dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def record(db: Session, job: int, what: str, *, now_s: float, attempt: int | None = None, detail: str = "") -> None:
    """Write down that something happened to the job."""
    run(db, _ADD_EVENT, event_row(job, what, now_s=now_s, attempt=attempt, detail=detail))


def record_all(db: Session, events: Sequence[Mapping[str, object]]) -> None:
    """Write down several events made by `event_row`."""
    if events:
        run(db, _ADD_EVENT, events)


def event_row(job: int, what: str, *, now_s: float, attempt: int | None = None, detail: str = "") -> dict[str, object]:
    """One event, for `record_all`."""
    return {"job": job, "attempt": attempt, "at_s": now_s, "what": what, "detail": detail}


def lock(db: Session, job: int) -> Any:
    """The job's row, locked until the transaction ends. Raises `Unknown`."""
    row = db.connection().execute(_LOCK, {"job_": job}).one_or_none()
    if row is None:
        raise Unknown(f"there is no job {job}")
    return row


_LOCK = select(JOB).where(JOB.c.id == bindparam("job_")).with_for_update()


def refuse(db: Session, job: int, move: Move, attempt: int | None) -> None:
    """Raise what is wrong with a move that did not happen."""
    row = lock(db, job)
    if attempt is not None and row.attempt != attempt:
        latest = f"attempt {row.attempt} is the latest" if row.attempt else "it was never claimed"
        raise NotCurrent(job, attempt, latest)
    found = f"{row.state} ({row.outcome})" if row.outcome else str(row.state)
    if attempt is not None and row.state != State.RUNNING and not row.lost:
        raise NotCurrent(job, attempt, f"it has ended, the job is {found}")
    raise MoveRefused(job, move, found + (", held" if row.held else ""))


def reportable() -> ColumnElement[bool]:
    """Whether the job's latest attempt may still report how it ended."""
    return or_(JOB.c.state == literal_column(f"'{State.RUNNING}'", Text), JOB.c.lost)


@cache
def _guarded(move: Move, facts: tuple[str, ...], is_report: bool) -> Update:
    sources = literal_column(f"job.state IN ({listed(*move.sources)})", Boolean)
    guards: list[ColumnElement[bool]] = [JOB.c.id == bindparam("job_"), sources]
    if is_report:
        guards += [JOB.c.attempt == bindparam("attempt_"), reportable()]
    values: dict[str, Any] = {name: bindparam(f"to_{name}", type_=JOB.c[name].type) for name in facts}
    values["state"] = move.target
    values.setdefault("lost", false())
    if move.target is not State.RUNNING:
        values["agent"] = null()
    if move.target is State.NEW:
        values |= {"from_attempt": null(), "from_number": null()}
    if move.target is State.COMPLETE:
        values |= {"ended_s": bindparam("now_"), "held": false(), "hold_reason": null()}
    return update(JOB).where(and_(*guards)).values(values)
