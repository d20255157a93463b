"""Campaigns: the list, one campaign with its jobs, and its results."""

import tarfile
from collections.abc import AsyncGenerator
from typing import Annotated, Any, cast

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from gleaner.agent.system.tar_policy import END
from gleaner.control.api import campaigns, images, jobs
from gleaner.control.api.access import Caller, User
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
    """Return a campaign's specification, its progress, its failures, and its jobs."""
    detail = campaigns.show_detail(caller, campaign)
    found = jobs.list_jobs(caller, wanted.model_copy(update={"campaign": campaign, "group": caller.group}))
    text, names = as_submitted(detail.spec), images.image_names(caller) if detail.failed else []
    facts: dict[str, Any] = {"campaign": detail, "submitted": text, "found": found, "wanted": wanted, "images": names}
    return page(request, "campaign.html", **facts)


@router.get("/{campaign}/results.tar")
def results(caller: User, campaign: CampaignPath) -> StreamingResponse:
    """Return the results of a campaign's jobs as one archive, in which the result of each job is an archive.

    If a result is damaged, the archive stops before its end.
    """
    campaigns.show(caller, campaign)  # raises an error unless the caller is allowed to see it
    name = f'attachment; filename="campaign-{campaign}.tar"'
    headers = {"Content-Disposition": name}
    return StreamingResponse(_packed(caller, campaign), media_type="application/x-tar", headers=headers)


async def _packed(caller: Caller, campaign: int) -> AsyncGenerator[bytes]:
    after = 0
    while rows := await run_in_threadpool(campaigns.results, caller, campaign, after):
        for row in rows:
            if row.digest is None:
                continue
            try:
                result = await jobs.output(caller=caller, job=row.job)
            except HTTPException as error:
                if error.status_code != 404:  # the result has been removed since
                    raise
                continue
            member = tarfile.TarInfo(f"{row.name}-{row.index}.tar")
            member.size = int(result.headers["Content-Length"])
            yield member.tobuf(tarfile.GNU_FORMAT)
            async for chunk in result.body_iterator:
                yield cast("bytes", chunk)
            yield bytes(-member.size % tarfile.BLOCKSIZE)
        after = rows[-1].job
    yield END
