"""Programs of ours that run in a process of their own: each reads one request from its standard input.

The agent can end such a process at any moment, whatever a server, a file system or a library does, and what it needs
takes none of the agent's memory. If it fails, its error output has one line that says why, and its exit status says
whether another try may help.
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO, cast

from gleaner.agent.common.clock import Clock
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.system import openat

CHUNK_BYTES = 2**20
LOOK_EVERY_S = 0.25
"""A stop is seen within this time."""
ENDS_WITHIN_S = 5.0
"""A killed process is gone within this time, unless its storage hangs: then nobody waits for it."""
LONGEST_LINE = 2000
FINAL, MAY_PASS = 3, 4
"""The exit statuses of a failure that stays, and of one that may pass."""


class MayNot(Exception):
    """The request fails, and so would every other try."""


class MayPass(Exception):
    """The request fails, and another try may succeed."""


class ChildStopped(Exception):
    """The agent has no more time for it."""


class ChildTooSlow(Exception):
    """It takes longer than it may."""


class ChildSilent(Exception):
    """It has written nothing for longer than it may."""


@contextmanager
def child_process(module: ModuleType) -> Generator["subprocess.Popen[bytes]"]:
    """Start the module as a program; at the end it is killed if it still runs."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-m", module.__name__], stdin=pipe, stdout=pipe, stderr=pipe, cwd="/")
    try:
        yield child
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDS_WITHIN_S)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def answer(
    child: "subprocess.Popen[bytes]",
    request: bytes,
    *,
    total_s: float,
    silent_s: float,
    stop: threading.Event,
    clock: Clock,
) -> Iterator[bytes]:
    """Give the child its request, and yield what it writes, to its end.

    Raises `ChildStopped`, `ChildTooSlow` or `ChildSilent`. The times are limited here, since a library in the child may
    forget its own limits.
    """
    with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as stdin:
        stdin.write(request)
    incoming = cast("IO[bytes]", child.stdout)
    began_s = heard_s = clock.monotonic_s()
    while True:
        if stop.is_set():
            raise ChildStopped
        is_ready = select.select([incoming], [], [], LOOK_EVERY_S)[0]
        now_s = clock.monotonic_s()
        if now_s - began_s > total_s:
            raise ChildTooSlow
        if not is_ready and now_s - heard_s > silent_s + LOOK_EVERY_S:
            raise ChildSilent
        if not is_ready:
            continue
        heard_s = now_s
        chunk = os.read(incoming.fileno(), CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def check_end(child: "subprocess.Popen[bytes]", where: str) -> None:
    """Raise `MayNot` or `MayPass` unless the child, whose output has ended, says that it has done all."""
    said = " ".join(cast("IO[bytes]", child.stderr).read(LONGEST_LINE).decode(errors="replace").split())
    line = "".join(letter if letter.isprintable() else "?" for letter in said)  # it may have a name from a job
    try:
        status = child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        status = -1
    if status == FINAL:
        raise MayNot(line)
    if status:
        raise MayPass(line or f"{where}: the program for it broke ({status})")


def serve(chunks: Iterator[bytes], credential: Credential | None = None) -> int:
    """In the child: write what is to be said, without the credential, and return the exit status."""
    said = os.dup(2)
    with openat.closing_fd(os.open(os.devnull, os.O_WRONLY)) as nothing:
        os.dup2(nothing, 2)  # what libraries say is not for the agent, which does not read it meanwhile
    try:
        for chunk in chunks:
            openat.write_all(1, chunk)
    except (MayNot, MayPass) as error:
        line = str(error) if credential is None else credential.hidden_in(str(error))
        openat.write_all(said, line.encode(errors="replace"))
        return FINAL if isinstance(error, MayNot) else MAY_PASS
    return 0
