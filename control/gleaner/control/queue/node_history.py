"""The history of node time: sums in steps of three lengths, the use of each node in each step, and lost slices.

It also contains the delays of regular jobs that took nodes from agents. Only the leader writes here, in one transaction
for each poll. Old steps are removed as `RESOLUTIONS` prescribes. The slices of a day are selected through an index on
the attempts' ends. On a thousand nodes, a day has sixty thousand rows, which take a tenth of a second to read.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, select, update

from gleaner.control.models.jobs import Ending
from gleaner.control.models.report import ReportRow
from gleaner.control.policy.harm import Delay
from gleaner.control.policy.lossy_nodes import SliceCounts
from gleaner.control.policy.node_time import DAY_S, FIELDS, RESOLUTIONS, AttemptTime, NodeTime
from gleaner.control.queue.tables import ATTEMPT, JOB, LANE, NODE_TIME, NODE_TIME_MARK, NODE_USE, REGULAR_DELAY

HOUR_S = 3600.0
_GIVEN_UP = ATTEMPT.c.ending.in_([Ending.LOST, Ending.FORGOTTEN, Ending.CANCELLED])
_BEGUN_S = ATTEMPT.c.start_s + ATTEMPT.c.restore_s
_UNACCOUNTED_S = ATTEMPT.c.ended_s - ATTEMPT.c.claimed_s - _BEGUN_S - ATTEMPT.c.save_s - ATTEMPT.c.counted_s
_REST_S = case((_GIVEN_UP, _UNACCOUNTED_S), else_=ATTEMPT.c.compute_s - ATTEMPT.c.counted_s)
LOST_S = case((_REST_S > 0, _REST_S), else_=0.0)
"""The computing time that an attempt has lost. An attempt that was given up has not reported how long it computed."""

IS_LOST = and_(ATTEMPT.c.ending.in_([Ending.LOST, Ending.RETURNED]), LOST_S > 0)
"""The condition that a slice is lost. A slice that its user cancelled is not a loss of the node, and neither is a slice
that its agent never knew about."""


@dataclass(frozen=True, slots=True)
class NodeUses:
    """The use of each node in one step: one letter of `Use` for each name, in the same order."""

    begin_s: int
    names: tuple[str, ...]
    letters: str


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """One slice on a node, and the computing time that it lost. `ended_s` is None while it runs."""

    node: str
    job: int
    group: str
    claimed_s: float
    ended_s: float | None
    restore_s: float
    """The time to restore the job, or to start it."""
    save_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class LostSlice:
    """A lost slice, and the computing time that was lost with it."""

    job: int
    attempt: int
    ended_s: float
    lost_s: float
    ending: str
    detail: str


_GROW = (
    update(NODE_TIME)
    .where(NODE_TIME.c.step_s == bindparam("step_s_"), NODE_TIME.c.begin_s == bindparam("begin_s_"))
    .values({name: NODE_TIME.c[name] + bindparam(f"{name}_") for name in FIELDS})
)


def add(db: Connection, step_s: int, times: Mapping[int, NodeTime]) -> None:
    """Add these sums to the steps that begin at these times."""
    for begin_s, time in sorted(times.items()):
        row = {"step_s": step_s, "begin_s": begin_s} | {name: getattr(time, name) for name in FIELDS}
        if not db.execute(_GROW, {f"{name}_": value for name, value in row.items()}).rowcount:
            db.execute(insert(NODE_TIME), row)


def times(db: Connection, *, begin_s: float, end_s: float, step_s: int) -> dict[int, NodeTime]:
    """Return the sums of all steps of this length that begin between these times."""
    rows = select(*(NODE_TIME.c[name] for name in ("begin_s", *FIELDS))).where(
        NODE_TIME.c.step_s == step_s, NODE_TIME.c.begin_s >= begin_s, NODE_TIME.c.begin_s < end_s
    )
    return {row[0]: NodeTime(*row[1:]) for row in db.execute(rows)}


def record_uses(db: Connection, step_s: int, uses: NodeUses) -> None:
    """Record the use of each node in a step. The last record of a step replaces earlier ones."""
    this = and_(NODE_USE.c.step_s == step_s, NODE_USE.c.begin_s == uses.begin_s)
    content = zlib.compress("\n".join((uses.letters, *uses.names)).encode())
    if not db.execute(update(NODE_USE).where(this).values(content=content)).rowcount:
        db.execute(insert(NODE_USE), {"step_s": step_s, "begin_s": uses.begin_s, "content": content})


def node_uses(db: Connection, *, begin_s: float, end_s: float, step_s: int) -> list[NodeUses]:
    """Return the use of each node in all steps of this length that begin between these times, in order."""
    rows = (
        select(NODE_USE.c.begin_s, NODE_USE.c.content)
        .where(NODE_USE.c.step_s == step_s, NODE_USE.c.begin_s >= begin_s, NODE_USE.c.begin_s < end_s)
        .order_by(NODE_USE.c.begin_s)
    )
    found: list[NodeUses] = []
    known: tuple[str, tuple[str, ...]] = ("", ())
    for begin, content in db.execute(rows):
        letters, _, text = zlib.decompress(content).decode().partition("\n")
        if text != known[0]:  # the cluster rarely changes, so thousands of steps share one tuple
            known = (text, tuple(text.split("\n")))
        found.append(NodeUses(begin, known[1], letters))
    return found


def mark(db: Connection) -> float | None:
    """Return the time up to which the sums contain the ends of attempts, or None before the first sum."""
    return db.execute(select(NODE_TIME_MARK.c.attempts_s)).scalar_one_or_none()


def set_mark(db: Connection, attempts_s: float) -> None:
    """Record the time up to which the sums contain the ends of attempts."""
    if not db.execute(update(NODE_TIME_MARK).values(attempts_s=attempts_s)).rowcount:
        db.execute(insert(NODE_TIME_MARK), {"id": 1, "attempts_s": attempts_s})


def ended_attempts(db: Connection, *, after_s: float, until_s: float) -> list[AttemptTime]:
    """Return the times of all attempts that ended later than `after_s`, up to `until_s`."""
    rows = (
        select(
            ATTEMPT.c.claimed_s,
            ATTEMPT.c.ended_s,
            LANE.c.cpus,
            ATTEMPT.c.start_s,
            ATTEMPT.c.restore_s,
            ATTEMPT.c.counted_s,
            LOST_S,
            ATTEMPT.c.save_s,
        )
        .select_from(_WITH_CORES)
        .where(ATTEMPT.c.ended_s > after_s, ATTEMPT.c.ended_s <= until_s)
    )
    return [AttemptTime(*row) for row in db.execute(rows)]


_WITH_CORES = ATTEMPT.join(JOB, JOB.c.id == ATTEMPT.c.job).join(LANE, LANE.c.id == JOB.c.lane)


def report_rows(
    db: Connection, *, begin_s: float, end_s: float, group: str | None = None, campaign: int | None = None
) -> tuple[ReportRow, ...]:
    """Return a row for each group and user with the attempts that ended in this period, and their core hours.

    With a group or a campaign, only its jobs count.
    """
    by = (JOB.c.group, JOB.c.submitter.label("user"))
    sums = {
        "harvested": ATTEMPT.c.counted_s,
        "starting": ATTEMPT.c.start_s,
        "restoring": ATTEMPT.c.restore_s,
        "saving": ATTEMPT.c.save_s,
        "lost": LOST_S,
    }
    rows = (
        select(
            *by,
            func.count().label("slices"),
            *((func.sum(LANE.c.cpus * seconds) / HOUR_S).label(f"{name}_core_h") for name, seconds in sums.items()),
        )
        .select_from(_WITH_CORES)
        .where(ATTEMPT.c.ended_s >= begin_s, ATTEMPT.c.ended_s < end_s)
        .group_by(*by)
        .order_by(*by)
    )
    for column, only in ((JOB.c.group, group), (JOB.c.campaign, campaign)):
        rows = rows if only is None else rows.where(column == only)
    return tuple(ReportRow(**row) for row in db.execute(rows).mappings())


def remove_old(db: Connection, *, now_s: float, keep_days: int) -> int:
    """Remove the steps that are past the retention time for their length, and old delays. Return how many were
    removed."""
    removed = 0
    for each in RESOLUTIONS:
        before_s = now_s - (each.keep_days or keep_days) * DAY_S
        for table in (NODE_TIME, NODE_USE):
            old = delete(table).where(table.c.step_s == each.step_s, table.c.begin_s < before_s)
            removed += db.execute(old).rowcount
    started_before = REGULAR_DELAY.c.start_s < now_s - keep_days * DAY_S
    return removed + db.execute(delete(REGULAR_DELAY).where(started_before)).rowcount


def slices(db: Connection, *, begin_s: float, end_s: float, at_most: int) -> list[NodeSlice] | None:
    """Return the slices that overlap this period, including those that still run. The slices have no particular order.

    Return None if there are more than `at_most`. They are counted first, because reading many takes long.
    """
    ended = and_(ATTEMPT.c.ended_s >= begin_s, ATTEMPT.c.claimed_s < end_s)
    running = and_(ATTEMPT.c.ending.is_(None), ATTEMPT.c.claimed_s < end_s)
    some_more = (select(ATTEMPT.c.job).where(when).limit(at_most + 1).subquery() for when in (ended, running))
    if sum(db.execute(select(func.count()).select_from(rows)).scalar_one() for rows in some_more) > at_most:
        return None
    columns = (ATTEMPT.c.node, ATTEMPT.c.job, JOB.c.group, ATTEMPT.c.claimed_s, ATTEMPT.c.ended_s)
    some = select(*columns, _BEGUN_S.label("restore_s"), ATTEMPT.c.save_s, LOST_S.label("lost_s")).join(
        JOB, JOB.c.id == ATTEMPT.c.job
    )
    found = [NodeSlice(*row[:-1], lost_s=row.lost_s) for row in db.execute(some.where(ended))]
    return found + [NodeSlice(*row[:-1], lost_s=0.0) for row in db.execute(some.where(running))]


def job_at(db: Connection, *, node: str, at_s: float, group: str | None) -> int | None:
    """Return the job that was claimed last among those that ran on that node at that time.

    With a group, only its jobs count.
    """
    then = and_(ATTEMPT.c.node == node, ATTEMPT.c.claimed_s <= at_s)
    some = select(ATTEMPT.c.job).join(JOB, JOB.c.id == ATTEMPT.c.job).order_by(ATTEMPT.c.claimed_s.desc()).limit(1)
    if group is not None:
        some = some.where(JOB.c.group == group)
    for when in (and_(ATTEMPT.c.ended_s >= at_s, ATTEMPT.c.ended_s < at_s + DAY_S), ATTEMPT.c.ending.is_(None)):
        job: int | None = db.execute(some.where(then, when)).scalar_one_or_none()
        if job is not None:
            return job
    return None


def count_slices(db: Connection, *, since_s: float) -> dict[str, SliceCounts]:
    """Return the counts of each node on which a slice has ended since that time."""
    columns = (ATTEMPT.c.node, func.count().label("slices"), func.sum(case((IS_LOST, 1), else_=0)).label("lost"))
    rows = select(*columns).where(ATTEMPT.c.ended_s >= since_s).group_by(ATTEMPT.c.node)
    return {row.node: SliceCounts(int(row.slices), int(row.lost)) for row in db.execute(rows)}


def lost_by_attempt(db: Connection, job: int) -> dict[int, float]:
    """Return the computing time, in seconds, that ended attempts of a job have lost, by attempt. Attempts that have
    lost none are left out."""
    rows = select(ATTEMPT.c.attempt, LOST_S).where(ATTEMPT.c.job == job, ATTEMPT.c.ended_s.is_not(None), LOST_S > 0)
    return {attempt: float(lost_s) for attempt, lost_s in db.execute(rows)}


def latest_lost(db: Connection, node: str, *, since_s: float, group: str | None, at_most: int) -> list[LostSlice]:
    """Return the latest slices that the node has lost since that time, of this group's jobs or, with None, of all."""
    columns = (ATTEMPT.c.job, ATTEMPT.c.attempt, ATTEMPT.c.ended_s, LOST_S, ATTEMPT.c.ending, ATTEMPT.c.detail)
    rows = select(*columns).where(ATTEMPT.c.ended_s >= since_s, ATTEMPT.c.node == node, IS_LOST)
    if group is not None:
        rows = rows.join(JOB, JOB.c.id == ATTEMPT.c.job).where(JOB.c.group == group)
    return [LostSlice(*row) for row in db.execute(rows.order_by(ATTEMPT.c.ended_s.desc()).limit(at_most))]


def record_delays(db: Connection, delays: Iterable[Delay]) -> None:
    """Record these delays, one for each start.

    If a start is recorded twice, the shorter delay counts, because the agent that was found later also left later.
    """
    for one in delays:
        key = {"job": one.job, "start_s": one.start_s}
        known_s = REGULAR_DELAY.c.delay_s
        shorter = case((known_s > one.delay_s, one.delay_s), else_=known_s)
        if not db.execute(update(REGULAR_DELAY).filter_by(**key).values(delay_s=shorter)).rowcount:
            db.execute(insert(REGULAR_DELAY).values(**key, delay_s=one.delay_s))


def delays_s(db: Connection, *, begin_s: float, end_s: float) -> list[float]:
    """Return the delays, in seconds, of the jobs that started between these times."""
    started = (REGULAR_DELAY.c.start_s >= begin_s) & (REGULAR_DELAY.c.start_s < end_s)
    return list(db.execute(select(REGULAR_DELAY.c.delay_s).where(started)).scalars())
