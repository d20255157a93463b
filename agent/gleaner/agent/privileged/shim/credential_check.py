"""Check that a restored process has no more rights than a newly started one.

CRIU gives a process the rights that are recorded in its CRIU images. So an attacker who could replace the saved images
with others could gain root's rights. The first guard against this attack is the digest of a checkpoint, which the queue
keeps. This module is the second guard, on the privileged side. It checks each thread of the processes before they run
again.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import signal

from ..common.processes import family, status

_NO_CAPABILITY = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def stop_if_beyond(init_pid: int, uid: int) -> str | None:
    """Kill the processes that CRIU has just restored if one of them has more rights than it should.

    Return the reason, or None if no process has too many rights. A process that cannot be checked counts as one with
    too many rights, because CRIU lets the processes continue whatever the answer is at this point.
    """
    pids = [init_pid]
    try:
        pids = family(init_pid)
        why = _first_beyond(pids, uid)
    except (OSError, ValueError, IndexError) as error:
        why = f"it cannot be looked at: {error}"
    if why is not None:
        for pid in pids:  # kill all of them, because a forged image can also lack the namespace
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
    """Return True for a thread that will never run again. `fields` are its `status` in /proc, read after its rights.

    CRIU restores a container's zombies as root and gives them no rights of their own, because a zombie has only an exit
    code. In a process whose first thread has ended, the other threads are checked one by one.

    >>> has_ended({"State": ["Z", "(zombie)"]}), has_ended({"State": ["t", "(tracing", "stop)"]}), has_ended({})
    (True, False, False)
    """
    return fields.get("State", ["?"])[0] in ("Z", "X")


def beyond(fields: dict[str, list[str]], uid: int) -> str | None:
    """Return a right that a thread has and a job must not have, from its `status` in /proc, or None if there is none.

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
