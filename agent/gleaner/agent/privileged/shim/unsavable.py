"""Processes that CRIU cannot stop, or would restore as something else: a container with one of them is not saved.

They are looked for before CRIU is called, while the container stands still.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
from contextlib import suppress

from . import credential_check
from .reasons import Reason

_EVENTS = "anon_inode:[eventfd]"


def refused(init_pid: int, freezer: str) -> Reason | None:
    """Return the reason why a container must not be saved, in one line; None if it may be.

    `freezer` is the folder of the cgroup that keeps the container frozen. A process that cannot be looked at must not
    be saved either.
    """
    is_version_1 = os.path.exists(os.path.join(freezer, "freezer.state"))
    try:
        for pid in credential_check.family(init_pid):
            for is_so, reason in _KINDS:
                if is_so(pid) and (is_version_1 or is_so is not _is_stopped):
                    status = credential_check.status(f"/proc/{pid}/status")
                    process = f"its process {status['NSpid'][-1]} ({' '.join(status['Name'])!r})"
                    return Reason(f"{process} {reason.text}", reason.lasts)
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Reason(f"its processes cannot be looked at, so it is not saved: {error}", lasts=False)
    return None


def _is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process.

    With cgroups of version 1, CRIU would wait for ever in ptrace(2): the kernel does not let it have a process that is
    both stopped and frozen (CRIU issue 1905). Since Linux 6.1 the state of such a process is said to be "D".
    """
    for thread in os.listdir(f"/proc/{pid}/task"):
        about = f"/proc/{pid}/task/{thread}"
        state = credential_check.status(f"{about}/status")["State"][0]
        with open(f"{about}/wchan", encoding="ascii", errors="replace") as file:
            if state == "T" or file.read() == "do_signal_stop":
                return True
    return False


def _is_traced(pid: int) -> bool:
    """Return True if another process traces this one: there can be only one, and CRIU would be a second."""
    return any(
        credential_check.status(f"/proc/{pid}/task/{thread}/status")["TracerPid"] != ["0"]
        for thread in os.listdir(f"/proc/{pid}/task")
    )


def _has_no_file(pid: int) -> bool:
    """Return True if a process runs a program that is in memory alone: CRIU 4 saves it and cannot restore it."""
    with suppress(FileNotFoundError):  # a zombie
        return _link(f"/proc/{pid}/exe").startswith("/memfd:")
    return False


def _has_semaphore(pid: int) -> bool:
    """Return True if an eventfd counts as a semaphore: CRIU 4 restores it as one that does not."""
    about = f"/proc/{pid}"
    for name in os.listdir(f"{about}/fd"):
        if _link(f"{about}/fd/{name}") == _EVENTS:
            with open(f"{about}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
                if any(line.split() == ["eventfd-semaphore:", "1"] for line in file):
                    return True
    return False


def _link(entry: str) -> str:
    try:
        return os.readlink(entry)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # `deleted_files` says so
            return ""
        raise


_KINDS = (
    (
        _is_stopped,
        Reason(
            "is stopped (by SIGSTOP or SIGTSTP): it can be saved when that process goes on (SIGCONT) or ends",
            lasts=False,
        ),
    ),
    (
        _is_traced,
        Reason(
            "is traced by another one, as by a debugger or strace: it can be saved when that has ended",
            lasts=False,
        ),
    ),
    (
        _has_no_file,
        Reason(
            "runs a program that is in no file (memfd): it can be saved if the program is run from a file",
            lasts=True,
        ),
    ),
    (
        _has_semaphore,
        Reason(
            "holds an eventfd with EFD_SEMAPHORE, which CRIU does not keep: it can be saved without that",
            lasts=True,
        ),
    ),
)
