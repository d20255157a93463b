"""The connections of a door: how many there are, and how long each may keep its place.

A connection is counted when it is accepted, so one that never begins a TLS handshake counts like any other. When all
places are taken, the connection that has been idle for the longest time makes room. So callers who only keep
connections open cannot keep others out. A connection without progress is closed, and control forgets what it holds.
"""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest that control waits for a client."""

    first_s: float = 5
    """From the accept to the head of the first request, with the TLS handshake."""
    request_s: float = 60
    """For the whole body of a request."""
    answer_s: float = 30
    """For a client that takes nothing of its answer."""
    idle_s: float = 60
    """From an answer to the head of the next request. uvicorn closes a silent connection sooner, when the client has
    all of the answer."""


@dataclass(slots=True)
class Connection:
    """An accepted connection. Only the event loop's thread touches it."""

    socket: socket.socket
    since_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """The beginning of its silence, or of its answer."""
    is_answered: bool = False
    is_ended: bool = False
    _end: asyncio.TimerHandle | None = None

    def allow(self, duration_s: float | None) -> None:
        """Hang up after this time, unless the next call comes first; None: wait without a limit."""
        if self._end is not None:
            self._end.cancel()
        self._end = None
        if duration_s is not None:
            self._end = asyncio.get_running_loop().call_later(duration_s, self.hang_up)

    def turn(self, *, is_answered: bool) -> None:
        """Record that an answer begins or ends."""
        self.is_answered, self.since_s = is_answered, asyncio.get_running_loop().time()

    def hang_up(self) -> None:
        """End the connection. Its transport sees that, and drops what was not sent; to close it would wait for that."""
        self.is_ended = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket with a bound on its open connections."""

    def __init__(self, listening: socket.socket, *, at_most: int, patience: Patience) -> None:
        # asyncio sends small answers at once only on sockets that name TCP; else each would wait for the client's ACK
        super().__init__(listening.family, listening.type, socket.IPPROTO_TCP, listening.detach())
        self._at_most = at_most
        self.patience = patience
        self.connections: dict[tuple[str, int], Connection] = {}
        """By the address of the client. Closed connections stay until all places are taken."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection if there is room for it. Otherwise the oldest one makes room for the next call."""
        if len(self.connections) >= self._at_most:
            self.connections = {key: one for key, one in self.connections.items() if one.socket.fileno() >= 0}
            there = [one for one in self.connections.values() if not one.is_ended]
            if len(there) >= self._at_most:
                min(there, key=lambda one: (one.is_answered, one.since_s)).hang_up()
                raise BlockingIOError  # the event loop frees the place before it asks for a connection again
        accepted, address = super().accept()
        connection = self.connections[address[:2]] = Connection(accepted)
        connection.allow(self.patience.first_s)
        return accepted, address


class Timed:
    """The outermost middleware of a door: it gives each step of a request its time, and finds the client's address."""

    def __init__(self, app: ASGIApp, listener: Listener, *, proxies: tuple[str, ...]) -> None:
        self._app: Any = ProxyHeadersMiddleware(app, list(proxies)) if proxies else app  # type: ignore[arg-type]
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        host, port = scope["client"]
        connection, patience = self._listener.connections[host, port], self._listener.patience
        scope["client"] = (host.removeprefix("::ffff:"), port)  # a socket of IPv6 names a caller by IPv4 so
        loop = asyncio.get_running_loop()
        ends_s, is_whole = loop.time() + patience.request_s, False
        connection.allow(None)
        connection.turn(is_answered=True)

        async def receiving() -> Message:
            nonlocal is_whole
            if is_whole:  # what comes now is only the news that the client is gone
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
                message = {"type": message["type"]}  # uvicorn sends it when the client has read most of the answer
            await send(message)
            connection.allow(None)

        try:
            await self._app(scope, receiving, sending)
        finally:
            connection.turn(is_answered=False)
            connection.allow(patience.idle_s)
