"""Quotas where they are enforced: in the transaction that submits, and in the one that claims.

Only a submission adds jobs that have not ended, and only a claim adds cores that run. On PostgreSQL the submissions and
claims of one group that is limited go one after another, by a lock that the transaction's end frees; on SQLite all
writers do. So what is counted stays true until it is acted on. All of it is counted by index: a submission steps
through what its group has, a claim through what the group has running. Where nothing is limited, nothing is counted.

Bytes are looked up now and then (`Stored`): a save is never refused for them, so an exact figure would not be kept
either.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping

from sqlalchemy import Connection, bindparam, func, select, text

from gleaner.control.policy.quotas import (
    Allowance,
    GroupMost,
    Most,
    QuotaRules,
    Whose,
    cores_in_use,
    over_cores,
    over_jobs,
    over_stored,
)
from gleaner.control.queue.errors import Refused
from gleaner.control.queue.schema import CHECKPOINT, JOB, LANE, Standing
from gleaner.control.states import State

STORED_FRESH_S = 30.0
_LOCKS = 0x676C
"""The class of our advisory locks, apart from whatever else locks in the same database."""
_LOCK = text(f"SELECT pg_advisory_xact_lock({_LOCKS}, hashtext(:group_))")
_UNENDED = text("job.state <> 'Complete'")  # word by word, so that the partial index is used
_RUNS = text("job.agent IS NOT NULL")
_SIZES = text("""
WITH RECURSIVE kept(lane) AS (
    SELECT min(lane) FROM job WHERE "group" = :group_ AND state <> 'Complete'
    UNION ALL
    SELECT (SELECT min(job.lane) FROM job WHERE "group" = :group_ AND state <> 'Complete' AND job.lane > kept.lane)
    FROM kept WHERE kept.lane IS NOT NULL
)
SELECT DISTINCT lane.cpus, lane.memory_mib FROM kept JOIN lane ON lane.id = kept.lane""")
_RUNNING = (
    select(JOB.c.group, JOB.c.submitter, func.sum(LANE.c.cpus).label("cpus"))
    .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
    .where(JOB.c.group == bindparam("group_"), _RUNS)
    .group_by(JOB.c.group, JOB.c.submitter)
)
_WAITING = (
    select(JOB.c.state, JOB.c.group, LANE.c.submitter, LANE.c.cpus)
    .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
    .where(JOB.c.id == bindparam("job_"))
)
"""In a lane that is older than the limits of users, the submitter is empty: its jobs count for the group alone."""
_CHECKPOINTS = (
    select(JOB.c.group, JOB.c.submitter, func.sum(CHECKPOINT.c.size_bytes).label("bytes"))
    .join_from(JOB, CHECKPOINT, CHECKPOINT.c.job == JOB.c.id)
    .where(_UNENDED, CHECKPOINT.c.standing == Standing.NAMED)
    .group_by(JOB.c.group, JOB.c.submitter)
)
_OUTPUTS = (
    select(JOB.c.group, JOB.c.submitter, func.sum(JOB.c.output_bytes).label("bytes"))
    .where(text("job.output_bytes IS NOT NULL"))
    .group_by(JOB.c.group, JOB.c.submitter)
)


class OverQuota(Refused):
    """Somebody has as much as allowed."""


class Stored:
    """The bytes that each group and user has stored, as they were last counted by the one program that leads."""

    def __init__(self, steady_clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = steady_clock
        self._reading = threading.Lock()
        self._fresh_until_s = float("-inf")
        self._now: Mapping[Whose, int] | None = None

    def bytes_by_owner(self, db: Connection) -> Mapping[Whose, int]:
        """Return the bytes by group and user, and by group alone; counted by this connection if it is time to."""
        if self._clock() >= self._fresh_until_s and self._reading.acquire(blocking=self._now is None):
            try:
                if self._clock() >= self._fresh_until_s:
                    began_s = self._clock()
                    self._now = stored(db)
                    self._fresh_until_s = self._clock() + STORED_FRESH_S + 50 * (self._clock() - began_s)
            finally:
                self._reading.release()
        return self._now or {}


def stored(db: Connection) -> Mapping[Whose, int]:
    """Return the bytes of checkpoints that jobs may go on from, and of outputs.

    They are given by group and user, and by group alone.
    """
    found: dict[Whose, int] = {}
    for row in (*db.execute(_CHECKPOINTS), *db.execute(_OUTPUTS)):
        for whose in {(row.group, row.submitter), (row.group, "")}:
            found[whose] = found.get(whose, 0) + int(row.bytes)
    return found


def check_submission(
    db: Connection,
    rules: QuotaRules,
    *,
    group: str,
    submitter: str,
    jobs: int,
    size: tuple[int, int],
    has_bytes: Mapping[Whose, int],
) -> None:
    """Raise `OverQuota` if so many jobs of that size (cores, memory) are more than the group or the user may have."""
    most = rules.of(group)
    limits = _limits(most, group, submitter)
    for who, user, limit, key in limits:
        has = has_bytes.get((group, user), 0)
        if limit.stored_bytes is not None and has > limit.stored_bytes:
            raise OverQuota(over_stored(who, has_bytes=has, most_bytes=limit.stored_bytes, key=f"{key}stored_gib"))
        if limit.cores is not None and size[0] > limit.cores:
            raise OverQuota(over_cores(who, cpus=size[0], most=limit.cores, key=f"{key}cores"))
    if most.sizes is None and most.group.jobs is None and most.user.jobs is None:
        return
    _lock(db, group)
    for who, user, limit, key in limits:
        if limit.jobs is None:
            continue
        has = _unended(db, group, user, at_most=limit.jobs)
        if has + jobs > limit.jobs:
            raise OverQuota(over_jobs(who, has=has, more=jobs, most=limit.jobs, key=f"{key}jobs"))
    if most.sizes is not None:
        sizes = {(row.cpus, row.memory_mib) for row in db.execute(_SIZES, {"group_": group})}
        if size not in sizes and len(sizes) >= most.sizes:
            raise OverQuota(
                f"group {group} has jobs of {len(sizes)} different sizes and may have {most.sizes}: give this one the"
                " cores and memory of others, or ask an admin for more ([quotas] sizes)"
            )


def _unended(db: Connection, group: str, user: str, *, at_most: int) -> int:
    """Return how many jobs have not ended. It counts no further than a little above what is allowed."""
    some = select(JOB.c.id).where(JOB.c.group == group, _UNENDED)
    if user:
        some = some.where(JOB.c.submitter == user)
    return int(db.execute(select(func.count()).select_from(some.limit(at_most + 1).subquery())).scalar_one())


def allowance(
    db: Connection,
    rules: QuotaRules,
    groups: Collection[str],
    stored_bytes: Callable[[], Mapping[Whose, int]],
    *,
    locks: bool = True,
) -> Allowance:
    """Return what these groups and their users may still start. Nothing is counted of a group that is not limited.

    Without `locks` it may have changed by the time it is read: that is enough for a caller that plans, and starts
    nothing.
    """
    limited = sorted(group for group in groups if _limits_running(rules, group))
    if not limited:
        return Allowance()
    left: dict[Whose, int] = {}
    each_user: dict[str, int] = {}
    for group in limited:
        most = rules.of(group)
        if most.group.cores is None and most.user.cores is None:
            continue
        if locks:
            _lock(db, group)
        running = {row.submitter: int(row.cpus) for row in db.execute(_RUNNING, {"group_": group})}
        if most.group.cores is not None:
            left[group, ""] = most.group.cores - sum(running.values())
        if most.user.cores is not None:
            each_user[group] = most.user.cores
            left |= {(group, user): most.user.cores - cpus for user, cpus in running.items() if user}
    if not any(most.stored_bytes is not None for group in limited for most in _both(rules, group)):
        return Allowance(left, each_user)
    full = [
        (group, user)
        for (group, user), has_bytes in stored_bytes().items()
        for limit in [_of(rules, group, user).stored_bytes]
        if limit is not None and has_bytes > limit
    ]
    return Allowance(left, each_user, frozenset(full))


def obstacle(db: Connection, rules: QuotaRules, job: int, stored_bytes: Callable[[], Mapping[Whose, int]]) -> str:
    """Return which quota keeps a waiting job from starting, for people; empty if none does."""
    row = db.execute(_WAITING, {"job_": job}).one()
    limits = _limits(rules.of(row.group), row.group, row.submitter)
    for who, _, limit, key in limits:
        if limit.cores is not None and row.cpus > limit.cores:
            return over_cores(who, cpus=row.cpus, most=limit.cores, key=f"{key}cores")
    if row.state is not State.SAVED and any(limit.stored_bytes is not None for *_, limit, _ in limits):
        has_bytes = stored_bytes()
        for who, user, limit, key in limits:
            has = has_bytes.get((row.group, user), 0)
            if limit.stored_bytes is not None and has > limit.stored_bytes:
                return over_stored(who, has_bytes=has, most_bytes=limit.stored_bytes, key=f"{key}stored_gib")
    if all(limit.cores is None for *_, limit, _ in limits):
        return ""
    running = {each.submitter: int(each.cpus) for each in db.execute(_RUNNING, {"group_": row.group})}
    for who, user, limit, key in limits:
        has = running.get(user, 0) if user else sum(running.values())
        if limit.cores is not None and has + row.cpus > limit.cores:
            return cores_in_use(who, has=has, most=limit.cores, key=f"{key}cores")
    return ""


def _limits(most: GroupMost, group: str, submitter: str) -> list[tuple[str, str, Most, str]]:
    """Return the limits that count for a job: whose in words, the user or empty, the limit, its setting's prefix."""
    found = [(f"group {group}", "", most.group, "")]
    if submitter:
        found.append((f"{submitter} of group {group}", submitter, most.user, "user."))
    return found


def _both(rules: QuotaRules, group: str) -> tuple[Most, Most]:
    most = rules.of(group)
    return most.group, most.user


def _of(rules: QuotaRules, group: str, user: str) -> Most:
    most = rules.of(group)
    return most.user if user else most.group


def _limits_running(rules: QuotaRules, group: str) -> bool:
    return any(most.limits_running for most in _both(rules, group))


def _lock(db: Connection, group: str) -> None:
    """Wait for all transactions that count what this group has. Several groups are locked in order of their names."""
    if db.dialect.name == "postgresql":
        db.execute(_LOCK, {"group_": group})
