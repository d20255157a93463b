"""Seal what CRIU saves for an ordinary user, so that nothing else is restored as root.

CRIU runs as root and trusts its images. Forged images could claim that a process had another user's file open. The user
can write where the checkpoints of a user job are stored. So a relay that runs as root stands between CRIU and the user.
While CRIU saves, the relay notes the digest of each block. The notes are stored with the checkpoint, protected by a
code (HMAC) whose key only root's programs have. While CRIU restores, it receives only blocks and images that were
noted. Pages of memory are passed on unchanged and without a copy, because a process's memory belongs to its owner
anyway. The exceptions are a few pages that CRIU itself reads as root (`vdso`). These pages are checked in every
restore.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import functools
import hashlib
import hmac
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...system import openat
from ..common import linux
from . import criu_messages, vdso, wipe_on_fork

BLOCK_BYTES = 2**20
_PAGES = re.compile(r"pages-[0-9]{1,10}\.img\Z")
_JOIN_S = 5.0
_MOST_SEEN_BYTES = 2**28


class Broken(Exception):
    """The checkpoint is not one that the shim has saved for this user. The message is one line."""


class SaveNotes(NamedTuple):
    """The relay's notes on a save."""

    descriptors: str
    """The pipes that the process had as its standard streams, in runc's notation."""
    images: dict[str, list[str]]
    """The digest of each block, by the image's name. Images of pages are left out."""
    image: str = ""
    """The id of the container image. In another image, CRIU's paths could lead elsewhere."""


def seal(key: bytes, uid: int, notes: SaveNotes) -> str:
    """Return the notes as one text that cannot be changed without the key.

    >>> open_seal(b"k", 7, seal(b"k", 7, SaveNotes("[]", {"core-1.img": ["00"]}))).images
    {'core-1.img': ['00']}
    """
    body = json.dumps({"uid": uid, **notes._asdict()})
    return json.dumps({"body": body, "code": _code(key, body)})


