"""How a connection is read: uvicorn's protocol on the parser of httptools, which takes less of control's time
than h11, but would collect a head that never ends. Here it ends.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD_BYTES = 64 * 1024
"""As in h11; a body is bounded by `access`."""


class BoundedHead(HttpToolsProtocol):
    """Answers 400 to more than `LARGEST_HEAD_BYTES` of request line, headers, chunk sizes and trailers, and hangs up.

    A read or two more may pass before that: what one read brings (at most 256 KiB) is counted as a whole.
    """

    _beside_body_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self._beside_body_bytes > LARGEST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of this request is too large.")

    def on_message_begin(self) -> None:
        self._beside_body_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._beside_body_bytes -= len(body)
        super().on_body(body)
