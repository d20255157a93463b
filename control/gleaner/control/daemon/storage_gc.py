"""The removal of files that no job in the queue can need any more (`queue.retention` removes rows).

Two loops call this module: `remove_drafts` often, because a draft can be as large as a job's memory, and
`remove_garbage`. Both list the files first and read the queue afterwards. Therefore a file that appears in between is
not in the list, and a file that is reported in between is known by the time of the query. No other code deletes a job's
archives.

An archive can be deleted only if no report can ever make it count again. Such archives are:

- a checkpoint of a Complete job, and any of its outputs except the accepted one, unless retention or the owner has
  removed that one from the queue;
- an archive that the queue does not name and whose attempt is not the job's latest, because reports of that attempt are
  refused, so the archive will never be named;
- a checkpoint of the latest attempt that the queue does not name, if the queue names a newer one of that attempt,
  because only newer checkpoints are ever accepted within an attempt. For a checkpoint that is newer still, the report
  might be on its way.

A job that was restored lazily (`lazy_restore`) still reads from its checkpoint while it runs. The queue names that
checkpoint until the job has a newer one, which can be saved only after all memory has been loaded.

Archives of jobs and attempts that the queue does not know are left alone, because a new queue beside an old storage
folder must not empty the folder. An image or an input has no row if the row was removed or the upload broke off. It is
removed once this program has seen it without a row for a day. No other code removes images and inputs, because a
program that was suspended, or whose commit was not answered, might remove one that the queue has added since. The queue
names each file that is being removed until it is gone. So no group can store the same file during the removal, and a
later pass finishes the work of a program that was killed.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy import Connection, Engine

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.checkpoints.storage_root import storage_number
from gleaner.agent.job.inputs import input_key
from gleaner.agent.privileged.common.agent_leftovers import LOG_AGE_S
from gleaner.agent.reporting.spooled_report import REPORTS, UNREAD
from gleaner.agent.runtime.images import image_key
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.provisioning import remove_token
from gleaner.control.models.uploads import KEEP_UPLOADS_S, UPLOADS
from gleaner.control.queue import images, inputs, queries, tokens, uploads
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.queries import Kept
from gleaner.control.queue.retention import REMOVED
from gleaner.control.settings import DAY_S

DRAFT_AGE_S = 24 * 3600.0
"""The age at which an unchanged draft counts as left behind by a program that died. A draft of an agent that is known
to have ended is removed earlier."""
ORPHAN_AGE_S = 24 * 3600.0
"""The time for which an image or an input must have had no row. It gives an admin time to notice that control was
started with a wrong `queue.url`."""
JOBS_A_LOOK = 500
"""The number of jobs that one transaction looks up, so that each transaction stays short."""

_KEY = re.compile(
    r"jobs/(?P<job>[1-9][0-9]{0,14})/attempt-(?P<attempt>[1-9][0-9]{0,8})"
    r"/(?:checkpoint-(?P<number>[1-9][0-9]{0,8})|output)"
)
"""A key in the form that agents write. `jobs/007` is not the folder of job 7."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobArchive:
    """One archive in storage. `number` is None for an output."""

    key: str
    job: int
    attempt: int
    number: int | None


def remove_garbage(state: ControlState, now_s: float, *, by_age: bool) -> None:
    """Remove the files that are not needed and, with `by_age`, also those that are too old.

    A pass that was stopped is continued by the next one. Raises `StorageError`, `QueueError`, or `NotLeading` if
    another program has begun to lead.
    """
    state.check_leads()
    agents = state.settings.storage.folder / "agents"
    try:
        removed = {
            "archives": len(remove_archives(state)),
            "orphans": remove_orphans(state),
            "tokens": remove_tokens(state.engine, agents),
        }
        if by_age:
            removed |= {
                "inputs": forget_inputs(state, now_s),
                "uploads": remove_uploads(agents.parent, before_s=now_s - KEEP_UPLOADS_S),
                "drafts": state.storage.sweep(before_s=now_s - DRAFT_AGE_S),
                "hashes": forget_tokens(state, agents, now_s),
                "logs": remove_logs(agents, before_s=now_s - LOG_AGE_S),
            }
    except OSError as error:
        raise StorageError(f"{agents.parent}: {error}") from error
    if any(removed.values()):
        _log.info("garbage collected", **removed)


