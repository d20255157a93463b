"""The web page, served on the same port as the API. It shows the answers of the API's own functions."""

from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gleaner.control.api.audit import RequestRecord
from gleaner.control.api.problems import EVERY_ERROR
from gleaner.control.web import actions, campaigns, entitlements, jobs, live, nodes, overview, report, sign_in, timeline
from gleaner.control.web.gate import ROOT, STATIC, PageGate, is_page
from gleaner.control.web.rendering import problem_page

_PARTS = (sign_in, live, overview, jobs, campaigns, nodes, entitlements, report, timeline, actions)
_ROUTES = tuple(route for part in _PARTS for route in part.router.routes)
_STATIC_FILES = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without a referrer, browsers do not report the origin of a form either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def with_pages(api: FastAPI) -> ASGIApp:
    """Return the API together with the pages. They share its state, its measurements and its audit log."""
    pages = _pages(api)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope["path"]):
            await api(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await pages(scope, receive, sending)

    return answer


def _pages(api: FastAPI) -> FastAPI:
    state, meters = api.state.control_state, api.state.meters
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, routes=[*_ROUTES])
    pages.state.control_state = state
    pages.state.meters = meters
    pages.state.sign_in = sign_in.SignIn(state)
    pages.state.news = live.News(state)
    # The middleware that is added last is the outermost.
    pages.add_middleware(cast(Any, PageGate), state=state, meters=meters)
    pages.add_middleware(cast(Any, RequestRecord), audit=api.state.audit, meters=meters)
    for kind in EVERY_ERROR:
        pages.add_exception_handler(kind, _handle)
    pages.mount(STATIC.rstrip("/"), StaticFiles(directory=_STATIC_FILES))
    pages.add_api_route("/", _to_overview, response_class=Response)
    return pages


async def _to_overview() -> RedirectResponse:
    return RedirectResponse(ROOT, 303)


async def _handle(request: Request, error: Exception) -> Response:
    return problem_page(request, error)
