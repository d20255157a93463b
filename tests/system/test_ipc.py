"""Root goes to an agent that may be anybody and may say anything: each way to mislead or to stall it is tried."""

import array
import contextlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.system.ipc import LONGEST_BYTES, Handshake, HandshakeFailed, check_name, connect

US = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "handshakes"
    place.mkdir(mode=0o700)
    return place


@contextlib.contextmanager
def listening(path: Path, uid: int = US) -> Iterator[socket.socket]:
    """A socket that this uid listens at."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        if uid != US:
            os.chown(path, uid, uid)
            path.chmod(0o777)
            os.seteuid(uid)
        try:
            listener.listen(4)
        finally:
            os.seteuid(US)
        yield listener


def nobody_came(listener: socket.socket) -> bool:
    listener.settimeout(0)
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return True
    with connection:  # one that came and said nothing has left by now
        return connection.recv(1) == b""


def test_the_agent_is_met(folder: Path) -> None:
    with listening(folder / "job-1") as listener:
        ours = connect(str(folder), "job-1", US)
        connection, _ = listener.accept()
        ours.say({"do": "save"}, 0)
        message, descriptor = Handshake(connection).hear()
        assert message == {"do": "save"}
        assert descriptor is not None
        assert os.fstat(descriptor).st_ino == os.fstat(0).st_ino
        os.close(descriptor)
        connection.close()
        ours.close()


NAMES = ["", ".", "..", "../x", "a/b", "/etc/x", "-x", ".x", "a" * 62, "a\n", "a\0", "ä", "x ", None, 7, ["a"], b"a"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_only_a_plain_name_is_one(folder: Path, name: object) -> None:
    with pytest.raises(HandshakeFailed, match="is no name of a handshake"):
        connect(str(folder), name, US)  # type: ignore[arg-type]


@given(st.text(max_size=80))
def test_a_name_never_leaves_the_folder(name: str) -> None:
    with contextlib.suppress(HandshakeFailed):
        assert os.path.normpath(f"/handshakes/{check_name(name)}") == f"/handshakes/{name}"


def test_a_link_is_not_followed_even_to_the_agents_own_socket(folder: Path, tmp_path: Path) -> None:
    with listening(tmp_path / "elsewhere") as listener:
        (folder / "job").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(HandshakeFailed, match="is no socket"):
            connect(str(folder), "job", US)
        assert nobody_came(listener)
        (tmp_path / "way").symlink_to(tmp_path)
        with pytest.raises(HandshakeFailed, match="no agent waits"):
            connect(str(tmp_path / "way"), "elsewhere", US)


def test_files_folders_and_pipes_are_not_opened(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")  # to open it would block
    for name in ("file", "folder", "pipe"):
        with pytest.raises(HandshakeFailed, match="is no socket"):
            connect(str(folder), name, US)
    with pytest.raises(HandshakeFailed, match="no agent waits"):
        connect(str(folder), "nothing", US)


@pytest.mark.skipif(US != 0, reason="only root can listen as somebody else")
def test_who_listens_counts_and_not_whose_the_file_is(folder: Path) -> None:
    with listening(folder / "theirs", uid=4301) as listener:
        os.chown(folder / "theirs", US, US)
        with pytest.raises(HandshakeFailed, match="uid 4301 listens there"):
            connect(str(folder), "theirs", US)
        assert nobody_came(listener)


def test_a_socket_that_is_put_in_its_place_meanwhile_is_not_spoken_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes between the look at the socket and the connection to it."""
    with listening(folder / "job") as looked_at, listening(folder / "other") as other:
        real_fstat = os.fstat

        def fstat(descriptor: int) -> os.stat_result:
            (folder / "other").replace(folder / "job")
            monkeypatch.setattr(os, "fstat", real_fstat)
            return real_fstat(descriptor)

        monkeypatch.setattr(os, "fstat", fstat)
        ours = connect(str(folder), "job", US)
        looked_at.settimeout(5)
        looked_at.accept()[0].close()
        assert nobody_came(other)
        ours.close()


