"""Campaigns: the list, one campaign with its jobs, and its results."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gleaner.control.api import campaigns, jobs
from gleaner.control.api.access import User
from gleaner.control.api.campaigns import CampaignPath
from gleaner.control.campaigns.campaign_file import as_submitted
from gleaner.control.models.searches import CampaignSearch, JobSearch
from gleaner.control.web.gate import ROOT
from gleaner.control.web.rendering import page

router = APIRouter(prefix=f"{ROOT}/campaigns")


@router.get("")
def campaign_list(request: Request, caller: User, wanted: Annotated[CampaignSearch, Query()]) -> Response:
    """Return the campaigns that the caller is allowed to see."""
    wanted = wanted.model_copy(update={"group": caller.group or wanted.group})
    return page(request, "campaigns.html", found=campaigns.list_campaigns(caller, wanted), wanted=wanted)


@router.get("/{campaign}")
def show_campaign(
    request: Request, caller: User, campaign: CampaignPath, wanted: Annotated[JobSearch, Query()]
) -> Response:
    """Return what was submitted, how far it is, what failed, and the jobs."""
    detail = campaigns.show_detail(caller, campaign)
    found = jobs.list_jobs(caller, wanted.model_copy(update={"campaign": campaign, "group": caller.group}))
    spec = as_submitted(detail.spec)
    return page(request, "campaign.html", campaign=detail, submitted=spec, found=found, wanted=wanted)
