"""CRIU's stream protocol, as the agent hears it: a name is one plain name, and what is no request ends the stream."""

import array
import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.privileged.shim.criu_messages import StreamBroken, parse_request
from gleaner.agent.runtime.criu_streams import NeverCame, capture

NAMES = ["../x", "a/b", "/etc/passwd", ".", "..", ".hidden", "", "a\0b", "a b", "a\n", "ä", "x" * 201]


def request(name: str) -> bytes:
    raw = name.encode()
    return b"\x0a" + bytes([min(len(raw), 127)]) + raw


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_an_image_is_never_named_like_a_path(name: str) -> None:
    with pytest.raises(StreamBroken):
        parse_request(request(name))


@given(st.binary(max_size=40))
def test_whatever_is_asked_for_is_a_plain_name_or_refused(message: bytes) -> None:
    with contextlib.suppress(StreamBroken):
        name = parse_request(message)
        assert "/" not in name
        assert name.isprintable()
        assert not name.startswith(".")


class Criu:
    """CRIU's side of the socket, and the socket that the shim passes on; `capture` or `serve` runs meanwhile."""

    def __init__(self, place: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place))
        self.listener.listen(1)
        self.caller, self.shim = socket.socketpair()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(place))

    def ask(self, message: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(message)) + message)

    def hand(self, pipe: int) -> None:
        self.socket.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pipe]))])
        os.close(pipe)

    def close(self) -> None:
        for one in (self.socket, self.listener, self.caller, self.shim):
            one.close()


@pytest.fixture
def criu(tmp_path: Path) -> Iterator[Criu]:
    made = Criu(tmp_path / "socket")
    yield made
    made.close()


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    made = FolderStorage(tmp_path / "storage")
    made.prepare()
    return made


def captured(criu: Criu, draft: FolderDraft) -> list[BaseException]:
    failed: list[BaseException] = []
    try:
        capture(criu.listener, draft, criu.caller)
    except BaseException as error:
        failed.append(error)
    return failed


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", struct.pack("<I", 5) + b"\x0a", struct.pack("<I", 3) + b"\x12\x01x", b"\x01", b"\0\0\0\0"],
    ids=["endless", "cut off", "another field", "half a length", "empty"],
)
def test_what_is_no_request_ends_the_save(criu: Criu, storage: FolderStorage, sent: bytes) -> None:
    criu.socket.sendall(sent)
    criu.socket.shutdown(socket.SHUT_WR)
    with storage.draft("jobs/1/g") as draft:
        assert [type(error) for error in captured(criu, draft)] == [StreamBroken]


def test_a_request_without_a_pipe_ends_the_save(criu: Criu, storage: FolderStorage) -> None:
    criu.ask(request("core-1.img"))
    criu.socket.sendall(b"\0")
    with storage.draft("jobs/1/g") as draft:
        assert [type(error) for error in captured(criu, draft)] == [StreamBroken]


def test_a_save_that_fails_before_criu_has_come_takes_nothing_in(tmp_path: Path, storage: FolderStorage) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        caller, shim = socket.socketpair()
        shim.close()
        with caller, storage.draft("jobs/1/g") as draft, pytest.raises(NeverCame):
            capture(listener, draft, caller)
