"""The enforcement of quotas, in the transactions of submissions and claims.

Only a submission adds unfinished jobs, and only a claim adds running cores. On PostgreSQL, a lock that each transaction
holds until its end makes the submissions and claims of a limited group run one after the other. On SQLite, all writers
run one after the other. Therefore a count stays valid until it is used. All counts use an index. A submission reads the
group's jobs, and a claim the group's running jobs. A group without a limit is not counted.

Stored bytes are counted only from time to time (`Stored`). A save is never refused because of them, so even an exact
count would not be a strict limit.
"""

import time
from collections.abc import Callable, Collection, Mapping

from sqlalchemy import Connection, bindparam, func, select, text

from gleaner.control.policy.quotas import (
    Allowance,
    Quantity,
    QuotaRules,
    Whose,
    cores_in_use,
    over_cores,
    over_jobs,
    over_sizes,
    over_stored,
)
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.tables import CHECKPOINT, JOB, LANE, Standing
from gleaner.control.states import State

STORED_FRESH_S = 30.0
_LOCK = text("SELECT pg_advisory_xact_lock(26476, hashtext(:group_))")
"""This number keeps our advisory locks apart from other locks in the same database."""
UNENDED = text("job.state <> 'Complete'")  # exactly these words, so that the partial index is used
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
_CHECKPOINTS = (
    select(JOB.c.group, JOB.c.submitter, func.sum(CHECKPOINT.c.size_bytes).label("bytes"))
    .join_from(JOB, CHECKPOINT, CHECKPOINT.c.job == JOB.c.id)
    .where(UNENDED, CHECKPOINT.c.standing == Standing.NAMED)
    .group_by(JOB.c.group, JOB.c.submitter)
)
_OUTPUTS = (
    select(JOB.c.group, JOB.c.submitter, func.sum(JOB.c.output_bytes).label("bytes"))
    .where(text("job.output_bytes IS NOT NULL"))
    .group_by(JOB.c.group, JOB.c.submitter)
)


class OverQuota(Conflict):
    """A group or user has reached a quota."""


class Stored:
    """The stored bytes of each group and user, as the leader last counted them."""

    def __init__(self, steady_clock: Callable[[], float] = time.monotonic) -> None:
        self._kept = SmallCache[None, Mapping[Whose, int]](steady_clock)

    def bytes_by_owner(self, db: Connection) -> Mapping[Whose, int]:
        """Return the bytes by group and user, and by group alone.

        If the last count is old, they are counted again through this connection.
        """
        return self._kept.get(None, lambda: stored_bytes(db), fresh_s=STORED_FRESH_S, rest=50)


def stored_bytes(db: Connection) -> Mapping[Whose, int]:
    """Return the bytes of outputs and of the checkpoints from which jobs can continue.

    They are returned by group and user, and by group alone.
    """
    found: dict[Whose, int] = {}
    for row in (*db.execute(_CHECKPOINTS), *db.execute(_OUTPUTS)):
        for whose in {(row.group, row.submitter), (row.group, "")}:
            found[whose] = found.get(whose, 0) + int(row.bytes)
    return found


def check_submission(
    db: Connection,
    rules: QuotaRules,
    stored_bytes: Callable[[Connection], Mapping[Whose, int]] | None,
    submitter: Whose,
    *,
    jobs: int,
    size: tuple[int, int],
) -> None:
    """Raise `OverQuota` if this many jobs of that size (cores, memory) exceed a quota of the group or the user."""
    has_bytes: Mapping[Whose, int] = stored_bytes(db) if stored_bytes is not None and rules.any_stored else {}
    for limit, whose in rules.concerning(*submitter, Quantity.STORED, Quantity.CORES):
        if limit.of is Quantity.CORES and size[0] > limit.most:
            raise OverQuota(over_cores(limit, whose, cpus=size[0]))
        if limit.of is Quantity.STORED and has_bytes.get(whose, 0) > limit.most:
            raise OverQuota(over_stored(limit, whose, has_bytes=has_bytes[whose]))
    counted = tuple(rules.concerning(*submitter, Quantity.JOBS, Quantity.SIZES))
    if counted:
        lock(db, submitter[0])
    for limit, whose in counted:
        if limit.of is Quantity.JOBS:
            has = _unended(db, *whose, at_most=limit.most)
            if has + jobs > limit.most:
                raise OverQuota(over_jobs(limit, whose, has=has, more=jobs))
        else:
            sizes = {(row.cpus, row.memory_mib) for row in db.execute(_SIZES, {"group_": submitter[0]})}
            if size not in sizes and len(sizes) >= limit.most:
                raise OverQuota(over_sizes(limit, whose, has=len(sizes)))


def _unended(db: Connection, group: str, user: str, *, at_most: int) -> int:
    """Return how many jobs have not ended. The count stops just above the quota."""
    some = select(JOB.c.id).where(JOB.c.group == group, UNENDED)
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
    """Return the allowance of these groups and their users for a claim. A group without a limit is not counted.

    Without `locks`, the allowance might be outdated when the caller uses it, which is sufficient for a plan.
    """
    left: dict[Whose, int] = {}
    each_user: dict[str, int] = {}
    for group in sorted(groups):
        limits = rules.limits(group, Quantity.CORES)
        if not limits:
            continue
        if locks:
            lock(db, group)
        running = {row.submitter: int(row.cpus) for row in db.execute(_RUNNING, {"group_": group})}
        for limit in limits:
            if limit.is_of_user:
                each_user[group] = limit.most
                left |= {(group, user): limit.most - cpus for user, cpus in running.items() if user}
            else:
                left[group, ""] = limit.most - sum(running.values())
    stored_limits = {group: rules.limits(group, Quantity.STORED) for group in groups}
    if not any(stored_limits.values()):
        return Allowance(left, each_user)
    full = [
        whose
        for whose, has_bytes in stored_bytes().items()
        for limit in stored_limits.get(whose[0], ())
        if limit.is_of_user == bool(whose[1]) and has_bytes > limit.most
    ]
    return Allowance(left, each_user, frozenset(full))


def obstacle(db: Connection, rules: QuotaRules, job: int, stored_bytes: Callable[[], Mapping[Whose, int]]) -> str:
    """Return, in words, the quota that keeps a waiting job from starting, or "" if there is none."""
    row = db.execute(_WAITING, {"job_": job}).one()
    of_cores = tuple(rules.concerning(row.group, row.submitter, Quantity.CORES))
    for limit, whose in of_cores:
        if row.cpus > limit.most:
            return over_cores(limit, whose, cpus=row.cpus)
    of_stored = tuple(rules.concerning(row.group, row.submitter, Quantity.STORED))
    if row.state is not State.SAVED and of_stored:
        has_bytes = stored_bytes()
        for limit, whose in of_stored:
            if has_bytes.get(whose, 0) > limit.most:
                return over_stored(limit, whose, has_bytes=has_bytes[whose])
    if not of_cores:
        return ""
    running = {each.submitter: int(each.cpus) for each in db.execute(_RUNNING, {"group_": row.group})}
    for limit, whose in of_cores:
        has = running.get(row.submitter, 0) if limit.is_of_user else sum(running.values())
        if has + row.cpus > limit.most:
            return cores_in_use(limit, whose, has=has)
    return ""


def lock(db: Connection, group: str) -> None:
    """Wait for all transactions that count the group's jobs.

    Callers lock several groups in the order of their names.
    """
    if db.dialect.name == "postgresql":
        db.execute(_LOCK, {"group_": group})
