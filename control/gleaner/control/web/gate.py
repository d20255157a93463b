"""The gate in front of the pages. It identifies the user, and checks the origin of each request.

A browser is identified by the cookie of its session, which is sent to `/web` only. The API accepts no cookie, so that
another site cannot make a browser call it. A request that changes something must come from one of our pages. This is
shown by the browser's origin headers, and by a value in the form that only our pages know.
"""

import hmac
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlsplit

from fastapi import Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gleaner.control.api.access import Caller
from gleaner.control.api.instruments import Instruments
from gleaner.control.api.munge_login import is_vouched_for
from gleaner.control.control_state import ControlState
from gleaner.control.queue import web_sessions
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.tokens import Identity
from gleaner.control.web.rendering import problem_page
from gleaner.control.web.session import form_token, session_of

ROOT = "/web"
SIGN_IN = f"{ROOT}/sign-in"
STATIC = f"{ROOT}/static/"
EVENTS = f"{ROOT}/events"
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
LARGEST_FORM_BYTES = 2**20

_READS = frozenset({"GET", "HEAD"})


def is_page(path: str) -> bool:
    """Return True if the path belongs to a page rather than to the API."""
    return path in {"/", ROOT} or path.startswith(f"{ROOT}/")


class PageGate:
    """The middleware in front of the pages. It stores the `Caller` where the API's routes store it."""

    def __init__(self, app: ASGIApp, *, state: ControlState, meters: Instruments) -> None:
        self._app = app
        self._state = state
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let permitted requests pass, and answer all others."""
        try:
            answer = await self._answer(scope)
        except Exception as error:
            answer = problem_page(Request(scope), error)
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response | None:
        """Return None for a permitted request, with its `Caller` in the scope, or the answer to any other request."""
        headers, path = Headers(scope=scope), str(scope["path"])
        is_read = scope["method"] in _READS
        if not is_read and not is_from_here(headers):
            raise HTTPException(403, "this did not come from one of Gleaner's pages: open the page again and retry")
        if path in {"/", SIGN_IN} or path.startswith(STATIC):
            return None
        secret = session_of(headers)
        identity = await run_in_threadpool(owner_of, self._state, secret) if secret else None
        if identity is not None:
            scope.setdefault("state", {})["caller"] = Caller(identity, self._state, self._meters)
            return None
        if "hx-request" in headers:
            return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
        if not is_read:
            raise HTTPException(401, "your session has ended: sign in again")
        query = str(scope.get("query_string", b""), "latin-1")
        here = path + (f"?{query}" if query else "")
        return RedirectResponse(f"{SIGN_IN}?next={quote(here, safe='')}", 303)


def owner_of(state: ControlState, secret: str) -> Identity | None:
    """Return the owner of a session, or None if the session has ended or the owner has lost the right to it."""
    with snapshot(state.engine) as db:
        me = web_sessions.identify(db, secret, now_s=state.clock())
    return me if me is None or me.token or is_vouched_for(me, state.settings.munge.allow) else None


def is_from_here(headers: Mapping[str, str]) -> bool:
    """Return True unless the browser reports that the request comes from a page that is not ours.

    A browser from before 2020 might report nothing. The request is then checked only by the value in the form.

    >>> is_from_here({"host": "gleaner:8642", "origin": "https://gleaner:8642"})
    True
    >>> is_from_here({"host": "gleaner:8642", "origin": "https://evil.example"})
    False
    >>> is_from_here({"host": "gleaner:8642", "sec-fetch-site": "same-site"})
    False
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Raises 413 and 422."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_FORM_BYTES:
            raise HTTPException(413, f"the form is larger than {LARGEST_FORM_BYTES // 2**20} MiB: send less at once")
    try:
        return dict(parse_qsl(content.decode("utf-8"), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise HTTPException(422, "this is not the content of one of Gleaner's forms") from error


async def _fields(request: Request) -> Mapping[str, str]:
    fields = await read_form(request)
    given, right = fields.get(FORM_TOKEN, ""), form_token(session_of(request.headers))
    if not hmac.compare_digest(given.encode("utf-8", "replace"), right.encode()):
        raise HTTPException(403, "this form does not belong to your session: open the page again and retry")
    return {name: value.strip() for name, value in fields.items() if name != FORM_TOKEN}


Fields = Annotated[Mapping[str, str], Depends(_fields)]
"""The fields of a form that was sent by one of this session's pages."""
