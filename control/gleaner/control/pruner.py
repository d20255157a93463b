"""Removes from the queue what is older or longer than the settings allow, a little at a time.

Between two removals others get their turn. Stopped anywhere, the next pass goes on: it looks through everything anew.
"""

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy import Connection

from gleaner.control.queue import decisions, drains, retention, tokens
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.site import Site

DAY_S = 24 * 3600.0
MIB = 2**20
LOOKED_AT = 1000
"""So many agents or jobs are looked at in one transaction."""
REMOVED = 2000
"""So many rows are removed in one transaction, at most."""
TRIMMED = 50
"""So many jobs' logs are trimmed in one transaction, at most."""
PAUSE_S = 0.05
"""For so long others have the database to themselves after each."""

_log = structlog.get_logger(__name__)


def prune(site: Site, now_s: float) -> None:
    """One pass over all agents and jobs, if this program leads. What fails is tried again in the next pass."""
    if not site.is_leader:
        return
    removed: Counter[str] = Counter()
    before_s = now_s - site.settings.queue.keep_days * DAY_S
    try:
        for what, rows in _removals(site, before_s, now_s):
            removed[what] += rows
            time.sleep(PAUSE_S)
    except QueueError as error:
        _log.warning("what is old could not be removed, it will be tried again", reason=str(error))
    if removed.total():
        _log.info("removed what is old", **removed)


def _removals(site: Site, before_s: float, now_s: float) -> Iterator[tuple[str, int]]:
    """Remove something at each step: what, and how many rows."""
    rows = REMOVED
    while rows == REMOVED:
        with _writing(site) as db:
            rows = tokens.remove_ended(db, now_s=now_s, before_s=before_s, at_most=REMOVED)
        yield "tokens", rows
    lines = site.settings.queue.log_lines_per_job
    name: str | None = ""
    while name is not None:
        with snapshot(site.engine) as db:
            agents = retention.look_at_agents(db, after=name, before_s=before_s, limit=LOOKED_AT)
        if agents.unused:
            with _writing(site) as db:
                rows = retention.remove_agents(db, agents.unused, before_s=before_s)
            yield "agents", rows
        name = agents.last
    keep, keep_bytes = site.settings.queue.keep_decisions, site.settings.queue.keep_decisions_mib * MIB
    with snapshot(site.engine) as db:
        up_to = decisions.surplus(db, keep=keep, keep_bytes=keep_bytes)
    rows = REMOVED
    while rows == REMOVED:
        with _writing(site) as db:
            rows = decisions.remove_old(db, before_s=before_s, up_to=up_to, at_most=REMOVED)
        yield "decisions", rows
    with _writing(site) as db:
        rows = drains.remove_old(db, before_s=before_s)
    yield "drains", rows
    with _writing(site) as db:
        rows = retention.remove_failures(db, before_s=before_s)
    yield "failures", rows
    job: int | None = 0
    while job is not None:
        with snapshot(site.engine) as db:
            jobs = retention.look_at_jobs(db, after=job, before_s=before_s, lines=lines, limit=LOOKED_AT)
        yield from _trimmed(site, jobs.long, keep=lines)
        yield from _trimmed(site, jobs.old, keep=0)
        rows = REMOVED if jobs.old else 0
        while rows == REMOVED:
            with _writing(site) as db:
                rows = retention.remove_events(db, jobs.old, at_most=REMOVED)
            yield "events", rows
        job = jobs.last


def _trimmed(site: Site, jobs: Sequence[int], *, keep: int) -> Iterator[tuple[str, int]]:
    for start in range(0, len(jobs), TRIMMED):
        todo = deque(jobs[start : start + TRIMMED])
        while todo:
            room = REMOVED
            with _writing(site) as db:
                while todo and room:
                    rows = retention.trim(db, todo[0], keep=keep, at_most=room)
                    room -= rows
                    if not rows:
                        todo.popleft()
            yield "lines", REMOVED - room


@contextmanager
def _writing(site: Site) -> Generator[Connection]:
    with site.writing() as db:
        yield db
