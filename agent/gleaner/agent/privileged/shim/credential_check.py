"""The check that a restored process may do no more than one that was started.

CRIU gives a process the rights that its CRIU images say. So somebody who could hand us other images than those that
were saved could gain root's rights. The first guard against that is the digest of a checkpoint, which the queue keeps.
This is the second guard, on root's side: each thread of the processes is looked at before they run again.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import signal

from ..common.processes import family, status

_NO_CAPABILITY = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def stop_if_beyond(init_pid: int, uid: int) -> str | None:
    """Kill the processes that CRIU has just restored if one may do more than it should. Return why; None if none may.

    A process that cannot be looked at counts as one that may: CRIU lets the processes go on whatever it is told at this
    point.
    """
    pids = [init_pid]
    try:
        pids = family(init_pid)
        why = _first_beyond(pids, uid)
    except (OSError, ValueError, IndexError) as error:
        why = f"it cannot be looked at: {error}"
    if why is not None:
        for pid in pids:  # all of them: a forged image may lack the namespace, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return why


def _first_beyond(pids: list[int], uid: int) -> str | None:
    for pid in pids:
        for thread in _numbers(f"/proc/{pid}/task"):
            about = f"/proc/{pid}/task/{thread}/status"
            why = beyond(status(about), uid)
            if why is not None and not has_ended(status(about)):
                return why
    return None


def has_ended(fields: dict[str, list[str]]) -> bool:
    """Return True for a thread that will never run again, by its `status` in /proc, which was read after its rights.

    CRIU makes the zombies of a container anew as root, and gives them no rights of their own: a zombie is no more than
    an exit code. The other threads of a process whose first thread has ended are looked at each by itself.

    >>> has_ended({"State": ["Z", "(zombie)"]}), has_ended({"State": ["t", "(tracing", "stop)"]}), has_ended({})
    (True, False, False)
    """
    return fields.get("State", ["?"])[0] in ("Z", "X")


def beyond(fields: dict[str, list[str]], uid: int) -> str | None:
    """Return what a thread may do that a job's may not, by its `status` in /proc; None if there is nothing.

    >>> beyond({"Uid": ["0"] * 4}, 4200)
    'it would run as uid 0'
    """
    for one in fields.get("Uid", ["?"]):
        if one != str(uid):
            return f"it would run as uid {one}"
    if "0" in (*fields.get("Gid", ["0"]), *fields.get("Groups", [])):
        return "it would run with root's group"
    for name in _NO_CAPABILITY:
        if int(fields.get(name, ["1"])[0], 16) != 0:
            return "it would have capabilities"
    if fields.get("NoNewPrivs") != ["1"]:
        return "it could gain privileges"
    return None


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdigit()]
