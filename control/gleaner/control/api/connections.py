"""The connections of a port: their number, and how long each can keep its place.

A connection counts from its acceptance, even if it never begins a TLS handshake. When all places are taken, a new
connection replaces the one that has been idle for the longest time. Therefore callers who merely keep connections open
cannot keep others out. A connection without progress is closed, and its memory is freed.
"""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest times that control waits for a client."""

    first_s: float = 5
    """The time from the acceptance to the end of the first request's headers, including the TLS handshake."""
    request_s: float = 60
    """The time for the whole body of a request."""
    answer_s: float = 30
    """The longest time for which a client can stop reading its answer."""
    idle_s: float = 60
    """The time from an answer to the end of the next request's headers. uvicorn closes an idle connection sooner, after
    the client has received the whole answer."""


class DoorConnection(socket.socket):
    """An accepted connection. Only the event loop's thread touches it."""

    def __init__(self, listener: "DoorListener", fileno: int, key: tuple[str, int]) -> None:
        # asyncio sends small answers without waiting for the client's ACK only if the protocol is TCP
        super().__init__(listener.family, listener.type, socket.IPPROTO_TCP, fileno)
        self._listener = listener
        self._key = key
        self._end: asyncio.TimerHandle | None = None
        self.requests = 0
        self.turn(is_answered=False)

    def turn(self, *, is_answered: bool) -> None:
        """Record that an answer begins, or that the connection becomes idle."""
        self._forget()
        (self._listener.answered if is_answered else self._listener.idle)[self._key] = self

    def allow(self, duration_s: float | None) -> None:
        """Close the connection after this time, unless this method is called again before then. None means that it is
        never closed."""
        if self._end is not None:
            self._end.cancel()
        self._end = None
        if duration_s is not None:
            self._end = asyncio.get_running_loop().call_later(duration_s, self.hang_up)

    def hang_up(self) -> None:
        """End the connection at once.

        Its transport then drops the unsent data, for which a regular close would wait.
        """
        self._forget()
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.allow(None)
        self._forget()
        super().close()

    def _forget(self) -> None:
        for there in (self._listener.idle, self._listener.answered):
            if there.get(self._key) is self:
                del there[self._key]


class DoorListener(socket.socket):
    """A listening socket with a limit on its open connections."""

    def __init__(self, listening: socket.socket, *, at_most: int, patience: Patience) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._at_most = at_most
        self.patience = patience
        self.idle: dict[tuple[str, int], DoorConnection] = {}
        """Idle connections by the client's address, the one that has been idle longest first."""
        self.answered: dict[tuple[str, int], DoorConnection] = {}
        """Connections with a request in progress."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection if there is room for it.

        Otherwise close the oldest one, which makes room for the next call.
        """
        if len(self.idle) + len(self.answered) >= self._at_most:
            next(iter((self.idle or self.answered).values())).hang_up()
            raise BlockingIOError  # the event loop closes the oldest before it accepts again
        accepted, address = super().accept()
        connection = DoorConnection(self, accepted.detach(), address[:2])
        connection.allow(self.patience.first_s)
        return connection, address


class Timed:
    """The outermost middleware of a port.

    It limits the time of each step of a request, and finds the client's address.
    """

    def __init__(self, app: ASGIApp, listener: DoorListener, *, proxies: tuple[str, ...]) -> None:
        self._app: Any = ProxyHeadersMiddleware(app, list(proxies)) if proxies else app  # type: ignore[arg-type]
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        host, port = scope["client"]
        patience, key = self._listener.patience, (host, port)
        connection = self._listener.idle.get(key) or self._listener.answered.get(key)
        if connection is None:  # it was closed before its request was handled
            await Response(status_code=503)(scope, receive, send)
            return
        scope["client"] = (host.removeprefix("::ffff:"), port)  # IPv6 sockets show an IPv4 caller in this form
        loop = asyncio.get_running_loop()
        ends_s, is_whole = loop.time() + patience.request_s, False
        connection.allow(None)
        connection.turn(is_answered=True)
        connection.requests = this_one = connection.requests + 1

        async def receiving() -> Message:
            nonlocal is_whole
            if is_whole:  # the only message still to come is that the client has disconnected
                return await receive()
            connection.allow(ends_s - loop.time())
            message = await receive()
            connection.allow(None)
            is_whole = not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            connection.allow(patience.answer_s)
            if message.get("body") and not message.get("more_body", False):
                await send({**message, "more_body": True})
                message = {"type": message["type"]}  # uvicorn sends it once the client has read most of the answer
            await send(message)
            connection.allow(None)

        try:
            await self._app(scope, receiving, sending)
        finally:
            if connection.requests == this_one and connection.fileno() >= 0:
                connection.turn(is_answered=False)
                connection.allow(patience.idle_s)
