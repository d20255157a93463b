"""Make a queue consistent with the storage after it was restored from an older backup.

A job whose result is in the storage becomes Complete. Any other unfinished job continues from its newest complete
checkpoint in the storage. The next attempt and the next job each receive the number after the highest one in the backup
or in the storage. An agent that started after the backup and has published nothing might have the same attempt number.
Only the first of the two agents to publish an archive succeeds (`Draft.publish`), and the other agent's attempt is
returned.

All functions work in the caller's transaction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, column, delete, func, insert, select, table, update

from gleaner.agent.messages import Checkpoint, Completed, NodeFacts, Output, Saved, Slice
from gleaner.control.models.jobs import Ending
from gleaner.control.queue import attempt_reports, attempts, compatibility
from gleaner.control.queue.errors import QueueError
from gleaner.control.queue.tables import AGENT, EVENT, JOB, WEB_SESSION, Phase
from gleaner.control.queue.transitions import lock, make_for_all, put_on_hold, record, take
from gleaner.control.states import Outcome, State, Transition

PUT_BACK = "put back"
"""The name of the event of each job that was unfinished in the backup."""
_SQLITE_SEQUENCE = table("sqlite_sequence", column("name"), column("seq"))
"""The highest number that each table with AUTOINCREMENT has assigned."""


@dataclass(frozen=True, slots=True)
class Found:
    """A job's archive in the storage. `number` is None for an output, and `exit_code` is None for a checkpoint."""

    job: int
    attempt: int
    number: int | None
    digest: str
    size_bytes: int
    exit_code: int | None = None
    has_memory: bool = True
    chain: str | None = None
    node: NodeFacts | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The number of jobs with each outcome.

    `unknown` jobs were submitted after the backup, and only their archives remain.
    """

    ended: int
    went_on: int
    unfinished: int
    unknown: int
    taken_s: float
    """The time at which the backup was taken, or slightly earlier."""


def unfinished_attempts(db: Connection) -> Mapping[int, int]:
    """Return the latest attempt of each job that has not succeeded."""
    rows = db.execute(select(JOB.c.id, JOB.c.attempt).where(JOB.c.outcome.is_distinct_from(Outcome.SUCCEEDED)))
    return {row.id: row.attempt for row in rows}


def recover(db: Connection, found: Iterable[Found], *, stored_jobs: Mapping[int, int], now_s: float) -> Recovered:
    """Make a restored queue consistent with the archives in the storage, and never reuse a job or attempt number there.

    `stored_jobs` are all jobs with an archive in the storage, each with the latest attempt that has one.
    """
    taken_s = db.execute(select(func.max(EVENT.c.at_s))).scalar_one() or now_s
    by_job: dict[int, list[Found]] = {}
    for one in found:
        by_job.setdefault(one.job, []).append(one)
    known = set(db.execute(select(JOB.c.id)).scalars())
    ended = went_on = 0
    open_jobs = db.execute(select(JOB.c.id).where(JOB.c.state != State.COMPLETE).order_by(JOB.c.id)).scalars().all()
    for job in open_jobs:
        ended_now, went_on_now = _try_to_let_count(db, job, by_job.get(job, []), now_s=now_s)
        ended, went_on = ended + ended_now, went_on + went_on_now
        if not ended_now:
            _end_attempts(db, lock(db, job), by_job.get(job, []), now_s=now_s)
    for row in db.execute(select(JOB.c.id, JOB.c.attempt).where(JOB.c.outcome != Outcome.SUCCEEDED)).all():
        latest = stored_jobs.get(row.id, 0)
        results = [one for one in by_job.get(row.id, []) if one.exit_code == 0 and one.attempt > row.attempt]
        if results:  # it was run again after the backup, and has succeeded
            make_for_all(db, JOB.c.id == row.id, Transition.RERUN, now_s=now_s, detail=PUT_BACK)
            ended += _try_to_let_count(db, row.id, results, now_s=now_s)[0]
        elif latest > row.attempt:  # it was run again after the backup, and can be run once more
            db.execute(update(JOB).where(JOB.c.id == row.id).values(attempt=latest, is_removed=False))
    _set_next_job(db, max((*known, *stored_jobs), default=0))
    # An agent receives no job before its next heartbeat, whose answer tells it to drop its jobs. Otherwise it could
    # receive a job with the same number as a job that it still runs and that was submitted after the backup.
    db.execute(update(AGENT).where(AGENT.c.phase == Phase.LIVE).values(phase=Phase.SILENT))
    db.execute(delete(WEB_SESSION))  # sessions that have ended since must not be open again
    return Recovered(ended, went_on, len(open_jobs) - ended, len(stored_jobs.keys() - known), taken_s)


def _try_to_let_count(db: Connection, job: int, found: list[Found], *, now_s: float) -> tuple[bool, bool]:
    """Do the same as `_let_count`, but ignore an archive that the queue refuses.

    The other jobs are still restored.
    """
    try:
        with db.begin_nested():
            return _let_count(db, lock(db, job), found, now_s=now_s)
    except QueueError:
        return False, False


def _let_count(db: Connection, row: Any, found: list[Found], *, now_s: float) -> tuple[bool, bool]:
    """Accept the newest result and the newest checkpoint of the job. Return True for each that was accepted."""
    # Archives of attempts that ended before the backup are left out, because they had already been accepted or refused.
    first = row.attempt if row.state is State.RUNNING or row.lost else row.attempt + 1
    saves = [one for one in found if one.number is not None and one.attempt >= first]
    outputs = [one for one in found if one.exit_code == 0 and one.attempt >= first]
    newest = max(outputs or saves, key=_age, default=None)
    if newest is None:
        return False, False
    spent = Slice(started_s=now_s)
    reason, was_held = row.hold_reason, row.held
    if was_held:
        db.execute(update(JOB).where(JOB.c.id == row.id).values(held=False, hold_reason=None))
    if newest.attempt > row.attempt:
        _claim(db, row, newest, now_s=now_s)
    if newest.number is None:
        output = Output(digest=newest.digest, size_bytes=newest.size_bytes)
        report = Completed(exit_code=0, output=output, slice=spent)
        return attempt_reports.record_completion(db, row.id, newest.attempt, report, now_s=now_s), False
    # Lines that were written after the backup are lost, and not counted.
    log_lines = attempts.log_lines(db, row.id, row.from_attempt, row.from_number) if row.from_attempt is not None else 0
    checkpoint = Checkpoint(
        attempt=newest.attempt,
        number=newest.number,
        digest=newest.digest,
        size_bytes=newest.size_bytes,
        log_lines=log_lines,
        chain=newest.chain,
        has_memory=newest.has_memory,
    )
    attempt_reports.record_save(db, row.id, newest.attempt, Saved(checkpoint=checkpoint, slice=spent), now_s=now_s)
    if was_held:
        put_on_hold(db, lock(db, row.id), reason=reason, now_s=now_s)
    return False, True


def _age(one: Found) -> tuple[int, int]:
    return one.attempt, one.number or 0


def _claim(db: Connection, row: Any, one: Found, *, now_s: float) -> None:
    """Add the attempt that made this archive, as if it had just been claimed."""
    if row.state is State.RUNNING:
        attempt_reports.give_up(db, row, Ending.LOST, now_s=now_s, detail=PUT_BACK)
    db.execute(update(JOB).where(JOB.c.id == row.id).values(attempt=one.attempt - 1))
    node = "unknown" if one.node is None else one.node.node
    agent = f"put-back-{node}"
    if db.execute(select(AGENT.c.name).where(AGENT.c.name == agent)).first() is None:
        ended = {"name": agent, "phase": Phase.ENDED, "end_s": now_s, "submitted_s": now_s, "ended_s": now_s}
        kind = None if one.node is None else compatibility.record_kind(db, one.node)
        db.execute(insert(AGENT), ended | {"reason": PUT_BACK, "kind": kind})
    take(db, [row.id], agent=agent, node=node, now_s=now_s)


def _end_attempts(db: Connection, row: Any, found: list[Found], *, now_s: float) -> None:
    """End all running attempts of the backup, and give the job's next attempt a number that the storage does not
    contain."""
    if row.state is State.RUNNING:
        attempt_reports.give_up(db, row, Ending.LOST, now_s=now_s, detail=PUT_BACK)
    latest = max([row.attempt, *(one.attempt for one in found)])
    db.execute(update(JOB).where(JOB.c.id == row.id).values(attempt=latest, lost=False))
    record(db, row.id, PUT_BACK, now_s=now_s, detail="from a backup")


def _set_next_job(db: Connection, latest: int) -> None:
    """Give the next job a number that the storage does not contain."""
    if db.dialect.name == "postgresql":
        db.execute(select(func.setval(func.pg_get_serial_sequence("job", "id"), max(1, latest))))
    else:
        db.execute(delete(_SQLITE_SEQUENCE).where(_SQLITE_SEQUENCE.c.name == JOB.name))
        db.execute(insert(_SQLITE_SEQUENCE).values(name=JOB.name, seq=latest))
