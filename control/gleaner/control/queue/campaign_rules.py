"""The rules of a campaign: how many of its jobs run at once, how many must succeed first, and how many may fail.

The jobs whose turn has not come wait in a closed lane of the campaign, which a claim steps over at once. A job is
opened when it is moved to the lane of new jobs, and keeps its place until it has ended. So at most as many jobs can run
as are open, and claims need not count. Whoever opens jobs has locked the campaign's row.
"""

from typing import Any

from sqlalchemy import Connection, and_, case, func, select, text, update

from gleaner.control.models.jobs import Submission
from gleaner.control.queue import lanes
from gleaner.control.queue.database import allow_whole_campaign
from gleaner.control.queue.tables import CAMPAIGN, JOB, WAITS, LaneWish
from gleaner.control.queue.transitions import LANE_OF_NEW, record_all
from gleaner.control.states import Outcome, State

IDS_AT_ONCE = 10_000
"""Databases take at most some ten thousand values in one statement."""
_C = CAMPAIGN.c


def add(db: Connection, campaign: int, wanted: Submission, wish: LaneWish, *, jobs: int) -> int | None:
    """Record the rules of a new campaign. Return the lane in which its jobs wait for their turn, if they do.

    `open_first` opens the first jobs once they exist.
    """
    may_fail = wanted.may_fail(jobs)
    waits = wanted.max_running is not None or wanted.try_first is not None
    lane = lanes.ensure_of_campaign(db, wish, campaign) if waits else None
    rules = {"max_running": wanted.max_running, "try_left": min(wanted.try_first or 0, jobs), "failures_left": may_fail}
    db.execute(update(CAMPAIGN).where(_C.id == campaign).values(waiting_lane=lane, **rules))
    return lane


def record_end(db: Connection, job: int, outcome: Outcome, *, now_s: float) -> None:
    """Open more jobs of the campaign after the end of an open one, or hold the rest if too many have failed."""
    mine = select(JOB.c.campaign).where(JOB.c.id == job, JOB.c.lane != func.coalesce(_C.waiting_lane, 0))
    has_rule = _C.waiting_lane.is_not(None) | _C.failures_left.is_not(None)
    left: dict[Any, Any] = {"open_jobs": _C.open_jobs - 1}
    if outcome is Outcome.SUCCEEDED:
        left["try_left"] = case((_C.try_left > 0, _C.try_left - 1), else_=0)
    if outcome is Outcome.FAILED:
        left["failures_left"] = _C.failures_left - 1
    of_job = _C.id == mine.correlate(CAMPAIGN).scalar_subquery()
    row = db.execute(update(CAMPAIGN).where(of_job, has_rule).values(left).returning(CAMPAIGN)).one_or_none()
    if row is None:
        return
    if row.failures_left is not None and row.failures_left < 0:
        db.execute(update(CAMPAIGN).where(_C.id == row.id).values(failures_left=None))
        hold_rest(db, row.id, reason="more jobs of its campaign have failed than max_failures allows", now_s=now_s)
    _open(db, row)


def open_first(db: Connection, campaign: int) -> None:
    """Open the first jobs of a new campaign."""
    row = db.execute(select(CAMPAIGN).where(_C.id == campaign)).one()
    _open(db, row, first=row.try_left)


def release(db: Connection, campaign: int, *, whole: bool) -> None:
    """Open the jobs whose turn has come because a job, or the whole campaign, was released.

    The release of the whole campaign also ends its rule about the jobs that must succeed first.
    """
    if whole:
        db.execute(update(CAMPAIGN).where(_C.id == campaign).values(try_left=0))
    _open(db, db.execute(select(CAMPAIGN).where(_C.id == campaign).with_for_update()).one())


def _open(db: Connection, campaign: Any, *, first: int = 0) -> None:
    """Open as many jobs of a locked campaign as can be open. While some are tried first, open only those."""
    if campaign.waiting_lane is None or (campaign.try_left and not first):
        return
    limits = [first] if first else []
    if campaign.max_running is not None:
        limits.append(max(0, campaign.max_running - campaign.open_jobs))
    waiting = select(JOB.c.id).where(JOB.c.lane == campaign.waiting_lane, text(WAITS))
    if limits:
        waiting = waiting.order_by(JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id).limit(min(limits))
    else:
        allow_whole_campaign(db)
        waiting = select(JOB.c.id).where(JOB.c.lane == campaign.waiting_lane, JOB.c.state == State.NEW)
    opened = db.execute(update(JOB).where(JOB.c.id.in_(waiting)).values(lane=LANE_OF_NEW)).rowcount
    db.execute(update(CAMPAIGN).where(_C.id == campaign.id).values(open_jobs=_C.open_jobs + opened))


def hold_rest(db: Connection, campaign: int, *, reason: str, now_s: float, new_only: bool = False) -> None:
    """Hold the campaign's jobs that have not ended, or with `new_only` those that have not begun.

    Jobs that another transaction is changing are left out.
    """
    allow_whole_campaign(db)
    of_state = JOB.c.state == State.NEW if new_only else JOB.c.state != State.COMPLETE
    free = select(JOB.c.id).where(JOB.c.campaign == campaign, of_state, ~JOB.c.held)
    unlocked = db.execute(free.with_for_update(skip_locked=True)).scalars().all()
    for at in range(0, len(unlocked), IDS_AT_ONCE):
        some = JOB.c.id.in_(unlocked[at : at + IDS_AT_ONCE])
        db.execute(update(JOB).where(some).values(held=True, hold_reason=reason))
        record_all(db, some, "hold", now_s=now_s, detail=reason)


def turn(db: Connection, job: int) -> str:
    """Return the reason why the job's turn has not come, or "" if it has."""
    mine = select(CAMPAIGN).join(JOB, and_(JOB.c.campaign == _C.id, JOB.c.lane == _C.waiting_lane))
    row = db.execute(mine.where(JOB.c.id == job)).one_or_none()
    if row is None:
        return ""
    if row.try_left:
        return (
            f"it waits until the first jobs of its campaign have succeeded, {row.try_left} more"
            f" (start it at once with `glean release --campaign {row.id}`)"
        )
    return f"it waits for its turn: of its campaign at most {row.max_running} jobs run at once"
