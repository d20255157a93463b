"""The report of a month as a page, and as a file for a spreadsheet."""

import csv
import io
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gleaner.control.api import report
from gleaner.control.api.access import User
from gleaner.control.models.report import MonthReport, ReportFilter, ReportRow
from gleaner.control.web.gate import ROOT
from gleaner.control.web.rendering import page

router = APIRouter(prefix=ROOT)

YEARS = (1970, 9000)
"""The years in which every month has a previous and a next month."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """A part of the nodes' time, and its hours. `part` is its name in the style sheet."""

    part: str
    what: str
    hours: float


@router.get("/report")
def report_page(request: Request, caller: User, wanted: Annotated[ReportFilter, Query()]) -> Response:
    """Return the use of the nodes' time in a month, and the users who got the harvested part."""
    found = report.report(caller, wanted)
    return page(
        request,
        "report.html",
        found=found,
        nodes=node_parts(found),
        before=neighbour(found.month, -1),
        after=neighbour(found.month, 1),
        may_ask=caller.group is None,
    )


@router.get("/report.csv")
def report_file(caller: User, wanted: Annotated[ReportFilter, Query()]) -> Response:
    """Return the rows of a month's report as comma-separated values."""
    found = report.report(caller, wanted)
    text = io.StringIO()
    made = csv.DictWriter(text, ("month", *ReportRow.model_fields))
    made.writeheader()
    made.writerows({"month": found.month} | row.model_dump() for row in found.rows)
    name = f'attachment; filename="gleaner-{found.month}.csv"'
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers={"Content-Disposition": name})


def node_parts(found: MonthReport) -> tuple[NodePart, ...]:
    """Return the parts of the nodes' time that control saw, in the order in which they are drawn from left to right."""
    return (
        NodePart("regular", "regular jobs", found.regular_node_h),
        NodePart("harvested", "harvested", found.harvested_node_h),
        NodePart("saving", "saving", found.saving_node_h),
        NodePart("restoring", "restoring", found.restoring_node_h),
        NodePart("starting", "starting, inputs and images", found.starting_node_h),
        NodePart("lost", "lost", found.lost_node_h),
        NodePart("unused", "agents without a job", found.unused_node_h),
        NodePart("idle", "idle", found.idle_node_h),
        NodePart("unusable", "not usable", found.unusable_node_h),
    )


def neighbour(month: str, step: int) -> str | None:
    """Return the month before (-1) or after (1) another one, or None at the ends of the calendar.

    >>> neighbour("2026-12", 1), neighbour("2026-01", -1), neighbour("9000-12", 1)
    ('2027-01', '2025-12', None)
    """
    number = int(month[:4]) * 12 + int(month[5:]) - 1 + step
    year, rest = divmod(number, 12)
    return f"{year:04}-{rest + 1:02}" if YEARS[0] <= year <= YEARS[1] else None
