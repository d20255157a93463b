"""The one place that writes `Job.state`: each transition is one guarded UPDATE, with its event.

A transition works in the caller's transaction. Of two callers that race for a job, the UPDATE of the second finds the
state changed and is refused. A report is let through only for the job's latest attempt, and only while that attempt
runs or was merely given up as lost.

What belongs together (the job, its attempt, the event) goes to PostgreSQL as one statement with data-modifying CTEs,
because the round trips cost more than the work. SQLite has neither such CTEs nor a network: it gets the same statements
one by one.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Float,
    Integer,
    String,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.sql.selectable import ScalarSelect

from gleaner.control.queue.errors import NotCurrent, NotFound, TransitionRefused
from gleaner.control.queue.tables import ANY_KIND, ATTEMPT, CHECKPOINT, EVENT, JOB, LANE, SAVING, SPEC, LaneWish
from gleaner.control.states import State, Transition

_ADD_EVENT = insert(EVENT).inline()
_LOCK = select(JOB).where(JOB.c.id == bindparam("job_")).with_for_update()
_EVENT_COLUMNS = ["job", "attempt", "at_s", "what", "detail"]


def _lane_of_new() -> ScalarSelect[int]:
    mine, new = LANE.alias("mine"), LANE.alias("new")
    same = and_(*(new.c[name] == mine.c[name] for name in LaneWish.model_fields))
    anywhere = and_(new.c.not_on == (), new.c.only_on == literal_column("''"), ~new.c.is_closed)
    kind = case((SPEC.c.saves_itself, ANY_KIND), else_=SAVING)
    return (
        select(new.c.id)
        .join_from(mine, new, and_(same, anywhere))
        .join(SPEC, SPEC.c.id == JOB.c.spec)
        .where(mine.c.id == JOB.c.lane, new.c.kind == kind)
        .correlate(JOB)
        .scalar_subquery()
    )


LANE_OF_NEW = _lane_of_new()
"""The lane in which the job waits to start from its beginning. It exists since the job was submitted."""


def make_transition(
    db: Connection,
    job: int,
    transition: Transition,
    *,
    now_s: float,
    attempt: int | None = None,
    detail: str = "",
    end: Mapping[str, object] | None = None,
    **facts: object,
) -> None:
    """Make the transition, with the facts that its target state needs.

    With `attempt` it is a report: that attempt must be the latest, and must run or have been given up as lost. `end`
    holds the columns of the attempt that the transition ends, and goes only with `attempt`.

    Raises `NotFound`, `NotCurrent` or `TransitionRefused`.
    """
    values = {f"to_{name}": value for name, value in facts.items()} | {"job_": job}
    if attempt is not None:
        values["attempt_"] = attempt
    if transition.target is State.COMPLETE:
        values["now_"] = now_s
    ended = {f"end_{name}": value for name, value in (end or {}).items()}
    shape = (transition, tuple(sorted(facts)), attempt is not None)
    event = event_row(job, event_name(transition), now_s=now_s, attempt=attempt, detail=detail)
    if db.dialect.name == "postgresql":
        told = {f"event_{name}": value for name, value in event.items() if name != "job"}
        if not run(db, _in_one(*shape, tuple(sorted(end or ()))), values | ended | told).rowcount:
            refuse(db, job, transition, attempt)
        return
    if not run(db, _guarded(*shape), values).rowcount:
        refuse(db, job, transition, attempt)
    if end:
        run(db, _ended(tuple(sorted(end))), ended | {"job_": job, "attempt_": attempt})
    run(db, _ADD_EVENT, event)


def complete_all(
    db: Connection,
    which: ColumnElement[bool],
    transition: Transition,
    *,
    now_s: float,
    detail: str = "",
    **facts: object,
) -> None:
    """Complete all these jobs by one transition. Their rows are locked, so that none of them changes meanwhile."""
    values = {f"to_{name}": value for name, value in facts.items()} | {"now_": now_s}
    record_all(db, which, event_name(transition), now_s=now_s, detail=detail)
    run(db, update(JOB).where(which, _from(transition)).values(_facts(transition, tuple(facts))), values)


def run(
    db: Connection, statement: Any, values: Mapping[str, object] | Sequence[Mapping[str, object]]
) -> CursorResult[Any]:
    """Execute a Core statement: once, or once for each of several values."""
    if not isinstance(values, Mapping) and len(values) == 1:
        values = values[0]  # a driver's executemany costs more than one execute
    return db.execute(statement, values)


def insert_unless_there(db: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that skips rows whose key is taken.

    It waits for a transaction that has taken the key and has not ended.
    """
    if db.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def record(db: Connection, job: int, what: str, *, now_s: float, attempt: int | None = None, detail: str = "") -> None:
    """Write down an event of the job."""
    run(db, _ADD_EVENT, event_row(job, what, now_s=now_s, attempt=attempt, detail=detail))


