"""Signing in and out. A code from `glean web`, or a token, is exchanged for a session, whose secret only the browser
has.

Neither a code nor a token ever appears in an address that a browser sends, or in a log. `glean web` puts the code
behind the `#`, which browsers do not send, and the page posts it.
"""

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from gleaner.control.api.access import LONGEST_TOKEN, Caller, TokenLookup, User
from gleaner.control.control_state import ControlState
from gleaner.control.queue import web_sessions
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.tokens import Identity
from gleaner.control.web.gate import ROOT, SIGN_IN, Fields, owner_of, read_form
from gleaner.control.web.rendering import page
from gleaner.control.web.session import forget_session, session_of, set_session

router = APIRouter()

UNKNOWN = "this token or code is not known here, or it has ended; `glean web` makes a code that is valid for a minute"
_OWN_PATH = re.compile(r"/web([/?][A-Za-z0-9._~/?&=%+:-]*)?")


class SignIn:
    """The check of tokens and codes."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._lookups = TokenLookup(state)

    async def session(self, token: str, code: str) -> str | None:
        """Return the secret of a new session, or None if neither the token nor the code is valid."""
        if code:
            return await run_in_threadpool(self._by_code, code)
        who = await self._lookups.identity(token)
        if who is None or who.role not in {"user", "admin"}:
            return None
        if who.expires_s is not None and who.expires_s <= self._state.clock():
            return None
        return await run_in_threadpool(self._by_token, who)

    def _by_code(self, code: str) -> str | None:
        now_s = self._state.clock()
        with snapshot(self._state.engine) as db:  # a wrong code causes no write
            if not web_sessions.is_code(db, code, now_s=now_s):
                return None
        with self._state.writing() as db:
            return web_sessions.open_by_code(db, code, now_s=now_s)

    def _by_token(self, who: Identity) -> str:
        with self._state.writing() as db:
            return web_sessions.open_by_token(db, who, now_s=self._state.clock())


def own_path(wanted: str) -> str:
    """Return the page to continue with. It is always one of our pages, whatever an address contains.

    >>> own_path("/web/jobs?state=New"), own_path("https://evil.example/web"), own_path("//evil.example")
    ('/web/jobs?state=New', '/web', '/web')
    """
    return wanted if _OWN_PATH.fullmatch(wanted) and wanted != SIGN_IN else ROOT


Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get(SIGN_IN)
async def sign_in_page(request: Request, wanted: Next = ROOT) -> Response:
    """Return the form for a token. Our script posts the code behind the `#`."""
    return page(request, "sign_in.html", next=own_path(wanted), why="")


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Begin a session, and continue with the requested page."""
    fields = await read_form(request)
    token, code = fields.get("token", "").strip(), fields.get("code", "").strip()
    wanted = own_path(fields.get("next", ROOT))
    signing: SignIn = request.app.state.sign_in
    secret = None
    if 0 < len(token or code) <= LONGEST_TOKEN:
        secret = await signing.session(token, code)
    state: ControlState = request.app.state.control_state
    who = None if secret is None else await run_in_threadpool(owner_of, state, secret)
    if secret is None or who is None:
        return page(request, "sign_in.html", answer_status=401, next=wanted, why=UNKNOWN)
    request.state.caller = Caller(who, state, request.app.state.meters)  # for the audit log
    answer = RedirectResponse(wanted, 303)
    set_session(answer, secret, is_encrypted=request.url.scheme == "https")
    return answer


@router.post(f"{ROOT}/sign-out")
def sign_out(request: Request, caller: User, _fields: Fields) -> Response:
    """End the session."""
    with caller.writing() as db:
        web_sessions.end(db, session_of(request.headers))
    answer = RedirectResponse(f"{SIGN_IN}?done=out", 303)
    forget_session(answer)
    return answer
