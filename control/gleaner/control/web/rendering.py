"""The only module that turns templates into pages.

All content of a page is escaped, and control characters are shown as escapes. Whatever users, nodes and workloads write
stays text.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from gleaner.agent.common.installed_version import installed_version
from gleaner.agent.common.quantities import in_words, size
from gleaner.control.api.access import Caller
from gleaner.control.api.problems import answer_to
from gleaner.control.input_errors import visible
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.states import Outcome, State
from gleaner.control.web.session import form_token, session_of

HOUR_S, DAY_S = 3600.0, 86400.0
DONE: Mapping[str, str] = {
    "submit": "Submitted.",
    "rerun": "Returned to the queue, to run again.",
    "hold": "Held.",
    "release": "Released.",
    "cancel": "Cancelled.",
    "priority": "The priority is set.",
    "migrate": "The job will continue on another node.",
    "drain": "The drain has been requested, and the list shows its progress.",
    "resume": "The nodes will be used again.",
    "trust": "The node is trusted again.",
    "out": "You are signed out.",
}
"""The confirmations of actions, for the page that follows. Its address contains only the key."""
TEMPLATES = Path(__file__).parent / "templates"


def page(request: Request, name: str, *, answer_status: int = 200, **facts: Any) -> HTMLResponse:
    """Return a page. Its template receives the caller as `me`, which is None for a user who is not signed in."""
    caller: Caller | None = getattr(request.state, "caller", None)
    settings = request.app.state.control_state.settings
    given = {
        "me": caller.identity if caller else None,
        "now_s": caller.now_s if caller else None,
        "form_token": form_token(session_of(request.headers)) if caller else "",
        "form_key": secrets.token_hex(16),
        "path": request.url.path,
        "query": {name: value for name, value in request.query_params.items() if name != "done"},
        "done": DONE.get(request.query_params.get("done", ""), ""),
        "version": installed_version(),
        "site": settings.site,
        "has_entitlements": settings.entitlements.mode != "off",
    }
    return HTMLResponse(environment().get_template(name).render(given | facts), status_code=answer_status)


def problem_page(request: Request, error: Exception, name: str = "problem.html", **facts: Any) -> HTMLResponse:
    """Return a page for an error, with the API's message and status."""
    answer = answer_to(error)
    detail = json.loads(bytes(answer.body))["detail"]
    shown = page(request, name, answer_status=answer.status_code, **facts | {"detail": detail})
    for header in ("Retry-After", "Allow"):
        if header in answer.headers:
            shown.headers[header] = answer.headers[header]
    return shown


@cache
def environment() -> jinja2.Environment:
    """Return the environment of our templates."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters: dict[str, Callable[..., Any]] = {
        "moment": moment,
        "duration": in_words,
        "size": size,
        "count": count,
        "hours": hours,
        "instant": instant,
        "zone": zone,
    }
    untyped = cast(Any, made)  # jinja2 gives it no types
    untyped.filters.update(filters)
    untyped.globals |= {"link": link, "lines": lines, "states": list(State), "outcomes": list(Outcome)}
    untyped.globals["rows_a_page"] = ROWS_A_PAGE
    return made


def shown(value: Any) -> Any:
    """Return a value as a template can print it: control characters become escapes, tabs become spaces, None becomes
    ""."""
    if value is None:
        return ""
    return visible(value.expandtabs()) if isinstance(value, str) and not isinstance(value, Markup) else value


def lines(text: str) -> Markup:
    """Return a text of several lines with its line ends, for a field in which users edit it.

    A browser drops a line end at the beginning, so one is added.
    """
    return Markup("\n") + Markup("\n").join(visible(line) for line in text.splitlines())


def moment(at_s: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> Markup | str:
    """Return an instant in the time zone of control's machine.

    >>> moment(None)
    ''
    """
    if at_s is None:
        return ""
    try:
        then = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):  # outside of the calendar
        return f"{at_s:g}"
    return Markup('<time datetime="{}">{}</time>').format(
        then.strftime("%Y-%m-%dT%H:%M:%SZ"), then.astimezone().strftime(form)
    )


def zone(at_s: float) -> str:
    """Return the name of the time zone of control's machine at this instant."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Z")


def instant(at_s: float, length_s: float) -> str:
    """Return an instant as a label on an axis of this length. A shorter axis has labels with more digits.

    With a length of 0, everything except the seconds is shown.
    """
    then = datetime.fromtimestamp(at_s, UTC).astimezone()
    if not length_s:
        return then.strftime("%Y-%m-%d %H:%M")
    if length_s <= HOUR_S:
        return then.strftime("%H:%M:%S")
    return then.strftime("%H:%M" if length_s <= DAY_S else "%m-%d %H:%M" if length_s <= 8 * DAY_S else "%m-%d")


def count(number: float) -> str:
    """Return a number with separated thousands.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,.0f}"


def hours(number: float) -> str:
    """Return a number of hours. Smaller numbers have more decimals.

    >>> hours(1234.56), hours(0.0), hours(0.042)
    ('1,234.6', '0', '0.042')
    """
    return f"{number:,.1f}" if abs(number) >= 1 else f"{number:.2g}"


def link(path: str, query: Mapping[str, object], **changes: object) -> str:
    """Return an address with a changed query, without empty values.

    >>> link("/web/jobs", {"state": "New", "page": 3}, page=None, text="a&b")
    '/web/jobs?state=New&text=a%26b'
    """
    left = {name: value for name, value in {**query, **changes}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(left)}" if left else path
