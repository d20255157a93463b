"""Retention: the removal of rows that are too old according to the settings.

Jobs and their attempts stay, because reports count them. At the next pass, a removed job loses the rows that other jobs
lose when they are old, and `storage_gc` deletes the files of results that are given up here. Rows are removed in small
portions, between which other writers have their turn. After an interruption, the next pass examines everything again.
Each query reads a limited number of rows by key, and the caller limits the size of each removal. Therefore no other
writer waits for long, however large the tables are.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, and_, bindparam, delete, exists, or_, select, true, update
from sqlalchemy.sql import ColumnElement

from gleaner.control.models.outputs import DeliveryPhase
from gleaner.control.models.tokens import Role
from gleaner.control.models.uploads import KEEP_UPLOADS_S
from gleaner.control.queue import (
    campaign_rules,
    decisions,
    drains,
    logs,
    node_history,
    tokens,
    uploads,
    web_sessions,
)
from gleaner.control.queue.database import allow_whole_campaign, snapshot
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.jobs import remove_old_keys
from gleaner.control.queue.queries import FIRST_EVENTS, NEWEST_EVENTS
from gleaner.control.queue.tables import AGENT, ATTEMPT, DELIVERY, EVENT, JOB, LOG, TOKEN, Phase
from gleaner.control.queue.transitions import lock
from gleaner.control.settings import Settings
from gleaner.control.states import State

Writing = Callable[[], AbstractContextManager[Connection]]
"""A function that opens one transaction of the leader (`ControlState.writing`)."""

DAY_S = 24 * 3600.0
MIB = 2**20
LOOKED_AT = 1000
"""The number of agents or jobs that one transaction examines."""
REMOVED = 2000
"""The greatest number of rows that one transaction removes."""
FREED_BYTES, FREED_JOBS = 2**18, 50
"""A transaction ends after this many bytes of log lines, or after this many logs without further lines."""
PAUSE_S = 0.05
"""The pause after each transaction, in which others have the database to themselves."""

_log = structlog.get_logger(__name__)

_HAS_HISTORY = or_(
    exists().where(EVENT.c.job == JOB.c.id).correlate(JOB), exists().where(LOG.c.job == JOB.c.id).correlate(JOB)
)
_EVENTS = select(EVENT.c.id).where(EVENT.c.job == JOB.c.id).correlate(JOB)
_HAS_SURPLUS = _EVENTS.offset(FIRST_EVENTS + NEWEST_EVENTS).limit(1).exists()
_IS_DELIVERED = exists().where(DELIVERY.c.job == JOB.c.id, DELIVERY.c.phase == DeliveryPhase.WAITING).correlate(JOB)
"""The condition that the delivery of the result has not ended."""


_UNUSED = and_(
    AGENT.c.phase == Phase.ENDED,
    AGENT.c.ended_s < bindparam("before_s"),
    ~exists().where(ATTEMPT.c.agent == AGENT.c.name).correlate(AGENT),
)


def remove_old_rows(engine: Engine, writing: Writing, settings: Settings, now_s: float) -> None:
    """Remove, in one pass, all rows that are older than their retention time.

    Raises `QueueError`. The next pass tries again to remove the rows that are left.
    """
    removed: Counter[str] = Counter()
    try:
        for what, rows in _removals(engine, writing, settings, now_s):
            removed[what] += rows
            time.sleep(PAUSE_S)
    finally:
        if removed.total():
            _log.info("removed what is old", **removed)


def _removals(engine: Engine, writing: Writing, settings: Settings, now_s: float) -> Iterator[tuple[str, int]]:
    """Remove rows in portions. Yield the kind and the number of the rows after each portion."""
    queue, history, keep_s = settings.queue, settings.history, settings.outputs.keep_s
    before_s = now_s - queue.keep_days * DAY_S
    spent_s = 0.0 if keep_s is None else now_s - keep_s
    with snapshot(engine) as db:
        up_to = decisions.surplus(db, keep_bytes=queue.keep_decisions_mib * MIB)
    by_age: tuple[tuple[str, Callable[[Connection], int]], ...] = (
        ("tokens", lambda db: tokens.remove_ended(db, before_s=before_s, at_most=REMOVED)),
        ("sessions", lambda db: web_sessions.remove_ended(db, now_s=now_s, at_most=REMOVED)),
        ("submission keys", lambda db: remove_old_keys(db, now_s=now_s, at_most=REMOVED)),
        ("decisions", lambda db: decisions.remove_old(db, before_s=before_s, up_to=up_to, at_most=REMOVED)),
        ("drains", lambda db: drains.remove_old(db, before_s=before_s)),
        ("uploads", lambda db: uploads.remove_old(db, before_s=now_s - KEEP_UPLOADS_S)),
        ("steps", lambda db: node_history.remove_old(db, now_s=now_s, keep_days=history.keep_days)),
    )
    for what, remove in by_age:
        yield from _in_batches(writing, what, remove)
    for agents in _portions(engine, "", partial(look_at_agents, before_s=before_s, limit=LOOKED_AT)):
        if unused := [row.key for row in agents if row.unused]:
            with writing() as db:
                rows = remove_agents(db, unused, before_s=before_s)
            yield "agents", rows
    for jobs in _portions(engine, 0, partial(look_at_jobs, before_s=before_s, spent_s=spent_s, limit=LOOKED_AT)):
        if spent := [row.key for row in jobs if row.spent]:
            with writing() as db:
                rows = remove_results(db, JOB.c.id.in_(spent) & (JOB.c.ended_s < spent_s))
            yield "results", rows
        full = deque(old := [row.key for row in jobs if row.old])
        while full:
            with writing() as db:
                freed_bytes = remove_lines(db, full, before_s=before_s)
            yield "log bytes", freed_bytes
        for row in jobs:
            if row.crowded:
                remove = partial(remove_surplus_events, job=row.key, at_most=REMOVED)
                yield from _in_batches(writing, "events", remove)
        if old:
            remove = partial(remove_events, jobs=old, before_s=before_s, at_most=REMOVED)
            yield from _in_batches(writing, "events", remove)


def _portions(engine: Engine, key: str | int, look: Callable[..., Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield all agents or jobs in portions, by ascending name or id."""
    while True:
        with snapshot(engine) as db:
            rows = look(db, after=key)
        if not rows:
            return
        yield rows
        key = rows[-1].key


