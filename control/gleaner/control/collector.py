"""Deletes what no job can need any more. Nothing else in Gleaner deletes a checkpoint generation or an output.

A parcel may go only if no report can ever make it count again:

- a generation of a Complete job, and an output of it other than the one that counted;
- a parcel that the queue does not name and whose attempt is not the job's latest: that attempt's reports are
  refused, so it will never be named;
- a generation of the latest attempt that the queue does not name although it names a newer one: within an attempt
  only ever newer ones are taken. What is newer than that, its report may still be on the way.

The listing comes first, the look at the queue after it: what is published in between is not in the listing, and
what is reported in between is named by the time of the look. Jobs and attempts that the queue does not know are
left alone: a queue that was set up anew next to an old storage folder must not empty it.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

import structlog
from sqlalchemy import Engine

from gleaner.agent.storage.protocol import Storage
from gleaner.control.queue import reads, rooms
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.reads import Kept

DRAFT_AGE_S = 24 * 3600.0
"""A draft that nobody has written to for this long was left by a program that died. One of an agent that is known to
have ended goes before that."""
JOBS_A_LOOK = 500
"""So many jobs are looked up in one transaction, to keep each short."""

_KEY = re.compile(r"jobs/(?P<job>[0-9]+)/attempt-(?P<attempt>[0-9]+)/(?:generation-(?P<number>[0-9]+)|output)")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """One parcel in storage. `number` None: it is an output."""

    key: str
    job: int
    attempt: int
    number: int | None


def parsed(key: str) -> Found | None:
    """What a key names; None for one that is not a job's.

    >>> parsed("jobs/7/attempt-3/generation-1")
    Found(key='jobs/7/attempt-3/generation-1', job=7, attempt=3, number=1)
    """
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    number = match["number"]
    return Found(key, int(match["job"]), int(match["attempt"]), int(number) if number is not None else None)


def is_garbage(found: Found, kept: Kept) -> bool:
    """Whether no report can ever make this parcel count again.

    >>> kept = Kept(is_complete=False, latest_attempt=3, generations={(1, 1)}, output_attempt=None)
    >>> [is_garbage(Found("", 7, attempt, 1), kept) for attempt in (1, 2, 3, 4)]
    [False, True, False, False]
    >>> kept = Kept(is_complete=False, latest_attempt=3, generations={(3, 4), (3, 5)}, output_attempt=None)
    >>> [is_garbage(Found("", 7, 3, number), kept) for number in (3, 4, 5, 6)]
    [True, False, False, False]
    """
    if found.attempt > kept.latest_attempt:
        return False  # not of this queue's making
    if found.number is None:
        return found.attempt != kept.output_attempt and found.attempt < kept.latest_attempt
    if kept.is_complete:
        return True
    if (found.attempt, found.number) in kept.generations:
        return False
    newest = max((number for attempt, number in kept.generations if attempt == found.attempt), default=0)
    return found.attempt < kept.latest_attempt or found.number < newest


def collect(engine: Engine, storage: Storage, now_s: float) -> list[str]:
    """Delete all garbage, and drafts that were left behind; the keys that were deleted, in order.

    Raises `StorageError` or `QueueError`. Stopped in the middle, the next call goes on.
    """
    by_job: defaultdict[int, list[Found]] = defaultdict(list)
    for key in storage.keys("jobs"):
        found = parsed(key)
        if found is not None:
            by_job[found.job].append(found)
    jobs = sorted(by_job)
    deleted: list[str] = []
    for start in range(0, len(jobs), JOBS_A_LOOK):
        looked_at = jobs[start : start + JOBS_A_LOOK]
        with snapshot(engine) as db:
            kept_by_job = reads.kept(db, looked_at)
        for job in looked_at:
            kept = kept_by_job.get(job)
            for found in by_job[job]:
                if kept is not None and is_garbage(found, kept):
                    storage.delete(found.key)
                    deleted.append(found.key)
    drafts = storage.sweep(before_s=now_s - DRAFT_AGE_S)
    if deleted or drafts:
        _log.info("garbage collected", parcels=len(deleted), drafts=drafts)
    return deleted


def sweep_drafts(engine: Engine, storage: Storage, now_s: float) -> int:
    """Remove what agents that are gone had not published: a save that was killed leaves all that it had written.

    How many drafts there were. Raises `StorageError` or `QueueError`. The listing comes first: an agent that is not
    known yet at the look is not gone.
    """
    writers = storage.writers()
    with snapshot(engine) as db:
        ended = rooms.gone(db, writers, now_s=now_s)
    removed = storage.sweep(before_s=0.0, ended=ended) if ended else 0
    if removed:
        _log.info("drafts of ended agents removed", drafts=removed, agents=sorted(ended))
    return removed
