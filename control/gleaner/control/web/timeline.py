"""The timeline, which shows the use of each node and the slices on it. A click in the picture leads to the job
there."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api.access import Caller, User
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.policy.node_time import finest
from gleaner.control.policy.provisioning import boundary
from gleaner.control.queue import node_history
from gleaner.control.settings import RoundSettings
from gleaner.control.web.gate import ROOT
from gleaner.control.web.listing import ListSearch
from gleaner.control.web.node_shares import node_shares
from gleaner.control.web.rendering import page
from gleaner.control.web.timeline_chart import WIDTH, TimelineChart, timeline_chart

router = APIRouter(prefix=f"{ROOT}/timeline")

NODES_AT_MOST = 1000
"""The maximum number of nodes that are drawn. A search finds others."""
SLICES_AT_MOST = 20_000
"""The maximum number of slices that are drawn one by one. If there are more, only the use of the nodes is drawn."""
STEPS_AT_MOST = 1450
"""The maximum number of snapshots that are drawn. A day has 1440 steps of one minute."""
ENDS_AT_MOST = 400
LEAST_REFRESH_S = 10


@dataclass(frozen=True, slots=True)
class Length:
    """A period that users can choose for the picture."""

    words: str
    length_s: int


LENGTHS = {
    "10m": Length("10 minutes", 600),
    "1h": Length("an hour", 3600),
    "6h": Length("6 hours", 6 * 3600),
    "1d": Length("a day", 86_400),
    "1w": Length("a week", 7 * 86_400),
}


class TimelineSearch(ListSearch):
    """The requested part of the timeline. Without `end`, the timeline ends now and is kept up to date."""

    length: Literal["10m", "1h", "6h", "1d", "1w"] = "1h"
    end: Annotated[int, Query(ge=0, le=2**40)] | None = None


@router.get("")
def timeline(request: Request, caller: User, wanted: Annotated[TimelineSearch, Query()]) -> Response:
    """Return the picture of all nodes whose names contain the text."""
    length_s = LENGTHS[wanted.length].length_s
    point_s = length_s / WIDTH
    end_s = float(wanted.end or math.ceil(caller.now_s / point_s) * point_s)
    rows = slice(wanted.skipped, wanted.skipped + ROWS_A_PAGE)
    chart, found, shares, is_whole = draw(caller, begin_s=end_s - length_s, end_s=end_s, text=wanted.text, rows=rows)
    return page(
        request,
        "timeline.html",
        chart=chart,
        found=found,
        is_whole=is_whole,
        shares=shares,
        wanted=wanted,
        lengths=LENGTHS,
        length_s=length_s,
        refresh_s=max(LEAST_REFRESH_S, math.ceil(point_s)),
    )


@router.get("/at")
def at_place(
    caller: User,
    node: Annotated[str, Query(max_length=63)],
    at_s: Annotated[int, Query(alias="at", ge=0, le=MAX_ID)],
) -> Response:
    """Redirect to the job that ran on that node at that time, or to the node if the caller sees no such job."""
    with caller.reading() as db:
        job = node_history.job_at(db, node=node, at_s=at_s, group=caller.group)
    return RedirectResponse(f"{ROOT}/nodes/{quote(node, safe='')}" if job is None else f"{ROOT}/jobs/{job}", 303)


def draw(
    caller: Caller, *, begin_s: float, end_s: float, text: str, rows: slice
) -> tuple[TimelineChart, int, Mapping[str, Mapping[str, float]], bool]:
    """Return the picture and its data.

    The data are the number of matching nodes, the parts of the time of these rows' nodes, and True if the picture
    contains each slice.
    """
    state, now_s = caller.state, caller.now_s
    keep_days = state.settings.history.keep_days
    look_s = finest(begin_s=begin_s, end_s=end_s, now_s=now_s, steps_at_most=STEPS_AT_MOST, keep_days=keep_days)
    with caller.reading() as db:
        looks = node_history.node_uses(db, begin_s=begin_s - look_s, end_s=end_s, step_s=look_s)
        slices = node_history.slices(db, begin_s=begin_s, end_s=end_s, at_most=SLICES_AT_MOST)
    begin_s = max(begin_s, min((look.begin_s for look in looks), default=begin_s))  # the first data
    names = {name for some in {look.names for look in looks} for name in some if text.casefold() in name.casefold()}
    named = sorted(names, key=_by_number)
    drawn = named[:NODES_AT_MOST]
    chart = timeline_chart(
        drawn,
        looks,
        slices or (),
        begin_s=begin_s,
        end_s=end_s,
        look_s=look_s,
        now_s=now_s,
        ends_s=_shared_ends(state.settings.rounds, begin_s, end_s),
    )
    shares = node_shares(drawn[rows], looks, slices or (), begin_s=begin_s, end_s=end_s, look_s=look_s, now_s=now_s)
    return chart, len(named), shares, slices is not None


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which node9 comes before node10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _shared_ends(rounds: RoundSettings, begin_s: float, end_s: float) -> Sequence[float]:
    """Return the shared ends in this period, or none if there are so many that they would hide the picture."""
    if not rounds.synchronised or (end_s - begin_s) / rounds.length_s > ENDS_AT_MOST:
        return ()
    ends = [boundary(begin_s, length_s=rounds.length_s, origin_s=rounds.origin_s)]
    while ends[-1] <= end_s:
        ends.append(ends[-1] + rounds.length_s)
    return ends[:-1]
