"""The child process that transfers files. It reads one request from its standard input (`child` is its program).

The agent can end the child at any moment, whatever a server, a file system or a library does, and the child uses none
of the agent's memory. If the child fails, it writes the reason to its error output in one line, and its exit status
shows whether another try might help.
"""

import os
import pickle
import re
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words

CHUNK_BYTES = 2**20
PROGRESS = b"."
"""The byte that the child writes for each piece that was moved."""
LOOK_EVERY_S = 0.25
"""The time within which a request to stop is noticed."""
ENDS_WITHIN_S = 5.0
"""The time in which a child that is asked to end can clean up. A child whose storage hangs is left behind."""
LONGEST_LINE = 2000
PROGRAM = (sys.executable, "-m", "gleaner.agent.transfer.child")
_KEPT = re.compile("HOME|LANG|LD_LIBRARY_PATH|PATH|PYTHON.*|SSL_CERT_(DIR|FILE)|X509_CERT_DIR")
"""The only environment variables that the child receives. Others could name credentials, which a library could then
send to a server."""
_NO_FILES = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "FSSPEC_CONFIG_DIR"), os.devnull)


class TransferFailure(Exception):
    """A transfer failed. The text is one line."""

    may_pass = True
    status: int
    """The exit status of a child that fails in this way."""


class PermanentFailure(TransferFailure):
    """Every further try would also fail."""

    may_pass, status = False, 3


class TemporaryFailure(TransferFailure):
    """Another try might succeed."""

    status = 4


class NodeFull(TransferFailure):
    """The node's disk has no room for the file."""

    status = 5


class TransferStopped(Exception):
    """The agent has no time left for the transfer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of a child. The agent also enforces them, since a library might not enforce its own limits."""

    total_s: float
    silent_s: float
    shown: str
    """The URL, as shown in messages."""
    setting: str
    """The name of the setting for `total_s`."""


def run(
    request: object, limits: Limits, *, stop: threading.Event, clock: Clock, program: Sequence[str] = PROGRAM
) -> list[int]:
    """Run the child for a request, and return its numbers. Raises `TransferFailure` or `TransferStopped`."""
    pipe, kept = subprocess.PIPE, {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    environment = kept | _NO_FILES | {"AWS_EC2_METADATA_DISABLED": "true"}
    child = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=environment)
    try:
        with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as stdin:
            stdin.write(pickle.dumps(request))
        numbers = _output(child, limits, stop, clock)
        _check_end(child)
        return [int(number) for number in numbers.split()]
    except TransferFailure:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDS_WITHIN_S)
        raise
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDS_WITHIN_S)
        for stream in (child.stdout, child.stderr):
            cast("IO[bytes]", stream).close()


def _output(child: "subprocess.Popen[bytes]", limits: Limits, stop: threading.Event, clock: Clock) -> bytes:
    """Return the output of the child after its last sign of progress."""
    incoming, last = cast("IO[bytes]", child.stdout), b""
    began_s = heard_s = clock.monotonic_s()
    while True:
        if stop.is_set():
            raise TransferStopped
        is_ready = select.select([incoming], [], [], LOOK_EVERY_S)[0]
        now_s = clock.monotonic_s()
        if now_s - began_s > limits.total_s:
            raise TemporaryFailure(f"{limits.shown}: not done within {in_words(limits.total_s)} ({limits.setting})")
        if is_ready:
            heard_s = now_s
            chunk = os.read(incoming.fileno(), CHUNK_BYTES)
            if not chunk:
                return last
            last = (last + chunk).rpartition(PROGRESS)[2]
        elif now_s - heard_s > limits.silent_s + LOOK_EVERY_S:
            raise TemporaryFailure(f"{limits.shown}: nothing was sent or taken for {limits.silent_s:.0f} s")


def _check_end(child: "subprocess.Popen[bytes]") -> None:
    """Raise `TransferFailure` unless the child, whose output has ended, exits successfully."""
    text = " ".join(cast("IO[bytes]", child.stderr).read(LONGEST_LINE).decode(errors="replace").split())
    line = "".join(letter if letter.isprintable() else "?" for letter in text)  # it can contain a name from a job
    try:
        status = child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        status = -1
    if status:
        kind = {each.status: each for each in (PermanentFailure, NodeFull)}.get(status, TemporaryFailure)
        raise kind(line or f"the process that moves files was killed or broke ({status})")
