"""The only module that writes `Job.state`. Each transition is one guarded UPDATE, with its event.

A transition works in the caller's transaction. If two callers race for a job, the UPDATE of the second finds the state
changed and is refused. A report is accepted only for the job's latest attempt, and only while that attempt runs or was
merely assumed to be lost.

PostgreSQL receives a transition (of the job, its attempt and the event) as one statement with data-modifying CTEs,
because three statements would reduce the rate of completions by 30 %. SQLite has no such CTEs and receives the same
statements one by one. A claim works in the same way, with three statements for any number of jobs.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from sqlalchemy import (
    Boolean,
    Connection,
    Float,
    Integer,
    Select,
    String,
    Table,
    Text,
    and_,
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
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import Insert, ReturningUpdate, Update
from sqlalchemy.sql.selectable import ScalarSelect

from gleaner.control.queue.errors import NotCurrent, NotFound, TransitionRefused
from gleaner.control.queue.tables import (
    ANY_KIND,
    ATTEMPT,
    CAMPAIGN,
    CHECKPOINT,
    EVENT,
    JOB,
    LANE,
    SAVING,
    SPEC,
    LaneWish,
)
from gleaner.control.states import State, Transition

_ADD_EVENT = insert(EVENT).inline()
_LOCK = select(JOB).where(JOB.c.id == bindparam("job_")).with_for_update()
_EVENT_COLUMNS = ["job", "attempt", "at_s", "what", "detail"]


def _lane_of_new() -> ScalarSelect[int]:
    mine, new = LANE.alias("mine"), LANE.alias("new")
    same = and_(*(new.c[name] == mine.c[name] for name in LaneWish.model_fields))
    anywhere = and_(new.c.not_on == (), new.c.only_on == literal_column("''"), ~new.c.is_closed, ~new.c.is_saved)
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
"""The lane in which the job waits to start from the beginning. It has existed since the job's submission."""


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
) -> bool:
    """Make the transition, with the facts that its target state needs.

    Return True if the job belongs to a campaign that counts the ends of its jobs (see `campaign_rules`).

    With `attempt`, the transition is a report. That attempt must be the latest, and must run or have been given up as
    lost. `end` contains the columns of the attempt that the transition ends, and is used only with `attempt`.

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
        row = db.execute(_in_one(*shape, tuple(sorted(end or ()))), values | ended | told).one_or_none()
        return refuse(db, job, transition, attempt) if row is None else bool(row.counts)
    row = db.execute(_guarded(*shape), values).one_or_none()
    if row is None:
        refuse(db, job, transition, attempt)
    if end:
        db.execute(_ended(tuple(sorted(end))), ended | {"job_": job, "attempt_": attempt})
    db.execute(_ADD_EVENT, event)
    return bool(row.counts)


def make_for_all(
    db: Connection,
    which: ColumnElement[bool],
    transition: Transition,
    *,
    now_s: float,
    detail: str = "",
    **facts: object,
) -> None:
    """Make the same transition for all these jobs.

    The caller has locked their rows, so that they cannot change in the meantime.
    """
    values = {f"to_{name}": value for name, value in facts.items()}
    if transition.target is State.COMPLETE:
        values["now_"] = now_s
    record_all(db, which, event_name(transition), now_s=now_s, detail=detail)
    db.execute(update(JOB).where(which, _from(transition)).values(_facts(transition, tuple(facts))), values)


def insert_unless_there(db: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that skips rows whose key exists.

    The statement waits for an open transaction that has inserted the same key.
    """
    if db.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def ensure_row(db: Connection, table: Table, **key: object) -> Any:
    """Return the row with this key, locked until the transaction ends. It is added if it does not exist."""
    find = select(table).where(*(table.c[name] == value for name, value in key.items())).with_for_update()
    row = db.execute(find).one_or_none()
    if row is None:
        db.execute(insert_unless_there(db, table), key)
        row = db.execute(find).one()
    return row


def put_on_hold(db: Connection, row: Any, *, reason: str, now_s: float) -> None:
    """Hold a job whose row is locked. A job that is already held keeps its first reason."""
    if row.held:
        return
    db.execute(update(JOB).where(JOB.c.id == row.id).values(held=True, hold_reason=reason))
    record(db, row.id, "hold", now_s=now_s, detail=reason)


def record(db: Connection, job: int, what: str, *, now_s: float, attempt: int | None = None, detail: str = "") -> None:
    """Add an event to the job's history."""
    db.execute(_ADD_EVENT, event_row(job, what, now_s=now_s, attempt=attempt, detail=detail))


def record_all(db: Connection, which: ColumnElement[bool], what: str, *, now_s: float, detail: str = "") -> None:
    """Add the same event for all these jobs."""
    same = [literal(now_s, Float), literal(what, String), literal(detail, Text)]
    told = select(JOB.c.id, null(), *same).where(which).order_by(JOB.c.id)
    db.execute(insert(EVENT).from_select(_EVENT_COLUMNS, told).inline())