def _in_batches(writing: Writing, what: str, remove: Callable[[Connection], int]) -> Iterator[tuple[str, int]]:
    rows = REMOVED
    while rows >= REMOVED:
        with writing() as db:
            rows = remove(db)
        yield what, rows


def look_at_agents(db: Connection, *, after: str, before_s: float, limit: int) -> Sequence[Any]:
    """Return the next agents after that name. Those that ended before the given time without attempts are `unused`."""
    some = select(AGENT.c.name.label("key"), _UNUSED.label("unused")).where(AGENT.c.name > after)
    return db.execute(some.order_by(AGENT.c.name).limit(limit), {"before_s": before_s}).all()


def look_at_jobs(db: Connection, *, after: int, before_s: float, spent_s: float, limit: int) -> Sequence[Any]:
    """Return the next jobs after that id.

    An `old` job ended before the given time, or is removed, and still has events or log lines. A `crowded` job has more
    events than are kept, and the result of a `spent` job is too old.
    """
    old = and_(_is_old(before_s), _HAS_HISTORY).label("old")
    spent = and_(JOB.c.output_bytes.is_not(None), JOB.c.ended_s < spent_s).label("spent")
    some = select(JOB.c.id.label("key"), old, _HAS_SURPLUS.label("crowded"), spent).where(JOB.c.id > after)
    return db.execute(some.order_by(JOB.c.id).limit(limit)).all()


def remove_results(db: Connection, which: ColumnElement[bool], *, removes_jobs: bool = False) -> int:
    """Give up the results of those selected jobs that have ended. With `removes_jobs`, also remove these jobs. Return
    their number."""
    ended = update(JOB).where(which, JOB.c.state == State.COMPLETE, ~_IS_DELIVERED)
    is_removed = true() if removes_jobs else JOB.c.is_removed
    return db.execute(ended.values(output_digest=None, output_bytes=None, is_removed=is_removed)).rowcount


