"""How a connection is read: uvicorn's protocol on the parser of httptools, which takes less of control's time
than h11, but would collect a head that never ends, and wait for ever for one that never comes. Here both end.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD_BYTES = 64 * 1024
"""As in h11; a body is bounded by `access`."""


class BoundedHead(HttpToolsProtocol):
    """Answers 400 to more than `LARGEST_HEAD_BYTES` of request line, headers, chunk sizes and trailers, and hangs up.

    A read or two more may pass before that: what one read brings (at most 256 KiB) is counted as a whole. It hangs up
    on whoever has not sent a whole request in `request_s`, body included, and on whoever has `per_host` connections.
    """

    request_s = 60.0
    """Between the beginning of a connection or a request and the request's last byte."""
    per_host = 256
    _beside_body_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def bounded(cls, *, request_s: float, per_host: int) -> "type[BoundedHead]":
        """The same with other bounds. uvicorn makes the protocols itself, so they are the class's."""
        return type(cls.__name__, (cls,), {"request_s": request_s, "per_host": per_host})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._connections_of_host() > self.per_host:
            transport.close()
            return
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self._beside_body_bytes > LARGEST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of this request is too large.")
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn's types say
        is_idle = cycle is None or cycle.response_complete
        if self._deadline is None and is_idle and not self.transport.is_closing():
            self._wait_for_request()  # empty lines between two requests begin none, but have ended the wait for one

    def on_message_begin(self) -> None:
        self._beside_body_bytes = 0
        if self._deadline is None:  # the first one's time runs since the connection was made
            self._wait_for_request()
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._beside_body_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._request_is_there()
        super().on_message_complete()

    def _connections_of_host(self) -> int:
        if self.client is None:
            return 0
        others = (getattr(other, "client", None) for other in self.connections)
        return sum(1 for client in others if client is not None and client[0] == self.client[0])

    def _wait_for_request(self) -> None:
        self._deadline = self.loop.call_later(self.request_s, self._give_up)

    def _request_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()