def remove_drafts(state: ControlState, now_s: float) -> int:
    """Remove the drafts of agents that are gone. A save that was killed leaves behind everything that it had written.

    The function also reads the unique number of the storage folder for `/health`, whose callers must not wait for the
    storage.

    Return the number of removed drafts. An agent that the queue does not know yet does not count as gone. Raises
    `StorageError` or `QueueError`.
    """
    state.check_leads()
    state.storage_number = storage_number(state.settings.storage.folder)
    writers = state.storage.writers()
    with snapshot(state.engine) as db:
        ended = queries.gone_agents(db, writers, now_s=now_s)
    removed = state.storage.sweep(before_s=0.0, ended_writers=ended) if ended else 0
    if removed:
        _log.info("drafts of ended agents removed", drafts=removed, agents=sorted(ended))
    return removed


def remove_archives(state: ControlState) -> list[str]:
    """Delete the archives that are garbage. Return their keys, in order.

    Raises `StorageError`, `QueueError`, or `NotLeading`.
    """
    by_job: defaultdict[int, list[JobArchive]] = defaultdict(list)
    for key in state.storage.keys("jobs"):
        archive = job_archive(key)
        if archive is not None:
            by_job[archive.job].append(archive)
    deleted: list[str] = []
    for looked_at, kept_by_job in _known_of(state.engine, by_job):
        state.check_leads()
        for job in looked_at:
            kept = kept_by_job.get(job)
            for archive in by_job[job]:
                if kept is not None and is_garbage(archive, kept):
                    state.current_term()  # raises an error once the term is over
                    state.storage.delete(archive.key)
                    deleted.append(archive.key)
    return deleted


def forget_inputs(state: ControlState, now_s: float) -> int:
    """Remove the rows of inputs that no job needs and that have not been used for a long time. Return their number.

    Their files are removed by `remove_orphans`, a day later.
    """
    before_s = now_s - state.settings.inputs.keep_days * DAY_S
    with snapshot(state.engine) as db:  # reading the inputs of all jobs here blocks no writer
        unneeded = inputs.unneeded(db, before_s=before_s)
    with state.writing() as db:
        return len(inputs.forget(db, unneeded, before_s=before_s))


def remove_orphans(state: ControlState) -> int:
    """Remove the stored images and inputs that have had no row for `ORPHAN_AGE_S` seconds. Return their number.

    Nothing is removed while the storage has archives of jobs that this queue does not know, or while the queue is
    empty. In both cases the files probably belong to another queue, for example because the settings name the wrong
    one.
    """
    now_s = state.steady_clock()
    stored = [*state.storage.keys("images"), *state.storage.keys("inputs")]
    with snapshot(state.engine) as db:
        known, has_jobs, begun = _known_uploads(db), queries.has_jobs(db), uploads.removals(db)
    since_s = {key: min(state.orphans_since_s.get(key, now_s), now_s) for key in stored if key not in known}
    old = [key for key, at_s in since_s.items() if at_s <= now_s - ORPHAN_AGE_S]
    if (old or begun) and (_has_jobs_of_others(state) or not (has_jobs or known)):
        return 0
    if old:
        with state.writing(alone=True) as db:  # programs that store a file have already reserved it, or are refused
            known = _known_uploads(db)
            uploads.record_removals(db, [key for key in old if key not in known and key not in begun])
            begun = uploads.removals(db)
    for key in begun:  # outside a transaction, so that a storage that hangs blocks no other writer
        state.current_term()  # raises an error once the term is over
        state.storage.set_aside(key)
        state.storage.remove_set_aside(key)
        since_s.pop(key, None)
    if begun:
        with state.writing() as db:
            uploads.end_removals(db)
    state.orphans_since_s = since_s
    return len(begun)


def _known_uploads(db: Connection) -> set[str]:
    """Return the keys of the images and inputs that have a row, or are being uploaded."""
    known = {image_key(image_id) for image_id in images.stored_ids(db)}
    known |= {input_key(group, content) for group, content in inputs.all_keys(db)}
    return known | uploads.reserved_keys(db)