def event_name(transition: Transition) -> str:
    """Return the name of the transition in the job's history.

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


def refuse(db: Connection, job: int, transition: Transition, attempt: int | None) -> NoReturn:
    """Raise the error that explains why a transition was refused."""
    row = lock(db, job)
    if attempt is not None and row.attempt != attempt:
        latest = f"attempt {row.attempt} is the latest" if row.attempt else "it was never claimed"
        raise NotCurrent(job, attempt, latest)
    found = f"{row.state} ({row.outcome})" if row.outcome else str(row.state)
    if attempt is not None and row.state != State.RUNNING and not row.lost:
        raise NotCurrent(job, attempt, f"it has ended, the job is {found}")
    raise TransitionRefused(job, transition, found + (", held" if row.held else ""))


@cache
def _guarded(transition: Transition, facts: tuple[str, ...], is_report: bool) -> ReturningUpdate[Any, bool]:
    guards: list[ColumnElement[bool]] = [JOB.c.id == bindparam("job_"), _from(transition)]
    if is_report:
        runs = literal_column(f"job.state = '{State.RUNNING}'", Boolean)
        guards += [JOB.c.attempt == bindparam("attempt_"), or_(runs, JOB.c.lost)]
    has_rules = CAMPAIGN.c.waiting_lane.is_not(None) | CAMPAIGN.c.failures_left.is_not(None)
    counts = exists(select(CAMPAIGN.c.id).where(CAMPAIGN.c.id == JOB.c.campaign, has_rules)).label("counts")
    return update(JOB).where(and_(*guards)).values(_facts(transition, facts)).returning(JOB.c.id, counts)


def _facts(transition: Transition, facts: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns that the transition sets: those that its target state implies, and those of the caller."""
    values: dict[str, Any] = {name: bindparam(f"to_{name}", type_=JOB.c[name].type) for name in facts}
    values["state"] = transition.target
    values.setdefault("lost", false())
    if transition.target is not State.RUNNING:
        values["agent"] = null()
    if transition.target is State.NEW:
        values |= {"from_attempt": null(), "from_number": null()}
        values.setdefault("lane", LANE_OF_NEW)
    if transition is Transition.RERUN:
        values |= dict.fromkeys(("outcome", "exit_code", "ended_s", "output_digest", "output_bytes"), null())
        values |= dict.fromkeys(("sound_attempt", "earlier_attempts"), JOB.c.attempt)
        values |= {"failures": 0, "is_removed": false()}
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
def _in_one(transition: Transition, facts: tuple[str, ...], is_report: bool, end: tuple[str, ...]) -> Select[Any]:
    """Return one statement with the job's UPDATE and, if it found its row, the attempt's UPDATE and the event."""
    moved = _guarded(transition, facts, is_report).cte("moved")
    event = [bindparam(f"event_{name}", type_=EVENT.c[name].type) for name in _EVENT_COLUMNS[1:]]
    told = insert(EVENT).from_select(_EVENT_COLUMNS, select(moved.c.id, *event)).inline()
    done = select(moved.c.counts).add_cte(told.returning(EVENT.c.job).cte("told"))
    if end:
        # The row is found by its key and not by a join, because a plan that was made while the table was small would
        # scan it when it is large.
        ended = _ended(end).where(exists(select(moved.c.id)))
        done = done.add_cte(ended.returning(ATTEMPT.c.job).cte("ended"))
    return done


def _end(name: str) -> Any:
    return bindparam(f"end_{name}", type_=ATTEMPT.c[name].type)


def take(db: Connection, jobs: Sequence[int], *, agent: str, node: str, now_s: float) -> None:
    """Make the transition CLAIM for waiting jobs whose rows this transaction has locked. Each begins its next
    attempt."""
    values = {"ids_": jobs, "agent_": agent, "node_": node, "now_": now_s, "detail_": f"by {agent} on {node}"}
    if db.dialect.name == "postgresql":
        taken = db.execute(_TAKE_IN_ONE, values).rowcount
    else:
        db.execute(_BEGIN_ATTEMPTS, values)
        db.execute(_ADD_CLAIMS, values)
        taken = db.execute(_TAKE, values).rowcount
    if taken != len(jobs):
        raise RuntimeError(f"{len(jobs)} locked jobs, of which only {taken} could be claimed")


_TAKEN = JOB.c.id.in_(bindparam("ids_", expanding=True))
_TAKE = (
    update(JOB)
    .where(_TAKEN, _from(Transition.CLAIM))
    .values(state=Transition.CLAIM.target, attempt=JOB.c.attempt + 1, agent=bindparam("agent_"), lost=false())
)


def _insert_for_taken(table: Table, **values: Any) -> Insert:
    """Return the statement that adds one row for each claimed job. It sees the job as it was before the claim."""
    rows = select(*values.values()).where(_TAKEN)
    return insert(table).from_select(list(values), rows).inline()


_BEGIN_ATTEMPTS = _insert_for_taken(
    ATTEMPT,
    job=JOB.c.id,
    attempt=JOB.c.attempt + 1,
    agent=bindparam("agent_", type_=String),
    node=bindparam("node_", type_=String),
    claimed_s=bindparam("now_", type_=Float),
    detail=literal_column("''", Text),
    from_attempt=JOB.c.from_attempt,
    from_number=JOB.c.from_number,
    log_from=func.coalesce(
        select(CHECKPOINT.c.log_lines)
        .where(
            CHECKPOINT.c.job == JOB.c.id,
            CHECKPOINT.c.attempt == JOB.c.from_attempt,
            CHECKPOINT.c.number == JOB.c.from_number,
        )
        .scalar_subquery(),
        literal_column("0", Integer),
    ),
    **dict.fromkeys(
        ("start_s", "restore_s", "memory_s", "compute_s", "save_s", "counted_s"), literal_column("0.0", Float)
    ),
)
_ADD_CLAIMS = _insert_for_taken(
    EVENT,
    job=JOB.c.id,
    attempt=JOB.c.attempt + 1,
    at_s=bindparam("now_", type_=Float),
    what=literal_column(f"'{event_name(Transition.CLAIM)}'", String),
    detail=bindparam("detail_", type_=Text),
)
_TAKE_IN_ONE = _TAKE.add_cte(
    _BEGIN_ATTEMPTS.returning(ATTEMPT.c.job).cte("began"), _ADD_CLAIMS.returning(EVENT.c.job).cte("told")
)
