"""Seal what CRIU saves for an ordinary user, so that root restores nothing else.

CRIU runs as root and believes the images that it is given: forged images could say that a process had another's file
open. The checkpoints of a user job lie where the user can write. So a relay of root's stands between CRIU and the user.
While CRIU saves, the relay notes the digest of each block. The notes travel with the checkpoint, under a code (HMAC)
whose key only root's programs have. While CRIU restores, it gets only blocks and images that were noted. Pages of
memory pass unchanged and without a copy: a process's own memory is its owner's affair anyway, except for the few pages
that CRIU itself reads as root (`vdso`). Those are looked at in every restore.
"""

from __future__ import annotations  # the node may have Python 3.9

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
    """The checkpoint is not one that root has saved for this user; one line."""


class Sealed(NamedTuple):
    """Root's notes of a save."""

    descriptors: str
    """The pipes that the process had as its standard streams, in runc's words."""
    images: dict[str, list[str]]
    """The digest of each block, by the image's name; images of pages are left out."""
    image: str = ""
    """The id of the container image: in another one, CRIU's paths could lead elsewhere."""


def seal(key: bytes, uid: int, said: Sealed) -> str:
    """Return the notes as one text that nobody without the key can change.

    >>> opened(b"k", 7, seal(b"k", 7, Sealed("[]", {"core-1.img": ["00"]}))).images
    {'core-1.img': ['00']}
    """
    body = json.dumps({"uid": uid, **said._asdict()})
    return json.dumps({"body": body, "code": _code(key, body)})