def remove_job(db: Connection, job: int) -> None:
    """Remove an ended job from lists. Its result is removed now, and its log and events at the next pass.

    Raises `Conflict` if it has not ended, or if its result is being delivered.
    """
    lock(db, job)
    _remove_jobs(db, JOB.c.id == job)


def remove_campaign(db: Connection, campaign: int) -> None:
    """Remove all jobs of a campaign as `remove_job` does. If one of them cannot be removed, all stay."""
    campaign_rules.lock(db, campaign)
    allow_whole_campaign(db)
    _remove_jobs(db, JOB.c.campaign == campaign)


def _remove_jobs(db: Connection, which: ColumnElement[bool]) -> None:
    busy = select(JOB.c.id, JOB.c.state).where(which, or_(JOB.c.state != State.COMPLETE, _IS_DELIVERED))
    row = db.execute(busy.order_by(JOB.c.id).limit(1)).one_or_none()
    if row is not None:
        why = f"it is {row.state}; `glean cancel` ends it"
        if row.state is State.COMPLETE:
            why = "its result is being delivered; wait, or see `glean show`"
        raise Conflict(f"job {row.id} cannot be removed: {why}")
    remove_results(db, which, removes_jobs=True)


def remove_agents(db: Connection, names: Sequence[str], *, before_s: float) -> int:
    """Remove those of these agents that still have no attempts, and also their tokens. Return how many were removed."""
    removed = delete(AGENT).where(AGENT.c.name.in_(names), _UNUSED).returning(AGENT.c.name)
    gone = db.execute(removed, {"before_s": before_s}).scalars().all()
    db.execute(delete(TOKEN).where(TOKEN.c.role == Role.AGENT, TOKEN.c.name.in_(gone)))
    return len(gone)


def remove_lines(db: Connection, jobs: deque[int], *, before_s: float) -> int:
    """Remove a limited number of log lines of the first of these jobs. Return the bytes that were freed.

    Jobs without further lines, and those that run again, are removed from `jobs`.
    """
    all_bytes, left = 0, max(0, len(jobs) - FREED_JOBS)
    while len(jobs) > left and all_bytes < FREED_BYTES:
        is_old = select(JOB.c.id).where(JOB.c.id == jobs[0], _is_old(before_s)).with_for_update()
        freed_bytes = logs.remove_oldest(db, jobs[0]) if db.execute(is_old).one_or_none() is not None else 0
        all_bytes += freed_bytes
        if not freed_bytes:
            jobs.popleft()
    return all_bytes


def remove_events(db: Connection, jobs: Sequence[int], *, before_s: float, at_most: int) -> int:
    """Remove events of these jobs, but only of jobs that ended before that time and do not run again. Return how many
    were removed."""
    some = select(EVENT.c.id).join(JOB, JOB.c.id == EVENT.c.job).where(JOB.c.id.in_(jobs), _is_old(before_s))
    some = some.limit(at_most)
    return db.execute(delete(EVENT).where(EVENT.c.id.in_(some))).rowcount


def _is_old(before_s: float) -> ColumnElement[bool]:
    """Return the condition that a job ended before that time and was not run again, or that it was removed."""
    return and_(JOB.c.state == State.COMPLETE, JOB.c.ended_s < before_s) | JOB.c.is_removed


def remove_surplus_events(db: Connection, job: int, *, at_most: int) -> int:
    """Remove events that are neither among the job's first ones nor among its newest ones. Return how many were
    removed."""
    mine = select(EVENT.c.id).where(EVENT.c.job == job)
    last_first = mine.order_by(EVENT.c.id).offset(FIRST_EVENTS - 1).limit(1).correlate(None).scalar_subquery()
    newest = mine.order_by(EVENT.c.id.desc()).offset(NEWEST_EVENTS - 1).limit(1).correlate(None).scalar_subquery()
    some = mine.where(EVENT.c.id > last_first, EVENT.c.id < newest).limit(at_most)
    return db.execute(delete(EVENT).where(EVENT.c.id.in_(some))).rowcount
