"""The rules of a campaign: how many of its jobs run at once, how many must succeed first, and how many can fail.

The jobs whose turn has not come wait in closed lanes of the campaign, which a claim skips in one step. To open a job
means to move it to the lane of new jobs, and the job stays open until it has ended. So no more jobs can run than are
open, and claims do not need to count them. Functions that open jobs first lock the campaign's row.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, literal, select, text, update
from sqlalchemy.sql.dml import ReturningUpdate

from gleaner.control.models.jobs import Submission
from gleaner.control.queue import lanes
from gleaner.control.queue.database import allow_whole_campaign
from gleaner.control.queue.tables import CAMPAIGN, JOB, LANE, WAITS, LaneWish
from gleaner.control.queue.transitions import LANE_OF_NEW, record_all
from gleaner.control.states import Outcome, State

IDS_AT_ONCE = 10_000
"""The greatest number of ids in one statement. Databases accept only some tens of thousands of values."""
_C = CAMPAIGN.c
_LOCK = text("SELECT pg_advisory_xact_lock(26477, :campaign_)")
"""This number keeps our advisory locks apart from other locks in the same database."""


def add(db: Connection, campaign: int, wanted: Submission, wish: LaneWish, *, jobs: int) -> int | None:
    """Record the rules of a new campaign. Return the lane in which its jobs wait for their turn, or None if they do not
    wait.

    `open_jobs` opens the first jobs once they exist.
    """
    waits = wanted.max_running is not None or wanted.try_first is not None
    lane = lanes.ensure_of_campaign(db, wish, campaign, is_new=True) if waits else None
    tried = min(wanted.try_first or 0, jobs)
    rules = {"max_running": wanted.max_running, "try_left": tried, "try_unopened": tried}
    rules["failures_left"] = wanted.may_fail(jobs)
    db.execute(update(CAMPAIGN).where(_C.id == campaign).values(waiting_lane=lane, **rules))
    return lane


def _count_of_end(outcome: Outcome) -> ReturningUpdate[Any]:
    """Return the statement that counts the end of an open job and returns its campaign with the rules."""
    mine = JOB.c.id == bindparam("job_")
    campaign = select(JOB.c.campaign).where(mine).scalar_subquery()
    waited_in = select(LANE.c.campaign).join(JOB, JOB.c.lane == LANE.c.id).where(mine).scalar_subquery()
    left: dict[Any, Any] = {"open_jobs": _C.open_jobs - 1}
    if outcome is Outcome.SUCCEEDED:
        left["try_left"] = case((_C.try_left > 0, _C.try_left - 1), else_=0)
    elif outcome is Outcome.FAILED:
        left["failures_left"] = _C.failures_left - 1
    else:  # another job is tried in its place
        left["try_unopened"] = case((_C.try_left > 0, _C.try_unopened + 1), else_=0)
    return update(CAMPAIGN).where(_C.id == campaign, waited_in == 0).values(left).returning(CAMPAIGN)


_COUNT_OF_END = {outcome: _count_of_end(outcome) for outcome in Outcome}
"""The statements are made only once, because one of them runs each time that a job of such a campaign ends."""


def record_end(db: Connection, job: int, outcome: Outcome, *, now_s: float) -> None:
    """Open more jobs of the campaign after the end of an open one, or hold the rest if too many have failed."""
    row = db.execute(_COUNT_OF_END[outcome], {"job_": job}).one_or_none()
    if row is None:
        return
    if row.failures_left is not None and row.failures_left < 0:
        # This is repeated at each end until a release, because jobs that another transaction was changing were left
        # out.
        hold_rest(db, row.id, reason="more jobs of its campaign have failed than max_failures allows", now_s=now_s)
    else:
        _open(db, row)


def record_end_of_all(db: Connection, campaign: int) -> None:
    """Record that all jobs of the campaign were cancelled. After a rerun, other jobs are tried in place of those that
    were open."""
    tried = case((_C.try_left > 0, _C.try_unopened + _C.open_jobs), else_=0)
    db.execute(update(CAMPAIGN).where(_C.id == campaign).values(open_jobs=0, try_unopened=tried))


def record_rerun(db: Connection, campaign: int, *, failed: int) -> None:
    """Subtract this number of failures, because their jobs wait for their turn again, and open the jobs whose turn has
    come."""
    tried = case((_C.try_left > 0, _C.try_unopened + failed), else_=0)
    freed = {"failures_left": _C.failures_left + failed, "try_unopened": tried}
    db.execute(update(CAMPAIGN).where(_C.id == campaign).values(freed))
    open_jobs(db, campaign)


def open_jobs(db: Connection, campaign: int) -> None:
    """Open the jobs whose turn has come, because they are new, were released, or have a new priority."""
    _open(db, db.execute(select(CAMPAIGN).where(_C.id == campaign).with_for_update()).one())


def release(db: Connection, campaign: int, *, any_held: bool) -> None:
    """Open jobs after the release of the whole campaign, and allow further failures.

    A release that found no held job starts the jobs that wait for the first ones to succeed.
    """
    freed: dict[str, Any] = {"failures_left": case((_C.failures_left >= 0, _C.failures_left), else_=None)}
    freed |= {} if any_held else {"try_left": literal(0)}
    db.execute(update(CAMPAIGN).where(_C.id == campaign).values(freed))
    open_jobs(db, campaign)


def _open(db: Connection, campaign: Any) -> None:
    """Open as many jobs of a locked campaign as can be open. While some are tried first, open only those.

    A job that another transaction is changing is left out. If the job still waits afterwards, that transaction opens
    jobs itself.
    """
    limits = [campaign.try_unopened] if campaign.try_left else []
    if campaign.max_running is not None:
        limits.append(campaign.max_running - campaign.open_jobs)
    if campaign.waiting_lane is None or any(limit <= 0 for limit in limits):
        return
    waiting = select(JOB.c.id, JOB.c.priority).where(text(WAITS)).with_for_update(skip_locked=True)
    if limits:
        waiting = waiting.order_by(JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id).limit(min(limits))
    else:
        allow_whole_campaign(db)
    of_campaign = select(LANE.c.id).where(LANE.c.campaign == campaign.id, text("campaign <> 0"))
    found = [
        row for lane in db.execute(of_campaign).scalars().all() for row in db.execute(waiting.where(JOB.c.lane == lane))
    ]
    found.sort(key=lambda row: (-row.priority, row.id))
    opened = [row.id for row in found[: min(limits, default=None)]]
    for some in batched(opened):
        db.execute(update(JOB).where(JOB.c.id.in_(some)).values(lane=LANE_OF_NEW))
    tried = case((_C.try_left > 0, _C.try_unopened - len(opened)), else_=0)
    counts = {"open_jobs": _C.open_jobs + len(opened), "try_unopened": tried}
    db.execute(update(CAMPAIGN).where(_C.id == campaign.id).values(counts))


def lock(db: Connection, campaign: int) -> None:
    """Wait for all transactions that change the whole campaign, before any of its rows is locked.

    Without this lock, jobs that one such transaction runs again would be added to those that another has selected.
    """
    if db.dialect.name == "postgresql":
        db.execute(_LOCK, {"campaign_": campaign})


def batched(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield these ids in parts that fit into one statement."""
    return (ids[at : at + IDS_AT_ONCE] for at in range(0, len(ids), IDS_AT_ONCE))


