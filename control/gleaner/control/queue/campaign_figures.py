"""The figures of campaigns: their progress and expected end, their failures by cause, and their use of nodes.

Each query reads the jobs of a campaign once, through the index of its jobs. Causes and use are queried only for the
page of a single campaign and for `glean campaign show`.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, case, func, select

from gleaner.control.models.campaigns import CampaignDetail, CampaignRow, FailureCause
from gleaner.control.policy.expected_end import RECENT_S, expected_end
from gleaner.control.queue import logs
from gleaner.control.queue.node_history import IS_LOST, report_rows
from gleaner.control.queue.queries import COUNTED, find_campaign, sums_of
from gleaner.control.queue.tables import ATTEMPT, JOB, SPEC
from gleaner.control.states import Outcome

MOST_CAUSES = 20


def campaign_rows(
    db: Connection, campaigns: Sequence[RowMapping], *, now_s: float, keep_s: float | None
) -> tuple[CampaignRow, ...]:
    """Return these campaigns with the number of their jobs in each state, and the figures that follow from it."""
    ended = JOB.c.outcome.in_([Outcome.SUCCEEDED, Outcome.FAILED])
    counted = COUNTED | {"recent": and_(ended, JOB.c.ended_s > now_s - RECENT_S)}
    sums = (
        select(
            JOB.c.campaign,
            *sums_of(counted),
            func.max(JOB.c.ended_s).label("ended_s"),
            func.sum(JOB.c.output_bytes).label("result_bytes"),
            func.min(case((JOB.c.output_bytes.is_not(None), JOB.c.ended_s))).label("first_s"),
        )
        .where(JOB.c.campaign.in_([row["id"] for row in campaigns]))
        .group_by(JOB.c.campaign)
    )
    found = {row["campaign"]: row for row in db.execute(sums).mappings()}
    return tuple(_campaign_row(row, found[row["id"]], now_s=now_s, keep_s=keep_s) for row in campaigns)


def _campaign_row(row: RowMapping, sums: RowMapping, *, now_s: float, keep_s: float | None) -> CampaignRow:
    counts = {name: int(sums[name]) for name in COUNTED}
    unfinished = counts["new"] + counts["running"] + counts["saved"]
    ended, recently = counts["succeeded"] + counts["failed"], int(sums["recent"])
    expected = expected_end(
        submitted_s=row["submitted_s"],
        unfinished=unfinished,
        held=counts["held"],
        ended=ended,
        ended_recently=recently,
        now_s=now_s,
    )
    more = {
        "expected": expected,
        "ended_s": None if unfinished else sums["ended_s"],
        "result_bytes": int(sums["result_bytes"] or 0),
        "kept_until_s": None if keep_s is None or sums["first_s"] is None else sums["first_s"] + keep_s,
    }
    return CampaignRow.model_validate({**row, **counts, **more})


def campaign_detail(db: Connection, campaign: int, *, now_s: float, keep_s: float | None) -> CampaignDetail:
    """Return all known facts about one campaign. Raises `NotFound`."""
    row = find_campaign(db, campaign)
    mine = JOB.c.campaign == campaign
    ends = select(JOB.c.index, JOB.c.parameters, SPEC.c.document).join(SPEC, SPEC.c.id == JOB.c.spec).where(mine)
    first, last = (db.execute(ends.order_by(by).limit(1)).one() for by in (JOB.c.index, JOB.c.index.desc()))
    lost = select(func.count()).select_from(ATTEMPT.join(JOB, JOB.c.id == ATTEMPT.c.job)).where(mine, IS_LOST)
    more: dict[str, Any] = {
        "spec": first.document,
        "first_job": {"index": str(first[0]), **(first.parameters or {})},
        "last_job": {"index": str(last[0]), **(last.parameters or {})},
        "causes": _causes(db, campaign),
        "lost_slices": db.execute(lost).scalar_one(),
        "use": next(iter(report_rows(db, begin_s=0, end_s=now_s + 1, campaign=campaign)), None),
    }
    (known,) = campaign_rows(db, [row], now_s=now_s, keep_s=keep_s)
    return CampaignDetail.model_validate({**row, **dict(known), **more})


def _causes(db: Connection, campaign: int) -> list[FailureCause]:
    """Return the causes of the failed jobs, the most frequent first. A cause is the reason of the latest attempt."""
    latest = and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == JOB.c.attempt)
    jobs = func.count().label("jobs")
    first_job = func.min(JOB.c.id).label("first_job")
    groups = (
        select(ATTEMPT.c.detail.label("cause"), jobs, first_job)
        .join_from(JOB, ATTEMPT, latest)
        .where(JOB.c.campaign == campaign, JOB.c.outcome == Outcome.FAILED)
        .group_by(ATTEMPT.c.detail)
        .order_by(jobs.desc(), first_job)
        .limit(MOST_CAUSES)
    )
    return [FailureCause(**row, last_line=_last_line(db, row["first_job"])) for row in db.execute(groups).mappings()]


def _last_line(db: Connection, job: int) -> str:
    last = logs.last_number(db, job)
    lines = () if last is None else logs.read(db, job, last, 1).lines
    return lines[0] if lines else ""
