"""Root restores only what root has saved itself: forged checkpoints of user jobs are refused."""

import hashlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.privileged.root import only_root
from tests.runtime.account_harness import acting_as

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.shim import criu_messages, main, seal, transfer, vdso
from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.privileged.shim.seal import BLOCK_BYTES, Broken, Relay, SaveNotes, open_seal
from gleaner.agent.system import ipc, openat

KEY, UID = b"k" * 32, 4301
IMAGES = {
    "core-1.img": b"registers",
    "files.img": struct.pack(">700000I", *range(700_000)),
    "pages-1.img": b"memory" * 1000,
    "empty.img": b"",
}

SLOW = "pagemap-2.img"
"""An image that the user's program is long in sending."""


class Place:
    """CRIU on one side of a relay, a user's program with its images on the other."""

    def __init__(
        self, place: Path, sealed: SaveNotes | None, stored: dict[str, bytes], guard: vdso.Guard | None = None
    ) -> None:
        self.stored = stored
        self.held: list[int] = []
        guard = vdso.Guard() if sealed else guard
        listener = ipc.listen(str(place / "criu"))
        users = ipc.listen(str(place / "users"))
        self.relay = Relay(listener, str(place / "users"), sealed, guard, saved=os.getpid())
        self.criu = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.criu.connect(str(place / "criu"))
        serve = self._serve if guard else self._capture
        self.user = threading.Thread(target=serve, args=(users,), daemon=True)
        self.user.start()

    def _capture(self, users: socket.socket) -> None:
        connection, _ = users.accept()
        while (name := criu_messages.read_request(connection)) is not None:
            with os.fdopen(criu_messages.receive_pipe(connection), "rb") as source:
                self.stored[name] = source.read()

    def _serve(self, users: socket.socket) -> None:
        connection, _ = users.accept()
        while (name := criu_messages.read_request(connection)) is not None:
            criu_messages.send_answer(connection, exists=name in self.stored)
            if name == SLOW:
                self.held.append(criu_messages.receive_pipe(connection))
            elif name in self.stored:
                with os.fdopen(criu_messages.receive_pipe(connection), "wb") as sink:
                    try:
                        sink.write(self.stored[name])
                        sink.flush()
                    except BrokenPipeError:
                        pass

    def save(self, name: str, content: bytes) -> None:
        criu_messages.send_request(self.criu, name)
        theirs, ours = os.pipe()
        criu_messages.send_pipe(self.criu, theirs)
        os.close(theirs)
        with os.fdopen(ours, "wb") as sink:
            sink.write(content)

    def asked(self, name: str) -> int | None:
        """Return CRIU's end of the pipe for an image; None if there is none."""
        criu_messages.send_request(self.criu, name)
        if not criu_messages.read_answer(self.criu):
            return None
        ours, theirs = os.pipe()
        criu_messages.send_pipe(self.criu, theirs)
        os.close(theirs)
        return ours

    def restored(self, name: str) -> bytes | None:
        """Return the bytes of an image that CRIU gets; None if there is none. Raises if CRIU would wait for ever."""
        ours = self.asked(name)
        if ours is None:
            return None
        got = b""
        with os.fdopen(ours, "rb", buffering=0) as source:
            while True:
                ready, _, _ = select.select([source.fileno(), self.relay.failed], [], [], 10)
                if source.fileno() in ready:
                    more = source.read(2**16)
                    if not more:
                        return got
                    got += more
                elif self.relay.failed in ready:
                    raise Broken(self.relay.reason)
                else:
                    raise TimeoutError(name)


def test_what_criu_writes_right_before_it_ends_is_noted_however_late_the_relay_comes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay reads the request only while it is waited for, and the image only while that is waited for, too."""
    joins = [threading.Event(), threading.Event()]
    join, read_request, block = threading.Thread.join, criu_messages.read_request, seal._block

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        next(each for each in joins if not each.is_set()).set()
        join(thread, timeout)

    def late(criu: socket.socket) -> str | None:
        if "_run_guarded" in threading.current_thread().name:
            assert joins[0].wait(60)
        return read_request(criu)

    def late_block(source: int) -> bytes:
        assert joins[1].wait(60)
        return block(source)

    at = Place(tmp_path, None, {})
    monkeypatch.setattr(criu_messages, "read_request", late)
    monkeypatch.setattr(seal, "_block", late_block)
    at.save("inventory.img", b"the last one")
    at.criu.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", joined)
        at.relay.finish(float("inf"))
    assert at.relay.images == {"inventory.img": [hashlib.sha256(b"the last one").hexdigest()]}


class Deserted(Place):
    """The user's program ends before the first image."""

    def _capture(self, users: socket.socket) -> None:
        users.accept()[0].close()


