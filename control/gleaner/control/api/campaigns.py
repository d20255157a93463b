"""Campaigns as a whole, and the counts of all jobs that the caller is allowed to see."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import Connection

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, User
from gleaner.control.api.examples import an_id
from gleaner.control.api.jobs import rerun_rules
from gleaner.control.api.problems import documented
from gleaner.control.models.campaigns import MAX_CAMPAIGN, CampaignDetail, CampaignList, CampaignStatus
from gleaner.control.models.jobs import CampaignRerun, Priority, Submitted
from gleaner.control.models.outputs import ResultRow
from gleaner.control.models.searches import CampaignFilter
from gleaner.control.queue import campaign_figures, jobs, queries, reruns, retention, searches

router = APIRouter(tags=["campaigns"])

CampaignPath = Annotated[int, an_id("The campaign's id", most=MAX_CAMPAIGN)]
After = Annotated[int, Query(ge=0, le=MAX_ID)]


def _own_campaign(caller: Caller, db: Connection, campaign: int) -> None:
    if caller.group not in {None, queries.find_campaign(db, campaign)["group"]}:
        raise HTTPException(403, f"campaign {campaign} belongs to another group")


def _check_may_change(caller: Caller, db: Connection, campaign: int) -> None:
    row = queries.find_campaign(db, campaign)
    caller.may_change(f"campaign {campaign}", group=row["group"], submitter=row["submitter"])


def _to_each(caller: Caller, campaign: int, act: Callable[[Connection], None]) -> CampaignStatus:
    with caller.writing() as db:
        _check_may_change(caller, db, campaign)
        act(db)
        return queries.status(db, campaign=campaign)


@router.get("/v1/status", responses=documented())
def status(caller: User) -> CampaignStatus:
    """Return the number of jobs in each state, among the jobs that the caller is allowed to see."""
    with caller.reading() as db:
        return queries.status(db, group=caller.group)


@router.get("/v1/campaigns", responses=documented(422))
def list_campaigns(caller: User, wanted: Annotated[CampaignFilter, Query()]) -> CampaignList:
    """Return a page of campaigns, the newest first, with their progress and their expected ends."""
    wanted, keep_s = caller.visible(wanted), caller.state.settings.outputs.keep_s
    with caller.reading() as db:
        return searches.campaign_page(db, wanted, mine=caller.name, now_s=caller.now_s, keep_s=keep_s)


@router.get("/v1/campaigns/{campaign}/detail", responses=documented(404, 422))
def show_detail(caller: User, campaign: CampaignPath) -> CampaignDetail:
    """Return the campaign's specification, its progress, the causes of its failures, and its node time."""
    keep_s = caller.state.settings.outputs.keep_s
    with caller.reading() as db:
        _own_campaign(caller, db, campaign)
        return campaign_figures.campaign_detail(db, campaign, now_s=caller.now_s, keep_s=keep_s)


@router.delete("/v1/campaigns/{campaign}", responses=documented(404, 409, 422))
def remove_campaign(caller: User, campaign: CampaignPath) -> CampaignStatus:
    """Remove all jobs of an ended campaign from all lists, with their results and logs."""
    return _to_each(caller, campaign, lambda db: retention.remove_campaign(db, campaign))


@router.get("/v1/campaigns/{campaign}", responses=documented(404, 422))
def show(caller: User, campaign: CampaignPath) -> CampaignStatus:
    """Return the number of jobs of the campaign in each state."""
    with caller.reading() as db:
        _own_campaign(caller, db, campaign)
        return queries.status(db, campaign=campaign)


@router.get("/v1/campaigns/{campaign}/results", responses=documented(404, 422))
def results(caller: User, campaign: CampaignPath, after: After = 0) -> tuple[ResultRow, ...]:
    """Return a page of rows that identify the results of the campaign's jobs, in order, starting after the job
    `after`."""
    with caller.reading() as db:
        _own_campaign(caller, db, campaign)
        return queries.results(db, caller.state.settings.storage.folder, campaign=campaign, after=after)


@router.post("/v1/campaigns/{campaign}/hold", responses=documented(404, 409, 422))
def hold_campaign(caller: User, campaign: CampaignPath) -> CampaignStatus:
    """Hold every job of the campaign that has not ended."""
    reason = f"by {caller.name}"
    return _to_each(caller, campaign, lambda db: jobs.hold_campaign(db, campaign, reason=reason, now_s=caller.now_s))


@router.post("/v1/campaigns/{campaign}/release", responses=documented(404, 409, 422))
def release_campaign(caller: User, campaign: CampaignPath) -> CampaignStatus:
    """Release every held job of the campaign."""
    by = caller.name
    return _to_each(caller, campaign, lambda db: jobs.release_campaign(db, campaign, by=by, now_s=caller.now_s))


@router.post("/v1/campaigns/{campaign}/cancel", responses=documented(404, 409, 422))
def cancel_campaign(caller: User, campaign: CampaignPath) -> CampaignStatus:
    """Cancel every job of the campaign that has not ended."""
    by = caller.name
    return _to_each(caller, campaign, lambda db: jobs.cancel_campaign(db, campaign, by=by, now_s=caller.now_s))


@router.post("/v1/campaigns/{campaign}/rerun", responses=documented(404, 409, 413, 422))
def rerun_campaign(
    caller: User, campaign: CampaignPath, change: Annotated[CampaignRerun | None, examples.A_RERUN] = None
) -> Submitted:
    """Run again the failed jobs of the campaign, or its jobs with the given indices. If one of them is refused, no job
    is run again."""
    wanted = change or CampaignRerun()
    with caller.writing() as db:
        _check_may_change(caller, db, campaign)
        rules = rerun_rules(caller, wanted, db, queries.first_job(db, campaign))
        again = reruns.rerun_campaign(db, campaign, wanted, rules=rules, by=caller.name, now_s=caller.now_s)
        return Submitted(campaign=campaign, jobs=tuple(again))


@router.patch("/v1/campaigns/{campaign}", responses=documented(404, 409, 413, 422))
def change_campaign(
    caller: User, campaign: CampaignPath, change: Annotated[Priority, examples.A_CHANGE]
) -> CampaignStatus:
    """Change the priority of every job of the campaign that has not ended."""
    by, now_s = caller.name, caller.now_s
    return _to_each(
        caller, campaign, lambda db: jobs.set_campaign_priority(db, campaign, change.priority, by=by, now_s=now_s)
    )
