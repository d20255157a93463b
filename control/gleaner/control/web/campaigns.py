"""Campaigns: the list, and one campaign with its jobs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gleaner.control.api import campaigns
from gleaner.control.api.access import User
from gleaner.control.api.campaigns import CampaignPath
from gleaner.control.models.searches import ROWS_A_PAGE, CampaignSearch, JobSearch
from gleaner.control.queue import searches
from gleaner.control.web.gate import ROOT
from gleaner.control.web.rendering import page

router = APIRouter(prefix=f"{ROOT}/campaigns")


@router.get("")
def campaign_list(request: Request, caller: User, wanted: Annotated[CampaignSearch, Query()]) -> Response:
    """Return the campaigns that the caller is allowed to see."""
    if caller.group is not None:
        wanted = wanted.model_copy(update={"group": caller.group})
    with caller.reading() as db:
        found = searches.campaign_page(db, wanted, now_s=caller.now_s)
    return page(request, "campaigns.html", found=found, wanted=wanted, rows_a_page=ROWS_A_PAGE)


@router.get("/{campaign}")
def show_campaign(
    request: Request, caller: User, campaign: CampaignPath, wanted: Annotated[JobSearch, Query()]
) -> Response:
    """Return the number of a campaign's jobs in each state, and its jobs."""
    status = campaigns.show(caller, campaign)
    wanted = wanted.model_copy(update={"campaign": campaign, "group": caller.group})
    with caller.reading() as db:
        found, name = searches.job_page(db, wanted), searches.campaign_name(db, campaign)
    return page(
        request,
        "campaign.html",
        campaign=campaign,
        campaign_name=name,
        status=status,
        found=found,
        wanted=wanted,
        rows_a_page=ROWS_A_PAGE,
    )