def _has_jobs_of_others(state: ControlState) -> bool:
    """Return True if the storage has an archive of a job that this queue does not know."""
    jobs = {archive.job for key in state.storage.keys("jobs") if (archive := job_archive(key)) is not None}
    return any(len(known) < len(looked_at) for looked_at, known in _known_of(state.engine, jobs))


def _known_of(engine: Engine, jobs: Iterable[int]) -> Iterator[tuple[list[int], dict[int, Kept]]]:
    """Yield the jobs in order, a portion at a time, each portion with the archives that the queue keeps for its known
    jobs."""
    in_order = sorted(jobs)
    for start in range(0, len(in_order), JOBS_A_LOOK):
        looked_at = in_order[start : start + JOBS_A_LOOK]
        with snapshot(engine) as db:
            known = queries.archives_to_keep(db, looked_at)
        yield looked_at, known


def remove_uploads(folder: Path, *, before_s: float) -> int:
    """Remove the uploads that have not grown since that time. Return their number. Raises `OSError`."""
    files = (folder / UPLOADS).glob("*/*/*")
    old = [file for file in files if (about := _facts(file)) is not None and about.st_mtime < before_s]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)


def remove_tokens(engine: Engine, folder: Path) -> int:
    """Remove the token files of ended agents. Return the number of agents. Raises `QueueError` or `OSError`."""
    found = _agents(folder)
    with snapshot(engine) as db:
        living = {agent.name for agent in queries.agents_here(db)}
    gone = [name for name in found if name not in living]
    for name in gone:
        remove_token(folder, name)
    return len(gone)


def forget_tokens(state: ControlState, folder: Path, now_s: float) -> int:
    """Remove the tokens of ended agents, except those with which a report in the folder must still be verified. Return
    their number.

    If the agents' folder is missing, no token is removed, because the storage might be unavailable. Raises `QueueError`
    or `OSError`.
    """
    names = _agents(folder)
    spooling = [name for name in names if any(_facts(folder / name / one) for one in (REPORTS, UNREAD))]
    with state.writing() as db:
        return tokens.remove_ended_agents(db, spooling=spooling, now_s=now_s, at_most=REMOVED) if names else 0


def _agents(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def remove_logs(folder: Path, *, before_s: float) -> int:
    """Remove the agents' log files that have not changed since that time.

    Return their number. Raises `OSError`.
    """
    old = [log for log in folder.glob("*.log") if log.is_file() and log.stat().st_mtime < before_s]
    for log in old:
        log.unlink()
    return len(old)


def _facts(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def job_archive(key: str) -> JobArchive | None:
    """Return the archive to which a key belongs, or None if it is not an archive of a job.

    >>> job_archive("jobs/7/attempt-3/checkpoint-1")
    JobArchive(key='jobs/7/attempt-3/checkpoint-1', job=7, attempt=3, number=1)
    """
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    number = match["number"]
    return JobArchive(key, int(match["job"]), int(match["attempt"]), int(number) if number is not None else None)


def is_garbage(archive: JobArchive, kept: Kept) -> bool:
    """Return True if no report can ever make this archive count again.

    >>> kept = Kept(is_complete=False, latest_attempt=3, checkpoints={(1, 1)}, output_attempt=None)
    >>> [is_garbage(JobArchive("", 7, attempt, 1), kept) for attempt in (1, 2, 3, 4)]
    [False, True, False, False]
    >>> kept = Kept(is_complete=False, latest_attempt=3, checkpoints={(3, 4), (3, 5)}, output_attempt=None)
    >>> [is_garbage(JobArchive("", 7, 3, number), kept) for number in (3, 4, 5, 6)]
    [True, False, False, False]
    """
    if archive.attempt > kept.latest_attempt:
        return False  # written for another queue
    if archive.number is None:
        return archive.attempt != kept.output_attempt and (kept.is_complete or archive.attempt < kept.latest_attempt)
    if kept.is_complete:
        return True
    if (archive.attempt, archive.number) in kept.checkpoints:
        return False
    newest = max((number for attempt, number in kept.checkpoints if attempt == archive.attempt), default=0)
    return archive.attempt < kept.latest_attempt or archive.number < newest
