"""Stored decisions, and control's actions on the owners' jobs.

A decision is written once, after a policy has decided, and can be read by the people whom it concerns. Actions are
stored so that control can continue them after a restart.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import zstandard
from pydantic import Field
from sqlalchemy import Connection, Select, delete, func, insert, select, update

from gleaner.control.models.decisions import DecisionKind, DecisionRow
from gleaner.control.queue.errors import NotFound
from gleaner.control.queue.tables import ACTED, DECISION, SUBJECT, TOLD

BYTES_A_DECISION = 150
BYTES_A_SUBJECT = 150
"""The approximate size of a row in the database with its indexes, without the packed content."""

_ADD = insert(DECISION).returning(DECISION.c.id)
_ADD_SUBJECTS = insert(SUBJECT).inline()


class StoredDecision(DecisionRow):
    """One decision, with the group of each subject if it was known when the decision was recorded."""

    groups: dict[str, str | None] = Field(exclude=True)


def record(
    db: Connection,
    *,
    kind: DecisionKind,
    subjects: Mapping[str, str | None],
    policy: str,
    given: Mapping[str, Any],
    answer: Mapping[str, Any],
    acted: bool,
    now_s: float,
) -> int:
    """Store a decision and return its number.

    `given` and `answer` are plain JSON with finite numbers, and `policy.replay.REPLAYS[policy](given)` must return
    `answer` again. An answer can have the key `because` with one plain sentence for each subject, which `glean why`
    prints. `subjects` maps each subject that is not a job of our queue to its group. A subject whose group is None is
    visible to admins only.
    """
    content = pack(given, answer)
    size_bytes = len(content) + BYTES_A_DECISION + BYTES_A_SUBJECT * len(subjects)
    row = {"at_s": now_s, "kind": kind, "policy": policy, "acted": acted, "packed": content, "size_bytes": size_bytes}
    number = int(db.execute(_ADD, row).scalar_one())
    about = [{"decision": number, "subject": subject, "group": group} for subject, group in subjects.items()]
    if about:
        db.execute(_ADD_SUBJECTS, about)
    return number


def one(db: Connection, number: int) -> StoredDecision:
    """Return the decision with this number. Raises `NotFound`."""
    found = _read(db, select(DECISION).where(DECISION.c.id == number))
    if not found:
        raise NotFound(f"there is no decision {number}; old ones are removed, see [queue] in control's settings")
    return found[0]


def latest(db: Connection, subject: str, limit: int) -> tuple[StoredDecision, ...]:
    """Return the latest decisions about a job, the newest first."""
    which = select(SUBJECT.c.decision).where(SUBJECT.c.subject == subject).order_by(SUBJECT.c.decision.desc())
    return _read(db, select(DECISION).where(DECISION.c.id.in_(which.limit(limit))))


def _read(db: Connection, wanted: Select[Any]) -> tuple[StoredDecision, ...]:
    rows = db.execute(wanted.order_by(DECISION.c.id.desc())).mappings().all()
    about: dict[int, dict[str, str | None]] = {row["id"]: {} for row in rows}
    found = select(SUBJECT).where(SUBJECT.c.decision.in_(about)).order_by(SUBJECT.c.decision, SUBJECT.c.subject)
    for subject in db.execute(found):
        about[subject.decision][subject.subject] = subject.group
    return tuple(
        StoredDecision.model_validate(
            {**row, **_unpacked(row["packed"]), "subjects": tuple(about[row["id"]]), "groups": about[row["id"]]}
        )
        for row in rows
    )


def pack(given: Mapping[str, Any], answer: Mapping[str, Any]) -> bytes:
    """Return both as compressed JSON.

    They compress well, because the descriptions of a large cluster's jobs are very similar.
    """
    content = json.dumps({"given": given, "answer": answer}, separators=(",", ":"))
    return zstandard.ZstdCompressor().compress(content.encode())


def _unpacked(content: bytes) -> dict[str, Any]:
    """Return `given` and `answer` from the packed content."""
    return dict(json.loads(zstandard.ZstdDecompressor().decompress(content)))


def surplus(db: Connection, *, keep_bytes: int) -> int:
    """Return the number of the newest decision to remove, so that at most `keep_bytes` bytes remain."""
    by_age = DECISION.c.id.desc()
    sums = select(
        DECISION.c.id,
        func.sum(DECISION.c.size_bytes).over(order_by=by_age).label("so_far_bytes"),
    ).subquery()
    return db.execute(select(func.max(sums.c.id)).where(sums.c.so_far_bytes > keep_bytes)).scalar_one() or 0


def remove_old(db: Connection, *, before_s: float, up_to: int, at_most: int) -> int:
    """Remove the decisions that are older than that time, and those up to that number. Return how many were removed."""
    # The numbers increase with time, so only the first rows are read, and no index by time is needed.
    first = db.execute(select(DECISION.c.id, DECISION.c.at_s).order_by(DECISION.c.id).limit(at_most)).all()
    old = [row.id for row in first if row.at_s < before_s or row.id <= up_to]
    db.execute(delete(SUBJECT).where(SUBJECT.c.decision.in_(old)))
    return db.execute(delete(DECISION).where(DECISION.c.id.in_(old))).rowcount if old else 0


# ── actions on the owners' jobs ──


@dataclass(frozen=True, slots=True)
class JobActions:
    """Control's actions on one job, with their times.

    `released_s` is set when the job is allowed to start, and `told_s` when it is preempted.
    """

    job: str
    released_s: float | None = None
    at_top: bool = False
    told_s: float | None = None


def actions(db: Connection) -> dict[str, JobActions]:
    """Return the recorded actions on each job, by the job's id."""
    rows = db.execute(select(ACTED))
    return {row.job: JobActions(row.job, row.released_s, row.at_top, row.told_s) for row in rows}


def record_action(db: Connection, job: JobActions) -> None:
    """Record the action that was, or is about to be, taken on the job."""
    values = {"released_s": job.released_s, "at_top": job.at_top, "told_s": job.told_s}
    if not db.execute(update(ACTED).where(ACTED.c.job == job.job).values(values)).rowcount:
        db.execute(insert(ACTED), {"job": job.job} | values)


def record_preemption(db: Connection, job: str, now_s: float) -> None:
    """Record that an owner's job is preempted. It counts towards the hourly limit."""
    db.execute(insert(TOLD), {"job": job, "at_s": now_s})


def preemptions_since(db: Connection, since_s: float) -> int:
    """Return how many jobs of owners were preempted since that time."""
    return int(db.execute(select(func.count()).select_from(TOLD).where(TOLD.c.at_s >= since_s)).scalar_one())


def forget_actions(db: Connection, jobs: Collection[str], *, told_before_s: float) -> None:
    """Remove the rows of these jobs, and the preemptions before that time."""
    if jobs:
        db.execute(delete(ACTED).where(ACTED.c.job.in_(jobs)))
    db.execute(delete(TOLD).where(TOLD.c.at_s < told_before_s))
