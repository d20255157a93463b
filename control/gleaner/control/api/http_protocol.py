"""The reader of connections: uvicorn's protocol on the parser of httptools, with bounds.

The parser takes less of control's time than h11. But without bounds it would collect a head that never ends, and would
wait for ever for a head that never comes.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD_BYTES = 64 * 1024
"""The largest head, as in h11; `access` bounds the body."""


class BoundedHead(HttpToolsProtocol):
    """A protocol that answers 400 to more than `LARGEST_HEAD_BYTES` of a head, and closes the connection.

    Request line, headers, chunk sizes and trailers count as head. A read or two more may pass before the answer, since
    the bytes of one read (at most 256 KiB) are counted as a whole. The connection of a client that has not sent a whole
    request in `request_s`, body included, is closed. So is a connection beyond `per_host` of one address.
    """

    request_s = 60.0
    """The time from the beginning of a connection or a request to the request's last byte."""
    per_host = 256
    _beside_body_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def bounded(cls, *, request_s: float, per_host: int) -> "type[BoundedHead]":
        """Return the class with other bounds. uvicorn makes the protocols itself, so the bounds belong to the class."""
        return type(cls.__name__, (cls,), {"request_s": request_s, "per_host": per_host})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is not None:  # a socket of IPv6 names a caller by IPv4 ::ffff:10.1.2.3
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
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
            self._wait_for_request()  # empty lines between two requests begin no request, but have ended the wait

    def on_message_begin(self) -> None:
        self._beside_body_bytes = 0
        if self._deadline is None:  # the first request's time runs since the connection was made
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
