"""Decisions as they are stored: written once, by whoever had a policy decide, and read by those whom they concern."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select

from gleaner.control.queue.decision_tables import DECISION, SUBJECT, DecisionKind
from gleaner.control.queue.errors import Unknown

_ADD = insert(DECISION).returning(DECISION.c.id)
_ADD_SUBJECTS = insert(SUBJECT).inline()


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """One decision. `subjects` has the group of each, where whoever recorded it knew one."""

    id: int
    at_s: float
    kind: DecisionKind
    policy: str
    given: Mapping[str, Any]
    answer: Mapping[str, Any]
    acted: bool
    subjects: Mapping[str, str | None]


def record(
    db: Connection,
    *,
    kind: DecisionKind,
    subjects: Sequence[str],
    policy: str,
    given: Mapping[str, Any],
    answer: Mapping[str, Any],
    acted: bool,
    now_s: float,
    groups: Mapping[str, str] | None = None,
) -> int:
    """Write down a decision; its number.

    `given` and `answer` are plain JSON with finite numbers: `policy.replaying.REPLAYS[policy](given)` must give
    `answer` again. An answer may have `because`: one plain sentence for each subject, which `glean why` prints.
    `groups` says whose the subjects are that are no jobs of our queue; where nobody knows, only admins see them.
    """
    row = {"at_s": now_s, "kind": kind, "policy": policy, "given": given, "answer": answer, "acted": acted}
    number = int(db.execute(_ADD, row).scalar_one())
    whose = groups or {}
    about = [{"decision": number, "subject": each, "group": whose.get(each)} for each in dict.fromkeys(subjects)]
    if about:
        db.execute(_ADD_SUBJECTS, about)
    return number


def one(db: Connection, number: int) -> StoredDecision:
    """The decision of this number. Raises `Unknown`."""
    found = _read(db, select(DECISION).where(DECISION.c.id == number))
    if not found:
        raise Unknown(f"there is no decision {number}; those older than keep_days are removed")
    return found[0]


def latest(db: Connection, subject: str, limit: int) -> tuple[StoredDecision, ...]:
    """The last decisions about a job, the latest first."""
    which = select(SUBJECT.c.decision).where(SUBJECT.c.subject == subject).order_by(SUBJECT.c.decision.desc())
    return _read(db, select(DECISION).where(DECISION.c.id.in_(which.limit(limit))))


def _read(db: Connection, wanted: Select[Any]) -> tuple[StoredDecision, ...]:
    rows = db.execute(wanted.order_by(DECISION.c.id.desc())).all()
    about: dict[int, dict[str, str | None]] = {row.id: {} for row in rows}
    found = select(SUBJECT).where(SUBJECT.c.decision.in_(about)).order_by(SUBJECT.c.decision, SUBJECT.c.subject)
    for row in db.execute(found):
        about[row.decision][row.subject] = row.group
    return tuple(
        StoredDecision(row.id, row.at_s, row.kind, row.policy, row.given, row.answer, row.acted, about[row.id])
        for row in rows
    )


def remove_old(db: Connection, *, before_s: float, keep: int, at_most: int) -> int:
    """Remove decisions from before that time, and the oldest of more than `keep`; how many."""
    # Numbers ascend with time, so that no index by time is needed: only the first ones are looked at.
    first = db.execute(select(DECISION.c.id, DECISION.c.at_s).order_by(DECISION.c.id).limit(at_most)).all()
    last = db.execute(select(func.max(DECISION.c.id))).scalar_one() or 0
    old = [row.id for row in first if row.at_s < before_s or row.id <= last - keep]
    db.execute(delete(SUBJECT).where(SUBJECT.c.decision.in_(old)))
    return db.execute(delete(DECISION).where(DECISION.c.id.in_(old))).rowcount if old else 0
