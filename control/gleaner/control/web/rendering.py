"""Templates become pages here and nowhere else.

Everything that a page says is escaped, and control characters are shown as escapes: whatever users, nodes and workloads
write, it stays text.
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
from gleaner.control.web.session import form_token, session_of

HOUR_S, DAY_S = 3600.0, 86400.0
DONE: Mapping[str, str] = {
    "submit": "Submitted.",
    "hold": "Held.",
    "release": "Released.",
    "cancel": "Cancelled.",
    "priority": "The priority is set.",
    "migrate": "The job is to go on at another node.",
    "drain": "The drain is taken down; the list shows how it goes on.",
    "resume": "The nodes are to be used again.",
    "trust": "The node is trusted again.",
    "out": "You are signed out.",
}
"""The words for an act that is done, on the page that follows; its address has the key only."""
TEMPLATES = Path(__file__).parent / "templates"


def page(request: Request, name: str, *, answer_status: int = 200, **facts: Any) -> HTMLResponse:
    """Return a page. Its template finds the caller as `me`, None for somebody who is not signed in."""
    caller: Caller | None = getattr(request.state, "caller", None)
    given = {
        "me": caller.identity if caller else None,
        "now_s": caller.now_s if caller else None,
        "form_token": form_token(session_of(request.headers)) if caller else "",
        "form_key": secrets.token_hex(16),
        "path": request.url.path,
        "query": {name: value for name, value in request.query_params.items() if name != "done"},
        "done": DONE.get(request.query_params.get("done", ""), ""),
        "version": installed_version(),
    }
    return HTMLResponse(environment().get_template(name).render(given | facts), status_code=answer_status)


def problem_page(request: Request, error: Exception) -> HTMLResponse:
    """Return the page for an error: the API's own words for it, and its status."""
    answer = answer_to(error)
    detail = json.loads(bytes(answer.body))["detail"]
    shown = page(request, "problem.html", answer_status=answer.status_code, detail=detail)
    for name in ("Retry-After", "Allow"):
        if name in answer.headers:
            shown.headers[name] = answer.headers[name]
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
    untyped = cast(Any, made)  # its types are not known
    untyped.filters.update(filters)
    untyped.globals |= {"link": link, "lines": lines}
    return made


def shown(value: Any) -> Any:
    """Return a value as a template may print it: control characters are escapes, tabs are spaces, None is nothing."""
    if value is None:
        return ""
    return visible(value.expandtabs()) if isinstance(value, str) and not isinstance(value, Markup) else value


def lines(text: str) -> Markup:
    """Return a text of several lines, for a field where people go on writing: line ends stay.

    A browser leaves out a first line end, so there is always one more.
    """
    return Markup("\n") + Markup("\n").join(visible(line) for line in text.splitlines())


def moment(at_s: float | None) -> Markup | str:
    """Return an instant in the zone of control's machine.

    >>> moment(None)
    ''
    """
    if at_s is None:
        return ""
    try:
        then = datetime.fromtimestamp(at_s, UTC)
    except (OverflowError, ValueError, OSError):  # no calendar has it
        return f"{at_s:g}"
    return Markup('<time datetime="{}">{}</time>').format(
        then.strftime("%Y-%m-%dT%H:%M:%SZ"), then.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )


def zone(at_s: float) -> str:
    """Return the name of the zone of control's machine, as of this instant."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Z")


def instant(at_s: float, length_s: float) -> str:
    """Return an instant as a mark of an axis of this length: the shorter it is, the more digits it has.

    A length of 0 asks for all but the seconds.
    """
    then = datetime.fromtimestamp(at_s, UTC).astimezone()
    if not length_s:
        return then.strftime("%Y-%m-%d %H:%M")
    if length_s <= HOUR_S:
        return then.strftime("%H:%M:%S")
    return then.strftime("%H:%M" if length_s <= DAY_S else "%m-%d %H:%M" if length_s <= 8 * DAY_S else "%m-%d")


def count(number: float) -> str:
    """Return a number with its thousands apart.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,.0f}"


def hours(number: float) -> str:
    """Return a number of hours: the smaller it is, the more digits.

    >>> hours(1234.56), hours(0.0), hours(0.042)
    ('1,234.6', '0', '0.042')
    """
    return f"{number:,.1f}" if abs(number) >= 1 else f"{number:.2g}"


def link(path: str, query: Mapping[str, object], **changes: object) -> str:
    """Return an address: the query with some changes, without what is empty.

    >>> link("/web/jobs", {"state": "New", "page": 3}, page=None, text="a&b")
    '/web/jobs?state=New&text=a%26b'
    """
    left = {name: value for name, value in {**query, **changes}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(left)}" if left else path
