"""Reruns: jobs that have failed or were cancelled wait again, as if they were new.

They stay in their campaign, with their numbers, indices and parameters, and are subject to its rules again. Attempt
numbers continue to increase, so reports and archives of earlier attempts never count for the new run. All jobs of one
rerun change in one transaction.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, select

from gleaner.agent.common.quantities import memory_in_words
from gleaner.agent.job_spec import JobSpec
from gleaner.control.models.jobs import CampaignRerun, Rerun
from gleaner.control.queue import attempts, campaign_rules, images, inputs, jobs, lanes
from gleaner.control.queue.database import allow_whole_campaign
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.jobs import SubmissionRules, accepted, add_spec
from gleaner.control.queue.quota_checks import check_submission
from gleaner.control.queue.tables import CAMPAIGN, JOB, LANE, SPEC, LaneWish
from gleaner.control.queue.transitions import lock, make_for_all
from gleaner.control.states import Outcome, Transition

_JOBS = select(JOB, JOB.c.index.label("run")).order_by(JOB.c.id)
_ENDED_BADLY = JOB.c.outcome.in_((Outcome.FAILED, Outcome.CANCELLED))


def rerun(db: Connection, job: int, change: Rerun, *, rules: SubmissionRules, by: str, now_s: float) -> None:
    """Run one job again. Raises `Conflict` if the job has succeeded or has not ended, and also the errors of
    `rerun_campaign`."""
    campaign = db.execute(select(JOB.c.campaign).where(JOB.c.id == job)).scalar_one_or_none()
    if campaign is not None:
        campaign_rules.lock(db, campaign)
    row = lock(db, job)
    if row.outcome in {None, Outcome.SUCCEEDED}:
        raise _refused(row)
    _again(db, [row], change, rules=rules, by=by, now_s=now_s)


def rerun_campaign(
    db: Connection, campaign: int, change: CampaignRerun, *, rules: SubmissionRules, by: str, now_s: float
) -> Sequence[int]:
    """Run again the failed jobs of a campaign, or its jobs with the given indices. Return the jobs.

    Raises `Conflict` if one of them cannot run again, or if an image or an input that they need was removed, `NotFound`
    for an index that the campaign does not have, and `OverQuota` as a submission does.
    """
    campaign_rules.lock(db, campaign)
    allow_whole_campaign(db)
    mine = _JOBS.where(JOB.c.campaign == campaign)
    which = and_(JOB.c.outcome == Outcome.FAILED, ~JOB.c.is_removed) if change.only is None else _ENDED_BADLY
    rows = db.execute(mine.where(which).with_for_update()).all()
    if change.only is None and not rows:
        raise Conflict(f"campaign {campaign} has no failed job, so nothing runs again")
    if change.only is not None:
        wanted = set(change.only)
        rows = [row for row in rows if row.run in wanted]
        for index in sorted(wanted - {row.run for row in rows})[:1]:
            other = db.execute(mine.where(JOB.c.index == index)).one_or_none()
            raise _refused(other) if other else NotFound(f"campaign {campaign} has no job with index {index}")
    _again(db, rows, change, rules=rules, by=by, now_s=now_s)
    return [row.id for row in rows]


def _refused(row: Any) -> Conflict:
    if row.outcome is Outcome.SUCCEEDED:
        return Conflict(f"job {row.id} has succeeded; submit it again to compute it again")
    return Conflict(f"job {row.id} cannot run again before it has ended: it is {row.state}")


def _again(
    db: Connection, rows: Sequence[Any], change: Rerun, *, rules: SubmissionRules, by: str, now_s: float
) -> None:
    """Make the transition for jobs of one campaign, or one job, whose rows are locked."""
    first = rows[0]
    campaign = select(CAMPAIGN.c.waiting_lane).where(CAMPAIGN.c.id == first.campaign)
    waits = db.execute(campaign).scalar_one_or_none() is not None
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        alike[row.spec, row.lane].append(row.id)
    specs = {spec: _spec(db, spec, first.group, change, rules=rules, now_s=now_s) for spec, _ in dict.fromkeys(alike)}
    detail = f"by {by}" + (f", with {memory_in_words(change.memory_mib)}" if change.memory_mib else "")
    detail += f", with the image {change.image}" if change.image else ""
    for (spec, lane), ids in alike.items():
        number, document = specs[spec]
        wish = LaneWish.model_validate(db.execute(select(LANE).where(LANE.c.id == lane)).mappings().one())
        if change.memory_mib is not None:
            wish = wish.model_copy(update={"memory_mib": document.memory_mib})
        whose, size = (first.group, first.submitter), (wish.cpus, wish.memory_mib)
        check_submission(db, rules.quotas, rules.stored_bytes, whose, jobs=len(ids), size=size)
        to = lanes.ensure_for_new(db, wish, saves_itself=document.saves_itself is not None)
        if waits:
            to = lanes.ensure_of_campaign(db, wish, first.campaign)
        for some in campaign_rules.batched(ids):
            attempts.forget_paths(db, some)
            which = and_(JOB.c.id.in_(some), _ENDED_BADLY)
            make_for_all(db, which, Transition.RERUN, now_s=now_s, detail=detail, lane=to, spec=number)
    if first.campaign is not None:
        failed = sum(row.outcome is Outcome.FAILED for row in rows)
        campaign_rules.record_rerun(db, first.campaign, failed=failed)


def _spec(
    db: Connection, spec: int, group: str, change: Rerun, *, rules: SubmissionRules, now_s: float
) -> tuple[int, JobSpec]:
    """Return the number of the spec for the new run, and the spec. If it needs no change, it is the old one."""
    row = db.execute(select(SPEC).where(SPEC.c.id == spec)).one()
    document: JobSpec = row.document
    jobs.check_places(document, group, rules=rules)
    taken = inputs.take_again(db, group, row.inputs, now_s=now_s)
    if change.image is None and row.image_id is not None and not images.is_stored(db, row.image_id):
        raise Conflict(f"the image {document.image} of the first run was removed: name one with --image")
    wanted = change.model_dump(include={"image", "memory_mib"}, exclude_none=True)
    if not wanted and taken == row.inputs:
        return spec, document
    if (document.most_memory_mib or 0) <= wanted.get("memory_mib", 0):
        wanted["most_memory_mib"] = None
    document = accepted(document.model_copy(update=wanted), rules)
    image_id = row.image_id if change.image is None else images.pushed_id(db, group, change.image)
    return add_spec(db, document, taken, image_id=image_id), document
