"""The limits of a request that is not complete yet. Over raw sockets: a client library would be too polite."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from tests.api.api_harness import ApiHarness

from gleaner.control.api.app import create_app
from gleaner.control.api.http_protocol import LARGEST_HEAD_BYTES, BoundedHead

FAR_TOO_MUCH_BYTES = 64 * LARGEST_HEAD_BYTES


@pytest.fixture
def connection(harness: ApiHarness) -> Iterator[socket.socket]:
    config = uvicorn.Config(create_app(harness.state), http=BoundedHead, port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run)
    running.start()
    while not server.started:
        time.sleep(0.01)
    listening = server.servers[0].sockets[0]
    # Else the kernel may hold all that is sent before the server has read any of it.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGEST_HEAD_BYTES)
    try:
        with socket.create_connection(listening.getsockname(), timeout=30) as connected:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST_HEAD_BYTES)
            yield connected
    finally:
        server.should_exit = True
        running.join()


def until_closed(connection: socket.socket, begin: bytes, more: bytes) -> tuple[int, bytes]:
    """Return how many bytes were sent until control hung up, and control's answer."""
    sent = 0
    try:
        connection.sendall(begin)
        while sent < FAR_TOO_MUCH_BYTES:
            connection.sendall(more)
            sent += len(more)
    except OSError:
        pass
    try:
        return sent, connection.recv(LARGEST_HEAD_BYTES)
    except OSError:  # it hung up while more was on the way
        return sent, b""


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /health HTTP/1.1\r\nX-Long: ", b"x" * 4096),
        (b"GET /health HTTP/1.1\r\n", b"X-Many: x\r\n" * 400),
        (b"GET /", b"x" * 4096),
        (b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: x\r\n" * 300),
    ],
    ids=["one header", "many headers", "path", "trailers"],
)
def test_a_head_that_never_ends_is_cut_off(connection: socket.socket, begin: bytes, more: bytes) -> None:
    sent, said = until_closed(connection, begin, more)
    assert sent < FAR_TOO_MUCH_BYTES
    assert said[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 401", b""}


def test_a_body_is_not_taken_for_a_head(connection: socket.socket) -> None:
    body = b"x" * (3 * LARGEST_HEAD_BYTES)
    head = f"GET /health HTTP/1.1\r\nHost: control\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(2):
        connection.sendall(head + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert answer.read()  # it may come in several pieces
