"""The removal of rows that are older, and of logs that are longer, than the settings allow: a little at a time.

Between two removals others get their turn. After a stop anywhere, the next pass looks through everything anew.
"""

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy import Connection

from gleaner.control.control_state import ControlState
from gleaner.control.queue import decisions, drains, retention, tokens
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import QueueError

DAY_S = 24 * 3600.0
MIB = 2**20
LOOKED_AT = 1000
"""The number of agents or jobs that are looked at in one transaction."""
REMOVED = 2000
"""The most rows that are removed in one transaction."""
TRIMMED = 50
"""The most jobs whose logs are trimmed in one transaction."""
PAUSE_S = 0.05
"""The pause after each transaction, in which others have the database to themselves."""

_log = structlog.get_logger(__name__)


def prune(state: ControlState, now_s: float) -> None:
    """Pass once over all agents and jobs, if this program leads. The next pass tries again what fails."""
    if not state.is_leader:
        return
    removed: Counter[str] = Counter()
    before_s = now_s - state.settings.queue.keep_days * DAY_S
    try:
        for what, rows in _removals(state, before_s, now_s):
            removed[what] += rows
            time.sleep(PAUSE_S)
    except QueueError as error:
        _log.warning("what is old could not be removed, it will be tried again", reason=str(error))
    if removed.total():
        _log.info("removed what is old", **removed)


def _removals(state: ControlState, before_s: float, now_s: float) -> Iterator[tuple[str, int]]:
    """Remove rows, some at a time, and yield after each time the kind of the rows and their number."""
    rows = REMOVED
    while rows == REMOVED:
        with _writing(state) as db:
            rows = tokens.remove_ended(db, now_s=now_s, before_s=before_s, at_most=REMOVED)
        yield "tokens", rows
    lines = state.settings.queue.log_lines_per_job
    name: str | None = ""
    while name is not None:
        with snapshot(state.engine) as db:
            agents = retention.look_at_agents(db, after=name, before_s=before_s, limit=LOOKED_AT)
        if agents.unused:
            with _writing(state) as db:
                rows = retention.remove_agents(db, agents.unused, before_s=before_s)
            yield "agents", rows
        name = agents.last
    keep, keep_bytes = state.settings.queue.keep_decisions, state.settings.queue.keep_decisions_mib * MIB
    with snapshot(state.engine) as db:
        up_to = decisions.surplus(db, keep=keep, keep_bytes=keep_bytes)
    rows = REMOVED
    while rows == REMOVED:
        with _writing(state) as db:
            rows = decisions.remove_old(db, before_s=before_s, up_to=up_to, at_most=REMOVED)
        yield "decisions", rows
    with _writing(state) as db:
        rows = drains.remove_old(db, before_s=before_s)
    yield "drains", rows
    with _writing(state) as db:
        rows = retention.remove_failures(db, before_s=before_s)
    yield "failures", rows
    job: int | None = 0
    while job is not None:
        with snapshot(state.engine) as db:
            jobs = retention.look_at_jobs(db, after=job, before_s=before_s, lines=lines, limit=LOOKED_AT)
        yield from _trimmed(state, jobs.long, keep=lines)
        yield from _trimmed(state, jobs.old, keep=0)
        rows = REMOVED if jobs.old else 0
        while rows == REMOVED:
            with _writing(state) as db:
                rows = retention.remove_events(db, jobs.old, at_most=REMOVED)
            yield "events", rows
        job = jobs.last


def _trimmed(state: ControlState, jobs: Sequence[int], *, keep: int) -> Iterator[tuple[str, int]]:
    for start in range(0, len(jobs), TRIMMED):
        todo = deque(jobs[start : start + TRIMMED])
        while todo:
            room = REMOVED
            with _writing(state) as db:
                while todo and room:
                    rows = retention.trim(db, todo[0], keep=keep, at_most=room)
                    room -= rows
                    if not rows:
                        todo.popleft()
            yield "lines", REMOVED - room


@contextmanager
def _writing(state: ControlState) -> Generator[Connection]:
    with state.writing() as db:
        yield db