def open_seal(key: bytes, uid: int, text: object, image: str = "") -> SaveNotes:
    """Return the notes in a sealed text.

    Raises `Broken` unless the text was sealed for this user and this container image.
    """
    try:
        outer: dict[str, Any] = json.loads(text if isinstance(text, str) else "")
        body, code = outer["body"], outer["code"]
        is_ours = hmac.compare_digest(_code(key, body).encode(), code.encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Broken("the checkpoint carries no seal of this cluster's") from error
    if not is_ours:
        raise Broken("the checkpoint's seal is not of this cluster, or it was changed")
    notes = json.loads(body)
    if notes["uid"] != uid:
        raise Broken("the checkpoint was saved for another user")
    if notes.get("image") != image:
        raise Broken("the checkpoint was saved in a container of another image")
    return SaveNotes(notes["descriptors"], notes["images"], image)


def _code(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


class Relay:
    """The relay of one save or restore.

    CRIU connects to `listener`, and the relay connects to the user's streamer at `path`. `guard` is None in a save.
    `notes` is None in a save, and for checkpoints that the service account has saved. `saved` is the pid of the first
    process that is saved.
    """

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        notes: SaveNotes | None,
        guard: vdso.Guard | None = None,
        saved: int = 0,
    ) -> None:
        self.images: dict[str, list[str]] = {}
        self.reason = ""
        """The reason for a failure, or "" if there is none."""
        self.failed, self._fail = os.pipe()
        """The end of a pipe that becomes readable once the relay has failed."""
        self._listener = listener
        self._path = path
        self._notes = notes
        self._guard = guard
        self._saved = saved
        self._pumps: list[threading.Thread] = []
        self._main = threading.Thread(target=self._run_guarded, args=(self._relay,), daemon=True)
        self._main.start()

    def finish(self, until_s: float) -> None:
        """Wait until everything has been passed on, after CRIU has finished. Raises `Broken`."""
        self._join(self._main, until_s)
        for thread in self._pumps:  # the list is complete only now, as CRIU's last write can add a pump
            self._join(thread, until_s)
        if self.reason:
            raise Broken(self.reason)

    def _join(self, thread: threading.Thread, until_s: float) -> None:
        thread.join(max(_JOIN_S, until_s - time.time()) if until_s < float("inf") else None)
        if thread.is_alive():
            raise Broken("the other side does not take what was saved")

    def _run_guarded(self, act: Callable[..., None], *args: object) -> None:
        try:
            act(*args)
        except Exception as error:
            self.reason = self.reason or " ".join(str(error).split()) or type(error).__name__
            os.write(self._fail, b"x")

    def _relay(self) -> None:
        criu, _ = self._listener.accept()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as streamer, criu:
            streamer.connect(self._path)
            while True:
                name = criu_messages.read_request(criu)
                if name is None:
                    return
                if self._guard is None:
                    self._take(criu, streamer, name)
                else:
                    self._give(criu, streamer, name, self._guard)

    @functools.cached_property
    def _pids(self) -> dict[str, int]:
        """The pids of the saved processes, which are looked up once because there can be thousands of them."""
        return wipe_on_fork.pids_by_inner_pid(self._saved)

    def _take(self, criu: socket.socket, streamer: socket.socket, name: str) -> None:
        """Relay an image that CRIU writes."""
        mappings = wipe_on_fork.IMAGE.match(name)
        pid = self._pids.get(mappings.group(1)) if mappings else None
        source = criu_messages.receive_pipe(criu)
        with contextlib.ExitStack() as ends:  # if the agent is gone, all ends must close, or CRIU waits indefinitely
            ends.callback(os.close, source)
            criu_messages.send_request(streamer, name)
            if _PAGES.match(name):
                criu_messages.send_pipe(streamer, source)
                return
            if name in self.images:
                raise Broken(f"CRIU has written {name} twice")
            digests = self.images.setdefault(name, [])
            theirs, ours = os.pipe()
            ends.callback(os.close, ours)
            with openat.closing_fd(theirs):
                criu_messages.send_pipe(streamer, theirs)
            ends.pop_all()  # the pump closes them
        self.pump(_pass_and_note, source, ours, digests, name, pid)

    def _give(self, criu: socket.socket, streamer: socket.socket, name: str, guard: vdso.Guard) -> None:
        """Relay an image that CRIU reads, if it exists. Raises `Broken`."""
        is_pages = bool(_PAGES.match(name))
        digests = None if self._notes is None or is_pages else self._notes.images.get(name)
        if self._notes is not None and not is_pages and digests is None:
            criu_messages.send_answer(criu, exists=False)
            return
        criu_messages.send_request(streamer, name)
        exists = criu_messages.read_answer(streamer)
        if not exists and digests is not None:
            raise Broken(f"the checkpoint lacks {name}")
        criu_messages.send_answer(criu, exists=exists)
        if not exists:
            return
        sink = criu_messages.receive_pipe(criu)
        note_guard, parts = guard if guard.reads(name) else None, guard.parts(name) if is_pages else []
        if digests is None and note_guard is None and not parts:
            with openat.closing_fd(sink):
                criu_messages.send_pipe(streamer, sink)
            return
        ours, theirs = os.pipe()
        with openat.closing_fd(theirs):
            criu_messages.send_pipe(streamer, theirs)
        if is_pages:
            self.pump(_pass_pages, ours, sink, parts)
        else:
            self.pump(_pass_saved, ours, sink, digests, name, note_guard)

    def pump(self, act: Callable[..., None], *args: object) -> None:
        """Run a function in a separate thread. If it fails, the whole relay fails."""
        thread = threading.Thread(target=self._run_guarded, args=(act, *args), daemon=True)
        self._pumps.append(thread)
        thread.start()


def _pass_and_note(source: int, sink: int, digests: list[str], name: str, pid: int | None) -> None:
    """Pass the blocks on, and note their digests. If anything fails, both ends are closed, so that CRIU's save fails.

    In an image of mappings, some mappings are given a mark that CRIU leaves out. `pid` is their process, or None for
    other images.
    """
    with openat.closing_fd(source), openat.closing_fd(sink):
        blocks = iter(lambda: _block(source), b"")
        if pid is not None:
            whole = wipe_on_fork.marked(_whole(blocks, name), wipe_on_fork.areas_of(pid))
            blocks = iter([whole[at : at + BLOCK_BYTES] for at in range(0, len(whole), BLOCK_BYTES)])
        for block in blocks:
            digests.append(hashlib.sha256(block).hexdigest())
            openat.write_all(sink, block)


def _pass_saved(source: int, sink: int, digests: list[str] | None, name: str, guard: vdso.Guard | None) -> None:
    """Pass on the blocks that were noted, or all blocks if `digests` is None. Raises `Broken`.

    With a `guard`, CRIU receives nothing before the guard has noted the whole image, because CRIU asks for pages as
    soon as it has read the first part of the image that describes them.

    If a wrong block arrives, or one is missing, `sink` stays open. CRIU must then be killed while it waits, so that it
    never mistakes a part for the whole image.
    """
    with openat.closing_fd(source):
        blocks = _saved_blocks(source, digests, name)
        if guard is not None:
            whole = _whole(blocks, name)
            guard.note(name, whole)
            blocks = iter([whole])
        try:
            for block in blocks:
                openat.write_all(sink, block)
        except BrokenPipeError:  # CRIU has read all that it needs
            return
    os.close(sink)


def _saved_blocks(source: int, digests: list[str] | None, name: str) -> Iterator[bytes]:
    """Yield the blocks of an image. Raises `Broken` for a block that was not noted, or that is missing."""
    for number in itertools.count():
        block = _block(source)
        if digests is not None and number < len(digests):
            if not hmac.compare_digest(hashlib.sha256(block).hexdigest(), digests[number]):
                raise Broken(f"{name} is not what was saved")
        elif not block:
            return
        elif digests is not None:
            raise Broken(f"{name} is longer than what was saved")
        yield block


def _whole(blocks: Iterator[bytes], name: str) -> bytes:
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > _MOST_SEEN_BYTES:
            raise Broken(f"{name} has more than {_MOST_SEEN_BYTES >> 20} MiB")
    return bytes(content)


def _pass_pages(source: int, sink: int, parts: list[vdso.VdsoPart]) -> None:
    """Check these parts, and pass the pages on. If a part is forged, `sink` stays open, as in `_pass_saved`."""
    at = 0
    with openat.closing_fd(source):
        try:
            for part in parts:
                at += _splice(source, sink, part.start - at)
                area = _exactly(source, part.length)
                wrong = vdso.flaw(area) if len(area) == part.length else "it is cut off"
                if wrong is not None:
                    raise vdso.Forged(f"the vDSO of process {part.process} is not a kernel's: {wrong}")
                openat.write_all(sink, area)
                at += part.length
            _splice(source, sink, None)
        except BrokenPipeError:
            return
    os.close(sink)


def _splice(source: int, sink: int, length: int | None) -> int:
    """Move `length` bytes, or all that arrive if it is None. Return the number of bytes moved."""
    count = 0
    while length is None or count < length:
        more = linux.splice(source, sink, BLOCK_BYTES if length is None else min(BLOCK_BYTES, length - count))
        if not more:
            break
        count += more
    return count


def _block(source: int) -> bytes:
    return _exactly(source, BLOCK_BYTES)


def _exactly(source: int, length: int) -> bytes:
    """Return `length` bytes, or fewer at the end of the input."""
    got = bytearray()
    while len(got) < length:
        more = os.read(source, length - len(got))
        if not more:
            break
        got += more
    return bytes(got)
