"""The record of each request: its id, the time until its answer begins, and its line in the audit log.

The id appears in the request's lines in control's log, in its audit line, and in its answer.
"""

import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from gleaner.control.api.audit import BUG, Audit
from gleaner.control.api.instruments import Instruments
from gleaner.control.api.request_id import KEY

HEADER = "X-Request-Id"
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestRecord:
    """The outermost middleware of an app. It keeps an id that the caller has sent if it is a plain word."""

    def __init__(self, app: ASGIApp, *, audit: Audit, meters: Instruments) -> None:
        self._app = app
        self._audit = audit
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Its id stays set until its task ends, because other middleware may answer later."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _PLAIN.fullmatch(given) else secrets.token_hex(8)
        bind_contextvars(**{KEY: request_id})
        has_status = False

        async def sending(message: Message) -> None:
            nonlocal has_status
            if message["type"] == "http.response.start":
                has_status = True
                await self._audit.note(scope, message["status"])
                call = getattr(scope.get("endpoint"), "__name__", "none")  # never a path
                self._meters.requests.labels(call, str(message["status"])).observe(time.perf_counter() - began_s)
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:  # a bug of ours: a middleware further out sends the answer
            if not has_status:
                await self._audit.note(scope, BUG)
            raise