def opened(key: bytes, uid: int, text: object, image: str = "") -> Sealed:
    """Return the notes in a text. Raises `Broken` unless the text was sealed for this user, in this container image."""
    try:
        outer: dict[str, Any] = json.loads(text if isinstance(text, str) else "")
        body, code = outer["body"], outer["code"]
        is_ours = hmac.compare_digest(_code(key, body).encode(), code.encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Broken("the checkpoint carries no seal of this cluster's") from error
    if not is_ours:
        raise Broken("the checkpoint's seal is not of this cluster, or it was changed")
    said = json.loads(body)
    if said["uid"] != uid:
        raise Broken("the checkpoint was saved for another user")
    if said.get("image") != image:
        raise Broken("the checkpoint was saved in a container of another image")
    return Sealed(said["descriptors"], said["images"], image)


def _code(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


class Relay:
    """The relay of one save or restore: CRIU connects to `listener`, and the relay to the user's streamer at `path`.

    `guard` is None in a save. `sealed` is None in a save, and for what the service account has saved. `saved` is the
    pid of the first process that is saved.
    """

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        sealed: Sealed | None,
        guard: vdso.Guard | None = None,
        saved: int = 0,
    ) -> None:
        self.images: dict[str, list[str]] = {}
        self.reason = ""
        """The reason of a failure; "" if there is none."""
        self.failed, self._fail = os.pipe()
        """A pipe's end that can be read once the relay has failed."""
        self._listener = listener
        self._path = path
        self._sealed = sealed
        self._guard = guard
        self._saved = saved
        self._pumps: list[threading.Thread] = []
        self._main = threading.Thread(target=self._guarded, args=(self._relay,), daemon=True)
        self._main.start()

    def finish(self, until_s: float) -> None:
        """Wait until all has been passed on; CRIU is done by now. Raises `Broken`."""
        for thread in [self._main, *self._pumps]:
            thread.join(max(_JOIN_S, until_s - time.time()) if until_s < float("inf") else None)
            if thread.is_alive():
                raise Broken("the other side does not take what was saved")
        if self.reason:
            raise Broken(self.reason)

    def _guarded(self, act: Callable[..., None], *given: object) -> None:
        try:
            act(*given)
        except Exception as error:
            self.reason = self.reason or " ".join(str(error).split()) or type(error).__name__
            os.write(self._fail, b"x")

    def _relay(self) -> None:
        criu, _ = self._listener.accept()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as streamer, criu:
            streamer.connect(self._path)
            while True:
                name = criu_messages.asked(criu)
                if name is None:
                    return
                if self._guard is None:
                    self._take(criu, streamer, name)
                else:
                    self._give(criu, streamer, name, self._guard)

    def _take(self, criu: socket.socket, streamer: socket.socket, name: str) -> None:
        """Relay an image that CRIU writes."""
        source = criu_messages.taken_pipe(criu)
        criu_messages.ask(streamer, name)
        if _PAGES.match(name):
            with openat.opened(source):
                criu_messages.give_pipe(streamer, source)
            return
        if name in self.images:
            raise Broken(f"CRIU has written {name} twice")
        noted = self.images.setdefault(name, [])
        ours, theirs = os.pipe()[::-1]
        with openat.opened(theirs):
            criu_messages.give_pipe(streamer, theirs)
        self._pump(_noting, source, ours, noted, name, self._saved)

    def _give(self, criu: socket.socket, streamer: socket.socket, name: str, guard: vdso.Guard) -> None:
        """Relay an image that CRIU reads, if there is one. Raises `Broken`."""
        is_pages = bool(_PAGES.match(name))
        noted = None if self._sealed is None or is_pages else self._sealed.images.get(name)
        if self._sealed is not None and not is_pages and noted is None:
            criu_messages.answer(criu, exists=False)
            return
        criu_messages.ask(streamer, name)
        exists = criu_messages.answered(streamer)
        if not exists and noted is not None:
            raise Broken(f"the checkpoint lacks {name}")
        criu_messages.answer(criu, exists=exists)
        if not exists:
            return
        sink = criu_messages.taken_pipe(criu)
        noting, parts = guard if guard.reads(name) else None, guard.parts(name) if is_pages else []
        if noted is None and noting is None and not parts:
            with openat.opened(sink):
                criu_messages.give_pipe(streamer, sink)
            return
        ours, theirs = os.pipe()
        with openat.opened(theirs):
            criu_messages.give_pipe(streamer, theirs)
        if is_pages:
            self._pump(_looking, ours, sink, parts)
        else:
            self._pump(_comparing, ours, sink, noted, name, noting)

    def _pump(self, act: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=self._guarded, args=(act, *given), daemon=True)
        self._pumps.append(thread)
        thread.start()


def _noting(source: int, sink: int, noted: list[str], name: str, saved: int) -> None:
    """Pass the blocks on, and note them. Whatever fails, both ends are closed, so that CRIU's save fails.

    In an image of mappings, some get a mark that CRIU leaves out. `saved` is the pid of the container's first process.
    """
    with openat.opened(source), openat.opened(sink):
        blocks = iter(lambda: _block(source), b"")
        if mappings := wipe_on_fork.IMAGE.match(name):
            whole = wipe_on_fork.marked(_whole(blocks, name), wipe_on_fork.areas_of(saved, mappings.group(1)))
            blocks = iter([whole[at : at + BLOCK_BYTES] for at in range(0, len(whole), BLOCK_BYTES)])
        for block in blocks:
            noted.append(hashlib.sha256(block).hexdigest())
            openat.write_all(sink, block)


def _comparing(source: int, sink: int, noted: list[str] | None, name: str, guard: vdso.Guard | None) -> None:
    """Pass on the blocks that were noted, or all if `noted` is None. Raises `Broken`.

    With a `guard`, CRIU gets nothing before the guard has noted the whole image: CRIU asks for pages as soon as it has
    read the beginning of the image that says what they are.

    When another block comes, or one is missing, `sink` stays open: CRIU must be killed while it waits, and must never
    take what it has for the whole image.
    """
    with openat.opened(source):
        blocks = _compared(source, noted, name)
        if guard is not None:
            whole = _whole(blocks, name)
            guard.note(name, whole)
            blocks = iter([whole])
        try:
            for block in blocks:
                openat.write_all(sink, block)
        except BrokenPipeError:  # CRIU has read all that it wants
            return
    os.close(sink)


def _compared(source: int, noted: list[str] | None, name: str) -> Iterator[bytes]:
    """Yield the blocks of an image. Raises `Broken` for one that was not noted, or is missing."""
    for number in itertools.count():
        block = _block(source)
        if noted is not None and number < len(noted):
            if not hmac.compare_digest(hashlib.sha256(block).hexdigest(), noted[number]):
                raise Broken(f"{name} is not what was saved")
        elif not block:
            return
        elif noted is not None:
            raise Broken(f"{name} is longer than what was saved")
        yield block


def _whole(blocks: Iterator[bytes], name: str) -> bytes:
    found = bytearray()
    for block in blocks:
        found += block
        if len(found) > _MOST_SEEN_BYTES:
            raise Broken(f"{name} has more than {_MOST_SEEN_BYTES >> 20} MiB")
    return bytes(found)


def _looking(source: int, sink: int, parts: list[vdso.VdsoPart]) -> None:
    """Pass pages on, and look at these parts before. If one is forged, `sink` stays open, as in `_comparing`."""
    at = 0
    with openat.opened(source):
        try:
            for part in parts:
                at += _moved(source, sink, part.start - at)
                area = _exactly(source, part.length)
                wrong = vdso.flaw(area) if len(area) == part.length else "it is cut off"
                if wrong is not None:
                    raise vdso.Forged(f"the vDSO of process {part.process} is not a kernel's: {wrong}")
                openat.write_all(sink, area)
                at += part.length
            _moved(source, sink, None)
        except BrokenPipeError:
            return
    os.close(sink)


def _moved(source: int, sink: int, length: int | None) -> int:
    """Move `length` bytes, or all that come if it is None. Return the number of bytes moved."""
    moved = 0
    while length is None or moved < length:
        more = linux.splice(source, sink, BLOCK_BYTES if length is None else min(BLOCK_BYTES, length - moved))
        if not more:
            break
        moved += more
    return moved


def _block(source: int) -> bytes:
    return _exactly(source, BLOCK_BYTES)


def _exactly(source: int, length: int) -> bytes:
    """Return `length` bytes; fewer if there are no more."""
    got = bytearray()
    while len(got) < length:
        more = os.read(source, length - len(got))
        if not more:
            break
        got += more
    return bytes(got)
