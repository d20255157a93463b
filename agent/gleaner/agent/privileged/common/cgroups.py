"""A container's cgroups, of version 1, 2 or both."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import signal
from typing import Any

from ...system import untrusted

_ROUNDS = 10
"""The most looks at a cgroup that others are moved out of: one of them may start another one meanwhile."""


def made_by_runc(kept: str) -> dict[str, str]:
    """Return the container's cgroup folder for each controller, as runc has made them; "" is that of version 2.

    `kept` is the folder in which runc keeps its facts about the container. Return nothing if these are not what runc
    writes.
    """
    try:
        with open(os.path.join(kept, "state.json"), "rb") as file:
            folders: dict[str, Any] = untrusted.json_of(file.read())["cgroup_paths"]
        return folders if all(isinstance(folder, str) for folder in folders.values()) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def move_others(folder: str, controller: str, *, staying: list[int], beside: int) -> None:
    """Move the processes in a cgroup that do not stay into the cgroup of the process `beside`. Raises `OSError`.

    `folder` is that of the controller ("" for version 2).
    """
    for _ in range(_ROUNDS):
        others = [pid for pid in _members(folder) if pid not in staying]
        if not others:
            return
        inner, outer = path(others[0], controller), path(beside, controller)
        if not folder.endswith(inner):
            raise OSError(errno.EINVAL, f"{folder} is not the cgroup that the kernel calls {inner}")
        target = f"{folder[: -len(inner)]}{outer}/cgroup.procs"
        for pid in others:
            with contextlib.suppress(ProcessLookupError), open(target, "w", encoding="ascii") as order:
                order.write(str(pid))
    raise OSError(errno.EBUSY, f"others come to {folder} again and again")


def kill_members(folder: str) -> None:
    """Kill all processes in a cgroup. Raises `OSError` if the cgroup has gone."""
    for pid in _members(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members(folder: str) -> list[int]:
    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
        return [int(line) for line in file]


def path(pid: int, controller: str) -> str:
    """Return the path of a process's cgroup in the controller's hierarchy (cgroups(7))."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(","):
                return path
    raise FileNotFoundError(errno.ENOENT, f"process {pid} is in no cgroup of {controller or 'version 2'}")


def counters(folder: str | None, file: str) -> dict[str, int]:
    """Return the names and numbers in a cgroup's file; nothing if the file is not there."""
    try:
        with open(os.path.join(folder or "/nowhere", file), encoding="ascii") as content:
            return {words[0]: int(words[1]) for words in map(str.split, content) if len(words) == 2}
    except OSError:
        return {}
