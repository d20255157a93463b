"""Run a function in a child process that has none of root's rights.

A user's file is read in this way, because it might attack the code that reads it. The child has its own account without
any capability, sees only one folder, has no network, cannot start a program, and is limited in time and in bytes. It
sends its answer through a pipe.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from ...system import openat, untrusted
from . import linux

ACCOUNT = 2_000_000_000
"""A uid and gid that no account has. systemd, user namespaces and account directories never use it."""
_GOOD, _BAD = b"+", b"-"
_LONGEST_ERROR = 2000
_MOST_FILES = 64


class Failure(Exception):
    """The function raised an error, or the child was killed. The message is one line."""


def call(
    function: Callable[[], bytes], *, folder: int, source: int, within_s: int, most_bytes: int, longest: int
) -> bytes:
    """Return what the function returns. `folder` and `source` are the only descriptors that the function has.

    The child can write files of at most `most_bytes` each, and only into the folder, which must belong to `ACCOUNT`. At
    the end, the child no longer exists. A caller that does not run as root has no rights to give up, but the limits
    apply to it as well. Raises `Failure`.
    """
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        _become(function, folder=folder, source=source, say=say, within_s=within_s, most_bytes=most_bytes)
    os.close(say)
    try:
        with openat.closing_fd(hear):
            answer = _read(hear, longest, time.monotonic() + within_s)
    finally:
        os.kill(child, signal.SIGKILL)  # the child has not been waited for yet, so the number still belongs to it
        os.waitpid(child, 0)
    if not answer.startswith(_GOOD):
        line = " ".join(untrusted.text_of(answer[1:]).split())
        raise Failure(line or f"it takes too much memory, or more than {within_s} s")
    return answer[1:]


def _read(pipe: int, longest: int, until_s: float) -> bytes:
    """Return all bytes that arrive, or none if they arrive too late or are too many."""
    content = b""
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while ready.poll(max(0.0, until_s - time.monotonic()) * 1000):
        chunk = os.read(pipe, openat.CHUNK_BYTES)
        content += chunk
        if not chunk:
            return content
        if len(content) > longest:
            break
    return b""


def _become(
    function: Callable[[], bytes], *, folder: int, source: int, say: int, within_s: int, most_bytes: int
) -> NoReturn:
    try:
        try:
            if os.geteuid() == 0:
                _give_up_rights(folder, (folder, source, say))
            for what, most in (
                (resource.RLIMIT_CPU, within_s),
                (resource.RLIMIT_FSIZE, most_bytes),
                (resource.RLIMIT_NOFILE, _MOST_FILES),
                (resource.RLIMIT_NPROC, 0),
                (resource.RLIMIT_CORE, 0),
            ):
                _, hard = resource.getrlimit(what)
                least = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(what, (least, least))
            answer = _GOOD + function()
        except Exception as error:
            answer = _BAD + (str(error) or type(error).__name__)[:_LONGEST_ERROR].encode("utf-8", "replace")
        openat.write_all(say, answer)
    finally:
        os._exit(0)


def _give_up_rights(folder: int, needed: tuple[int, ...]) -> None:
    """Leave this process only the folder and the needed descriptors, and remove all its other rights."""
    linux.own_namespaces()
    os.fchdir(folder)
    os.chroot(".")
    bounds = [-1, *sorted(needed), 2**20]
    for before, after in zip(bounds, bounds[1:]):  # noqa: B905, RUF007 - Python 3.9
        os.closerange(before + 1, after)
    os.setgroups([])
    os.setresgid(ACCOUNT, ACCOUNT, ACCOUNT)
    os.setresuid(ACCOUNT, ACCOUNT, ACCOUNT)
    linux.gain_no_rights()
