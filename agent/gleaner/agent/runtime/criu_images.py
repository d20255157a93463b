"""CRIU images as streams: into a draft while CRIU saves, out of an archive while it restores.

With `--stream`, CRIU opens no image file but asks for a pipe for each (see `privileged.shim.criu_messages`). So memory
is read once from the process and written once to the storage.
"""

import fcntl
import select
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from gleaner.agent.checkpoints.interface import Archive, Draft
from gleaner.agent.privileged.shim.criu_messages import answer, asked, taken_pipe
from gleaner.agent.system.openat import opened, write_all

PREFIX = "criu."
"""The start of the name of each part that is a CRIU image; CRIU's own name of the image follows."""
PIPE_BYTES = 2**20


class NeverCame(Exception):
    """CRIU has failed, or has ended, before it asked for its first image."""


def capture(listener: socket.socket, draft: Draft, caller: socket.socket) -> None:
    """Write all CRIU images of one save to the draft. Return when CRIU has closed the last. Raises the draft's errors.

    `listener` is the socket that CRIU connects to. If CRIU's caller speaks before CRIU connects, then CRIU has failed.
    Raises `NeverCame` in that case. A failure here closes every pipe, which ends CRIU's save.
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
        while (name := asked(criu)) is not None:
            pumps.start(take, taken_pipe(criu), name)
    pumps.join()


def serve(listener: socket.socket, archive: Archive, caller: socket.socket) -> None:
    """Send the images that CRIU asks for, every byte verified. Return when CRIU asks for no more."""
    pumps = _Pumps()

    def give(pipe: int, name: str) -> None:
        with opened(pipe), suppress(BrokenPipeError):
            for chunk in archive.read(PREFIX + name):
                write_all(pipe, chunk)

    with closing(_accepted(listener, caller)) as criu:
        while (name := asked(criu)) is not None:
            exists = PREFIX + name in archive.parts
            answer(criu, exists=exists)
            if exists:
                pumps.start(give, taken_pipe(criu), name)
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
        with suppress(OSError):  # if the system allows an ordinary user less, the pipe stays small
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            pump(pipe, name)
        except BaseException as error:
            self._failed.append(error)

    def check(self) -> None:
        """Raise the failure of another image, if there is one: then this save comes to nothing."""
        if self._failed:
            raise self._failed[0]

    def join(self) -> None:
        """Wait for all threads, and raise the first failure."""
        for thread in self._threads:
            thread.join()
        self.check()


def _accepted(listener: socket.socket, caller: socket.socket) -> socket.socket:
    ready, _, _ = select.select([listener, caller], [], [])
    if listener not in ready:
        raise NeverCame
    return listener.accept()[0]
