"""An id for each request: in all lines of control's log that it leads to, in its audit line, and in its answer."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, get_contextvars

HEADER = "X-Request-Id"
KEY = "request"
"""The id's name in a line of the log."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """The middleware that gives each request its id: the one that a caller has given, if it is a plain word."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Its id stays bound until its task ends, for what answers outside of this."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _PLAIN.fullmatch(given) else secrets.token_hex(8)
        bind_contextvars(**{KEY: request_id})

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, sending)


def current() -> str:
    """Return the id of the request that is being answered; "" outside of one."""
    return str(get_contextvars().get(KEY, ""))