def record_all(db: Connection, which: ColumnElement[bool], what: str, *, now_s: float, detail: str = "") -> None:
    """Write down the same event for all these jobs."""
    same = [literal(now_s, Float), literal(what, String), literal(detail, Text)]
    told = select(JOB.c.id, null(), *same).where(which).order_by(JOB.c.id)
    db.execute(insert(EVENT).from_select(_EVENT_COLUMNS, told).inline())


def event_name(transition: Transition) -> str:
    """Return the transition in the words of the job's history.

    >>> event_name(Transition.START_OVER)
    'start over'
    """
    return transition.name.lower().replace("_", " ")


def event_row(job: int, what: str, *, now_s: float, attempt: int | None = None, detail: str = "") -> dict[str, object]:
    """Return one event as a row."""
    return {"job": job, "attempt": attempt, "at_s": now_s, "what": what, "detail": detail}


def lock(db: Connection, job: int) -> Any:
    """Return the job's row, locked until the transaction ends. Raises `NotFound`."""
    row = db.execute(_LOCK, {"job_": job}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job}")
    return row


def refuse(db: Connection, job: int, transition: Transition, attempt: int | None) -> None:
    """Raise what is wrong with a transition that did not happen."""
    row = lock(db, job)
    if attempt is not None and row.attempt != attempt:
        latest = f"attempt {row.attempt} is the latest" if row.attempt else "it was never claimed"
        raise NotCurrent(job, attempt, latest)
    found = f"{row.state} ({row.outcome})" if row.outcome else str(row.state)
    if attempt is not None and row.state != State.RUNNING and not row.lost:
        raise NotCurrent(job, attempt, f"it has ended, the job is {found}")
    raise TransitionRefused(job, transition, found + (", held" if row.held else ""))


@cache
def _guarded(transition: Transition, facts: tuple[str, ...], is_report: bool) -> Update:
    guards: list[ColumnElement[bool]] = [JOB.c.id == bindparam("job_"), _from(transition)]
    if is_report:
        runs = literal_column(f"job.state = '{State.RUNNING}'", Boolean)
        guards += [JOB.c.attempt == bindparam("attempt_"), or_(runs, JOB.c.lost)]
    return update(JOB).where(and_(*guards)).values(_facts(transition, facts))