def hold_rest(db: Connection, campaign: int, *, reason: str, now_s: float, new_only: bool = False) -> None:
    """Hold the campaign's jobs that have not ended, or with `new_only` those that have not begun.

    Jobs that another transaction is changing are left out.
    """
    allow_whole_campaign(db)
    of_state = JOB.c.state == State.NEW if new_only else JOB.c.state != State.COMPLETE
    free = select(JOB.c.id).where(JOB.c.campaign == campaign, of_state, ~JOB.c.held)
    unlocked = db.execute(free.with_for_update(skip_locked=True)).scalars().all()
    for some in batched(unlocked):
        which = JOB.c.id.in_(some)
        db.execute(update(JOB).where(which).values(held=True, hold_reason=reason))
        record_all(db, which, "hold", now_s=now_s, detail=reason)


def turn(db: Connection, job: int) -> str:
    """Return the reason why the job's turn has not come, or "" if it has."""
    mine = select(CAMPAIGN).join(LANE, LANE.c.campaign == _C.id).join(JOB, JOB.c.lane == LANE.c.id)
    row = db.execute(mine.where(JOB.c.id == job)).one_or_none()
    if row is None:
        return ""
    if row.try_left:
        return (
            f"it waits until the first jobs of its campaign have succeeded, {row.try_left} more"
            f" (start it at once with `glean release --campaign {row.id}`)"
        )
    return f"it waits for its turn: of its campaign at most {row.max_running} jobs run at once"
