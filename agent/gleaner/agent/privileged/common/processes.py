"""Read what the kernel reports about processes, end them, and handle containers' cgroups of version 1 or 2."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import signal
from typing import TYPE_CHECKING, Any

from ...system import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDS = 10
"""The maximum number of passes over a cgroup that is being emptied. Its processes can start others between passes."""


def kill_with_descendants(pid: int) -> None:
    """Kill a process and all its descendants."""
    _send({pid}, signal.SIGSTOP)
    kill_descendants(pid)
    _send({pid}, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, even those that have moved to other sessions or namespaces.

    First, all descendants are stopped, until the search finds no more. Otherwise one of them could start another
    process before it is killed itself. They are searched for again after the kill, because a search can miss a process
    whose parent ends during the search.
    """
    killed: set[int] = set()
    while not (pids := _stop_descendants(pid)) <= killed:
        _send(pids, signal.SIGKILL)
        killed |= pids


def _stop_descendants(pid: int) -> set[int]:
    stopped: set[int] = set()
    while not (pids := set(family(pid)[1:])) <= stopped:
        _send(pids, signal.SIGSTOP)
        stopped = pids
    return pids


def family(pid: int) -> list[int]:
    """Return the pids of a process and of all its descendants. The list is complete if all of them are stopped."""
    children: dict[int, list[int]] = {}
    for one, _, parent in all_processes():
        children.setdefault(parent, []).append(one)
    pids = [pid]
    for one in pids:  # the list grows during the loop
        pids += children.get(one, [])
    return pids


def status(path: str) -> dict[str, list[str]]:
    """Return the words after each name in a `status` file of /proc."""
    with open(path, encoding="ascii", errors="replace") as file:
        return {name: rest.split() for name, _, rest in (line.partition(":") for line in file)}


def all_processes() -> Iterator[tuple[int, str, int]]:
    """Yield the number, the state and the parent of each process that is visible from here."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                yield int(name), state, int(parent)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def cgroups_made_by_runc(state_folder: str) -> dict[str, str]:
    """Return the container's cgroup folders, which runc has made, by controller, with "" for version 2.

    `state_folder` is the folder in which runc keeps its data about the container. Return nothing if the data do not
    have runc's format.
    """
    try:
        folders: dict[str, Any] = _facts_of_runc(state_folder)["cgroup_paths"]
        return folders if all(isinstance(folder, str) for folder in folders.values()) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def first_process(state_folder: str) -> int:
    """Return the pid of a container's first process from runc's folder, or 0 if it is not there."""
    try:
        return int(_facts_of_runc(state_folder)["init_process_pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _facts_of_runc(state_folder: str) -> Any:
    with open(os.path.join(state_folder, "state.json"), "rb") as file:
        return untrusted.json_of(file.read())


def move_others(folder: str, controller: str, *, staying: list[int], beside: int) -> None:
    """Move all processes in a cgroup, except the `staying` ones, into the cgroup of the process `beside`.

    Raises `OSError`. `folder` is the cgroup's folder for the controller ("" for version 2).
    """
    for _ in range(_ROUNDS):
        others = [pid for pid in _members(folder) if pid not in staying]
        if not others:
            return
        inner, outer = cgroup_path(others[0], controller), cgroup_path(beside, controller)
        if not folder.endswith(inner):
            raise OSError(errno.EINVAL, f"{folder} is not the cgroup that the kernel calls {inner}")
        target = f"{folder[: -len(inner)]}{outer}/cgroup.procs"
        for pid in others:
            with contextlib.suppress(ProcessLookupError), open(target, "w", encoding="ascii") as order:
                order.write(str(pid))
    raise OSError(errno.EBUSY, f"others come to {folder} again and again")


def kill_members(folder: str) -> bool:
    """Kill all processes in a cgroup, and return True if there were any.

    Raises `OSError` if the cgroup no longer exists.
    """
    members = set(_members(folder))
    _send(members, signal.SIGKILL)
    return bool(members)


def _members(folder: str) -> list[int]:
    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
        return [int(line) for line in file]


def cgroup_path(pid: int, controller: str) -> str:
    """Return the path of a process's cgroup in the controller's hierarchy (cgroups(7))."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.removeprefix("name=").split(","):
                return path
    raise FileNotFoundError(errno.ENOENT, f"process {pid} is in no cgroup of {controller or 'version 2'}")


def cgroup_counters(folder: str | None, file: str) -> dict[str, int]:
    """Return the names and numbers in a cgroup's file, or nothing if the file does not exist."""
    try:
        with open(os.path.join(folder or "/nowhere", file), encoding="ascii") as content:
            return {words[0]: int(words[1]) for words in map(str.split, content) if len(words) == 2}
    except OSError:
        return {}
