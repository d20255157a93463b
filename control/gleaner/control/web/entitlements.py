"""Entitlements, with each owner's cores and waiting jobs, and decisions with their whole input."""

import json
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api import decisions, owners
from gleaner.control.api.access import User
from gleaner.control.web.gate import ROOT
from gleaner.control.web.listing import ListSearch, listing
from gleaner.control.web.rendering import page

router = APIRouter(prefix=ROOT)

MOST_LINES = 5000
"""The maximum number of lines of a decision's input that are shown, because a large cluster has many jobs."""


@router.get("/entitlements")
def entitlement_list(request: Request, caller: User, wanted: Annotated[ListSearch, Query()]) -> Response:
    """Return each owner's used and entitled CPUs, and its waiting jobs with the decision on each."""
    status = owners.owners(caller)
    found = listing(status.waiting, wanted)
    return page(request, "entitlements.html", status=status, found=found, wanted=wanted)


@router.get("/decisions/{decision}")
def show_decision(request: Request, caller: User, decision: Annotated[int, Path(ge=1, le=MAX_ID)]) -> Response:
    """Return one decision, with its input and its answer."""
    found = decisions.show(caller, decision)
    return page(
        request, "decision.html", found=found, given=_lines(found.given), answer=_lines(found.answer), most=MOST_LINES
    )


def _lines(value: object) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()[:MOST_LINES]
