"""A container's output by an attached connection, from an engine that is pretended: what is left when nobody reads."""

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest

from gleaner.agent.runtime.docker_raw import attach

VERSION = b'{"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Version": "20.10"}'
HUNG_UP = threading.Event()
"""Whoever was attached is gone."""
FRAME = b"\x01\x00\x00\x00\x00\x00\x00\x06hello\n"


def serve(listening: socket.socket, kept: list[socket.socket], speaks: threading.Event) -> None:
    """Say the version, and give an attached connection one line of output and no end."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        kept.append(connection)
        threading.Thread(target=converse, args=(connection, speaks), daemon=True).start()


def converse(connection: socket.socket, speaks: threading.Event) -> None:
    asked = b""
    while more := connection.recv(65536):
        asked += more
        if b"\r\n\r\n" not in asked:
            continue
        if b"/attach" in asked:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n")
            speaks.wait()  # a client that got both at once would have taken the line for a part of the head
            with suppress(OSError):  # nobody is there any more
                connection.sendall(FRAME)
                while connection.recv(65536):
                    pass
            HUNG_UP.set()
            return
        length = f"Content-Length: {len(VERSION)}\r\n\r\n".encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length + VERSION)
        asked = b""


@pytest.fixture
def speaks() -> threading.Event:
    """Set as soon as the container may write."""
    return threading.Event()


@pytest.fixture
def engine(tmp_path: Path, speaks: threading.Event) -> Iterator[docker.APIClient]:
    listening, kept = socket.socket(socket.AF_UNIX), list[socket.socket]()
    listening.bind(str(tmp_path / "docker.sock"))
    listening.listen()
    threading.Thread(target=serve, args=(listening, kept, speaks), daemon=True).start()
    yield docker.APIClient(f"unix://{tmp_path}/docker.sock", version="auto")
    speaks.set()
    for each in (listening, *kept):
        each.close()


@pytest.mark.parametrize("read", [0, 1])
def test_an_attached_connection_is_closed_when_nobody_wants_it_and_not_by_the_garbage_collector(
    read: int, engine: docker.APIClient, speaks: threading.Event
) -> None:
    """The collector closes answer and connection in any order, and the wrong one is a traceback in the log."""
    HUNG_UP.clear()
    attached = attach(engine, "c1", connect_s=10)
    speaks.set()
    for _ in range(read):
        assert next(attached) == FRAME
    gc.disable()
    try:
        del attached
        assert HUNG_UP.wait(10)
    finally:
        gc.enable()