def pair(patience_s: float = 0.5) -> tuple[Handshake, socket.socket]:
    ours, theirs = socket.socketpair()
    return Handshake(ours, patience_s), theirs


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0\0",
        framed(b"{")[:-1],
        framed(b"{"),
        framed(b"[]"),
        framed(b"7"),
        framed(b"\xff\xfe"),
        framed(b"[" * 200_000),
        framed(b'{"a": ' + b"9" * 5000 + b"}"),
        struct.pack(">I", LONGEST_BYTES + 1),
        struct.pack(">I", 2**32 - 1) + b"x" * 1000,
    ],
    ids=["nothing", "half a length", "cut off", "no JSON", "a list", "a number", "no text", "deep", "long number",
         "too long", "much too long"],
)  # fmt: skip
def test_what_nobody_understands_ends_the_handshake(said: bytes) -> None:
    ours, other = pair()
    sender = threading.Thread(target=lambda: (other.sendall(said), other.shutdown(socket.SHUT_WR)), daemon=True)
    sender.start()
    with pytest.raises(HandshakeFailed):
        ours.hear()
    ours.close()


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_end_the_handshake(said: bytes) -> None:
    ours, other = pair()
    with other:
        other.sendall(said)
        other.shutdown(socket.SHUT_WR)
        with contextlib.suppress(HandshakeFailed):
            assert isinstance(ours.hear()[0], dict)
    ours.close()


def test_silence_ends_the_handshake() -> None:
    ours, other = pair()
    with other, pytest.raises(HandshakeFailed):
        ours.hear()
    ours.close()


def test_an_answer_in_drops_has_no_more_time_than_one_at_once() -> None:
    ours, other = pair()
    stop = threading.Event()

    def drip() -> None:
        other.sendall(struct.pack(">I", 1000))
        while not stop.wait(0.1):
            with contextlib.suppress(OSError):
                other.sendall(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(HandshakeFailed):
        ours.hear()
    stop.set()
    dripping.join()
    ours.close()


def test_somebody_who_does_not_listen_ends_the_handshake() -> None:
    ours, other = pair()
    with other, pytest.raises(HandshakeFailed):
        for _ in range(100):
            ours.say({"log": "x" * 10**6})
    ours.close()


def test_endless_words_take_no_memory() -> None:
    ours, other = pair(patience_s=5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def talk() -> None:
        with contextlib.suppress(OSError):
            other.sendall(struct.pack(">I", 2**32 - 1))
            while True:
                other.sendall(b"x" * 2**20)

    talking = threading.Thread(target=talk)
    talking.start()
    with pytest.raises(HandshakeFailed, match="too long"):
        ours.hear()
    ours.close()
    talking.join()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_descriptors_that_nobody_asked_for_are_closed(tmp_path: Path) -> None:
    passed = (tmp_path / "passed").open("w")
    ours, other = pair()
    content = json.dumps({}).encode()

    def open_now() -> int:
        return sum(Path(passed.name).samefile(path) for path in Path("/proc/self/fd").iterdir() if path.exists())

    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()] * 50))]
    other.sendmsg([framed(content)], rights)
    message, descriptor = ours.hear()
    assert (message, descriptor is not None) == ({}, True)
    assert open_now() == 2
    assert descriptor is not None
    os.close(descriptor)
    other.sendmsg([framed(b"no JSON")], rights)
    with pytest.raises(HandshakeFailed):
        ours.hear()
    assert open_now() == 1
    passed.close()
    ours.close()
    other.close()


def test_a_message_to_somebody_who_hears_it_and_leaves_at_once_is_no_failure() -> None:
    for _ in range(200):
        ours, other = pair()
        leaving = threading.Thread(target=lambda other=other: (Handshake(other).hear(), other.close()))
        leaving.start()
        ours.say({"status": 0, "log": "x" * 1000})
        leaving.join()
        ours.close()