@pytest.mark.parametrize("name", ["pages-1.img", "core-1.img"])
def test_a_save_whose_agent_has_gone_does_not_wait_for_it(tmp_path: Path, name: str) -> None:
    at = Deserted(tmp_path, None, {})
    at.user.join(60)
    criu_messages.send_request(at.criu, name)
    theirs, ours = os.pipe()
    criu_messages.send_pipe(at.criu, theirs)
    os.close(theirs)
    with openat.closing_fd(ours):
        nobody_reads = select.poll()
        nobody_reads.register(ours, 0)
        assert nobody_reads.poll(20_000) == [(ours, select.POLLERR)]
    with pytest.raises(Broken, match="Broken pipe"):
        at.relay.finish(float("inf"))


def saved(place: Path) -> tuple[str, dict[str, bytes]]:
    """A seal, and the images that belong to it."""
    place.mkdir(parents=True)
    kept: dict[str, bytes] = {}
    at = Place(place, None, kept)
    for name, content in IMAGES.items():
        at.save(name, content)
    at.criu.close()
    at.relay.finish(float("inf"))
    at.user.join(60)
    return seal.seal(KEY, UID, SaveNotes('["/dev/null"]', at.relay.images)), kept


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, bytes]]]:
    yield saved(tmp_path_factory.mktemp("seal") / "save")


def restoring(place: Path, text: str, stored: dict[str, bytes]) -> Place:
    place.mkdir(parents=True, exist_ok=True)
    return Place(place, open_seal(KEY, UID, text), stored)


