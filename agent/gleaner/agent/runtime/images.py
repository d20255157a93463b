"""CRIU's images as streams: into a draft while CRIU saves, out of a parcel while it restores.

With `--stream` CRIU opens no image file but asks, over one socket, for a pipe for each image by its name (CRIU's
img-streamer.c and images/img-streamer.proto: a request is a length in four bytes, little endian, and a message
with the name as field 1; when restoring, an answer with the field 1 says whether the image exists; then CRIU
sends its end of a pipe). So memory is read once from the process and written once to the storage.
"""

import array
import fcntl
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from gleaner.agent.storage.protocol import Draft, Parcel

PREFIX = "criu."
"""The parts of a parcel that are CRIU's images, each under its own name after this."""
PIPE_BYTES = 2**20
_LENGTH = struct.Struct("<I")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")
_NAME_FIELD = 0x0A
_EXISTS = bytes([0x08, 1])
_EXISTS_NOT = bytes([0x08, 0])


class NeverCame(Exception):
    """CRIU has failed, or ended, before it asked for its first image."""


class StreamBroken(Exception):
    """CRIU said something that is not its protocol, or went away."""


def capture(listener: socket.socket, draft: Draft, caller: socket.socket) -> None:
    """Take in all images of one save; returns when CRIU has closed the last. Raises the draft's errors.

    `listener` is where CRIU connects to; nothing is taken in if its caller speaks before it comes, since then it has
    failed. A failure here closes every pipe, which ends CRIU's save.
    """
    pumps = _Pumps()

    def take(pipe: int, name: str) -> None:
        with open(pipe, "rb", buffering=0) as source, draft.part(PREFIX + name) as writer:
            buffer = memoryview(bytearray(PIPE_BYTES))
            while count := source.readinto(buffer):
                pumps.check()
                writer.write(buffer[:count])
            writer.close()

    with closing(_accepted(listener, caller)) as criu:
        while (name := _asked(criu)) is not None:
            pumps.start(take, _pipe(criu), name)
    pumps.join()


def serve(listener: socket.socket, parcel: Parcel, caller: socket.socket) -> None:
    """Give out the images that CRIU asks for, every byte verified; returns when CRIU asks for no more."""
    pumps = _Pumps()

    def give(pipe: int, name: str) -> None:
        with open(pipe, "wb", buffering=0) as sink, suppress(BrokenPipeError):
            for chunk in parcel.read(PREFIX + name):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[sink.write(rest) :]

    with closing(_accepted(listener, caller)) as criu:
        while (name := _asked(criu)) is not None:
            exists = PREFIX + name in parcel.parts
            answer = _EXISTS if exists else _EXISTS_NOT
            criu.sendall(_LENGTH.pack(len(answer)) + answer)
            if exists:
                pumps.start(give, _pipe(criu), name)
    pumps.join()


class _Pumps:
    """Threads that move bytes, one for each image. The first failure counts, and stops the others."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def start(self, pump: Callable[[int, str], None], pipe: int, name: str) -> None:
        thread = threading.Thread(target=self._run, args=(pump, pipe, name), name=f"image {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, pump: Callable[[int, str], None], pipe: int, name: str) -> None:
        with suppress(OSError):  # more than the system allows an ordinary user: then the pipe stays small
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            pump(pipe, name)
        except BaseException as error:
            self._failed.append(error)

    def check(self) -> None:
        """Raise if another image has failed: then this save comes to nothing."""
        if self._failed:
            raise self._failed[0]

    def join(self) -> None:
        """Wait for all, and raise the first failure."""
        for thread in self._threads:
            thread.join()
        self.check()


def _accepted(listener: socket.socket, caller: socket.socket) -> socket.socket:
    ready, _, _ = select.select([listener, caller], [], [])
    if listener not in ready:
        raise NeverCame
    return listener.accept()[0]


def _asked(criu: socket.socket) -> str | None:
    """The name of the next image; None when CRIU asks for no more."""
    head = _exactly(criu, _LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > 1024:
        raise StreamBroken(f"CRIU sends a request of {length} bytes")
    return parsed_request(_exactly(criu, length))


def parsed_request(message: bytes) -> str:
    r"""The name in a request. Raises `StreamBroken`.

    >>> parsed_request(b"\x0a\x0bpages-1.img")
    'pages-1.img'
    """
    if len(message) < 2 or message[0] != _NAME_FIELD or message[1] & 0x80 or len(message) != 2 + message[1]:
        raise StreamBroken("CRIU sends a request that is not of its protocol")
    name = message[2:].decode("ascii", "replace")
    if not _NAME.match(name):
        raise StreamBroken(f"CRIU asks for an image of the name {name!r}")
    return name


def _pipe(criu: socket.socket) -> int:
    _, ancillary, _, _ = criu.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return array.array("i", data)[0]
    raise StreamBroken("CRIU sends no pipe")


def _exactly(criu: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        try:
            more = criu.recv(count - len(got))
        except OSError as error:
            raise StreamBroken(f"CRIU has gone: {error}") from error
        if not more:
            if got:
                raise StreamBroken("CRIU has gone in the middle of a request")
            return b""
        got += more
    return got