def _facts(transition: Transition, facts: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns that the transition sets: what its target state implies, and what the caller names."""
    values: dict[str, Any] = {name: bindparam(f"to_{name}", type_=JOB.c[name].type) for name in facts}
    values["state"] = transition.target
    values.setdefault("lost", false())
    if transition.target is not State.RUNNING:
        values["agent"] = null()
    if transition.target is State.NEW:
        values |= {"from_attempt": null(), "from_number": null(), "lane": LANE_OF_NEW}
    if transition.target is State.COMPLETE:
        values |= {"ended_s": bindparam("now_"), "held": false(), "hold_reason": null()}
    return values


def _from(transition: Transition) -> ColumnElement[bool]:
    sources = ", ".join(f"'{state}'" for state in sorted(transition.sources))
    return literal_column(f"job.state IN ({sources})", Boolean)


@cache
def _ended(end: tuple[str, ...]) -> Update:
    which = and_(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
    return update(ATTEMPT).where(which).values({name: _end(name) for name in end})


@cache
def _in_one(transition: Transition, facts: tuple[str, ...], is_report: bool, end: tuple[str, ...]) -> Insert:
    """Return one statement: the job's UPDATE; where that found its row, the attempt's UPDATE and the event."""
    moved = _guarded(transition, facts, is_report).returning(JOB.c.id).cte("moved")
    event = [bindparam(f"event_{name}", type_=EVENT.c[name].type) for name in _EVENT_COLUMNS[1:]]
    told = insert(EVENT).from_select(_EVENT_COLUMNS, select(moved.c.id, *event)).inline()
    if end:
        # By key and not by a join: a plan made while the table was small would scan it when it is large.
        ended = _ended(end).where(exists(select(moved.c.id)))
        told = told.add_cte(ended.returning(ATTEMPT.c.job).cte("ended"))
    return told.execution_options(preserve_rowcount=True)


def _end(name: str) -> Any:
    return bindparam(f"end_{name}", type_=ATTEMPT.c[name].type)


class Takeable(Protocol):
    """The columns of a job that `take` needs."""

    @property
    def id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def from_attempt(self) -> int | None: ...
    @property
    def from_number(self) -> int | None: ...
    @property
    def log_lines(self) -> int | None: ...


def take(db: Connection, jobs: Sequence[Takeable], *, agent: str, node: str, now_s: float) -> None:
    """Make the transition CLAIM for waiting jobs whose rows this transaction has locked. Each gets its next attempt."""
    event = {"at_s": now_s, "what": event_name(Transition.CLAIM), "detail": f"by {agent} on {node}"}
    if db.dialect.name == "postgresql":
        told = {f"event_{name}": value for name, value in event.items()}
        values = {"ids_": [job.id for job in jobs], "agent_": agent, "node_": node} | told
        taken = run(db, _TAKE_IN_ONE, values).rowcount
    else:
        keys = [{"job_": job.id, "before_": job.attempt, "agent_": agent} for job in jobs]
        taken = run(db, _TAKE, keys).rowcount
        run(db, _ADD_ATTEMPT, [_attempt_row(job, agent=agent, node=node, now_s=now_s) for job in jobs])
        run(db, _ADD_EVENT, [{"job": job.id, "attempt": job.attempt + 1} | event for job in jobs])
    if taken != len(jobs):
        raise RuntimeError(f"{len(jobs)} locked jobs, of which only {taken} could be claimed")


_TAKEN = {
    "state": Transition.CLAIM.target,
    "attempt": JOB.c.attempt + 1,
    "agent": bindparam("agent_", type_=String),
    "lost": false(),
}
_TAKE = (
    update(JOB)
    .where(JOB.c.id == bindparam("job_"), JOB.c.attempt == bindparam("before_"), _from(Transition.CLAIM))
    .values(_TAKEN)
)
_ADD_ATTEMPT = insert(ATTEMPT).inline()


def _attempt_row(job: Takeable, *, agent: str, node: str, now_s: float) -> dict[str, object]:
    return {
        "job": job.id,
        "attempt": job.attempt + 1,
        "agent": agent,
        "node": node,
        "claimed_s": now_s,
        "detail": "",
        "from_attempt": job.from_attempt,
        "from_number": job.from_number,
        "log_from": job.log_lines or 0,
        **dict.fromkeys(_TIMES, 0.0),
    }


_TIMES = ("start_s", "restore_s", "compute_s", "save_s", "counted_s")


def _take_in_one() -> Insert:
    ids = bindparam("ids_", type_=postgresql.ARRAY(BigInteger))
    moved = (
        update(JOB)
        .where(JOB.c.id == any_(ids), _from(Transition.CLAIM))
        .values(_TAKEN)
        .returning(JOB.c.id, JOB.c.attempt, JOB.c.from_attempt, JOB.c.from_number)
        .cte("moved")
    )
    now_s = bindparam("event_at_s", type_=Float)
    nothing = literal_column("0.0", Float)
    goes_on = and_(
        CHECKPOINT.c.job == moved.c.id,
        CHECKPOINT.c.attempt == moved.c.from_attempt,
        CHECKPOINT.c.number == moved.c.from_number,
    )
    log_lines = select(CHECKPOINT.c.log_lines).where(goes_on).scalar_subquery()
    made: dict[str, Any] = {
        "job": moved.c.id,
        "attempt": moved.c.attempt,
        "agent": bindparam("agent_", type_=String),
        "node": bindparam("node_", type_=String),
        "claimed_s": now_s,
        "detail": literal_column("''", Text),
        "from_attempt": moved.c.from_attempt,
        "from_number": moved.c.from_number,
        "log_from": func.coalesce(log_lines, literal_column("0", Integer)),
        **dict.fromkeys(_TIMES, nothing),
    }
    begun = insert(ATTEMPT).from_select(list(made), select(*made.values()).select_from(moved))
    event = [now_s, bindparam("event_what", type_=String), bindparam("event_detail", type_=Text)]
    told = insert(EVENT).from_select(_EVENT_COLUMNS, select(moved.c.id, moved.c.attempt, *event)).inline()
    begun_once = begun.inline().returning(ATTEMPT.c.job).cte("begun")
    return told.add_cte(begun_once).execution_options(preserve_rowcount=True)


_TAKE_IN_ONE = _take_in_one()