def test_what_was_saved_comes_back_and_pages_are_not_even_noted(
    checkpoint: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    text, kept = checkpoint
    assert kept == IMAGES
    assert set(open_seal(KEY, UID, text).images) == set(IMAGES) - {"pages-1.img"}
    at = restoring(tmp_path, text, kept)
    assert {name: at.restored(name) for name in IMAGES} == IMAGES


def changed(content: bytes, at: int, by: int) -> bytes:
    return content[:at] + bytes([content[at] ^ by]) + content[at + 1 :]


FORGED = {
    "a byte of the first block": lambda good: changed(good, 0, 1),
    "the last byte": lambda good: changed(good, len(good) - 1, 128),
    "cut off in a block": lambda good: good[:-1],
    "cut off between blocks": lambda good: good[:BLOCK_BYTES],
    "nothing": lambda good: b"",
    "more": lambda good: good + b"\0",
    "another block first": lambda good: good[BLOCK_BYTES:] + good[:BLOCK_BYTES],
}


@pytest.mark.parametrize("how", [*FORGED])
def test_criu_never_sees_the_end_of_an_image_that_was_changed(
    checkpoint: tuple[str, dict[str, bytes]], tmp_path: Path, how: str
) -> None:
    text, kept = checkpoint
    at = restoring(tmp_path, text, kept | {"files.img": FORGED[how](IMAGES["files.img"])})
    with pytest.raises(Broken, match=r"files.img is"):
        at.restored("files.img")


def test_no_image_is_added_taken_away_or_put_in_the_place_of_another(
    checkpoint: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    text, kept = checkpoint
    at = restoring(tmp_path / "added", text, kept | {"mountpoints-9.img": b"x"})
    assert at.restored("mountpoints-9.img") is None
    at = restoring(tmp_path / "swapped", text, kept | {"core-1.img": IMAGES["files.img"]})
    with pytest.raises(Broken):
        at.restored("core-1.img")
    at = restoring(tmp_path / "gone", text, {name: kept[name] for name in kept if name != "core-1.img"})
    with pytest.raises((Broken, criu_messages.StreamBroken)):
        at.restored("core-1.img")
    select.select([at.relay.failed], [], [], 10)  # CRIU hears that it ends a little before it is said why
    assert "lacks core-1.img" in at.relay.reason


def test_memory_may_be_what_it_likes(checkpoint: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    text, kept = checkpoint
    assert restoring(tmp_path, text, kept | {"pages-1.img": b"other"}).restored("pages-1.img") == b"other"


def pagemap(runs: int) -> bytes:
    """Return the image that says which pages a process has; they are in pages-1.img."""
    messages = [field(1, 1), *(field(1, at << 13) + field(4, 4) + field(5, 1) for at in range(runs))]
    return bytes(8) + b"".join(struct.pack("<I", len(one)) + one for one in messages)


def test_a_process_gets_its_pages_while_the_images_of_another_one_are_still_on_their_way(tmp_path: Path) -> None:
    """CRIU restores the processes of a job at the same time, and each asks for its own images."""
    stored = {"pagemap-1.img": pagemap(1), SLOW: b"", "pages-1.img": b"x" * 4096}
    at = Place(tmp_path, None, stored, vdso.Guard())
    assert at.restored("pagemap-1.img") == stored["pagemap-1.img"]
    pending = at.asked(SLOW)
    assert at.restored("pages-1.img") == stored["pages-1.img"]
    assert pending is not None
    for one in (pending, *at.held):
        os.close(one)


@pytest.mark.slow
def test_criu_asks_for_the_pages_when_it_has_read_the_beginning_of_what_says_where_they_are(tmp_path: Path) -> None:
    stored = {"pagemap-1.img": pagemap(200_000), "pages-1.img": b"x" * 4096}
    assert len(stored["pagemap-1.img"]) > 2 * BLOCK_BYTES
    at = Place(tmp_path, None, stored, vdso.Guard())
    begun = at.asked("pagemap-1.img")
    assert begun is not None
    head = os.read(begun, 16)
    assert at.restored("pages-1.img") == stored["pages-1.img"]
    with os.fdopen(begun, "rb") as rest:
        assert head + rest.read() == stored["pagemap-1.img"]


def test_a_name_like_that_of_pages_is_none() -> None:
    for name in ("pages-1.img.x", "pages-.img", "xpages-1.img", "pages-1", "pages-1.img\n", "pages-/etc.img"):
        assert not seal._PAGES.match(name)


def test_a_seal_is_for_one_user_under_one_key(checkpoint: tuple[str, dict[str, bytes]]) -> None:
    text, _ = checkpoint
    with pytest.raises(Broken, match="another user"):
        open_seal(KEY, UID + 1, text)
    with pytest.raises(Broken, match="not of this cluster"):
        open_seal(b"o" * 32, UID, text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), letter=st.characters(codec="ascii"))
def test_a_changed_seal_is_none(checkpoint: tuple[str, dict[str, bytes]], where: float, letter: str) -> None:
    text, _ = checkpoint
    at = int(where * len(text))
    forged = text[:at] + letter + text[at + 1 :]
    if forged == text:
        return
    try:
        assert open_seal(KEY, UID, forged) == open_seal(KEY, UID, text)  # white space between fields says nothing
    except Broken:
        return


@pytest.mark.parametrize(
    "text", [None, 7, "", "{}", "[]", '{"body": 1, "code": "x"}', '{"body": "{}", "code": "é"}', "[" * 9999]
)
def test_rubbish_is_no_seal(text: object) -> None:
    with pytest.raises(Broken):
        open_seal(KEY, UID, text)


@only_root
@pytest.mark.parametrize("whose", ["nobody's", "another user's", "another cluster's"])
def test_without_a_seal_of_its_own_for_this_user_root_does_not_even_begin(tmp_path: Path, whose: str) -> None:
    user = 1
    said = SaveNotes('["/dev/null", "/dev/null", "/dev/null"]', {})
    forged = {"another user's": seal.seal(KEY, user + 1, said), "another cluster's": seal.seal(b"o" * 32, user, said)}
    place = tmp_path / "work" / "own-1-66" / "handshakes"
    place.mkdir(parents=True)
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "runc").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "runc").chmod(0o755)
    waits = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with acting_as(user, user):
        waits.bind(str(place / "own-1-66"))
        waits.listen(1)

    def answer() -> None:
        agent = ipc.Handshake(waits.accept()[0], 10)
        agent.hear()
        agent.say({"descriptors": said.descriptors} | ({"seal": forged[whose]} if whose in forged else {}))
        agent.close()

    threading.Thread(target=answer, daemon=True).start()
    settings = Config(
        4200,
        runc=str(tmp_path / "runc"),
        own=str(tmp_path / "own"),
        user_jobs_key=str(tmp_path / "key"),
        users_work=str(tmp_path / "work"),
    )
    call = main.parse(["--root", str(tmp_path), "create", "--bundle", str(tmp_path), "own-1-66"])
    assert call is not None
    annotations = {main.ANNOTATION_HANDSHAKE: "own-1-66", main.ANNOTATION_OWNER: str(user)}
    with pytest.raises(Broken):
        transfer._restore(settings, call, annotations)
    assert not (tmp_path / "ran").exists()
