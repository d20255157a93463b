"""Try repeatedly to freeze a container, and handle one that could not be frozen or thawed."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterator

from . import processes

_WITHIN_S = 5.0
"""The time for repeated tries. On a busy node the kernel might not stop all threads in the time that runc allows."""
_AGAIN_S = 0.2
_TRIES = 2
"""The minimum number of tries. With cgroups of version 2, runc itself waits for 10 s."""


def tries() -> Iterator[bool]:
    """Yield True for the last try and False for each earlier one, and wait between them."""
    until_s = time.monotonic() + _WITHIN_S
    for number in itertools.count(1):
        is_last = number >= _TRIES and time.monotonic() >= until_s
        yield is_last
        if is_last:
            return
        time.sleep(_AGAIN_S)


def holds_after_all(folders: dict[str, str]) -> bool:
    """Return True if a container that runc could not freeze is frozen after all.

    Otherwise withdraw the order to freeze. A runc that was killed leaves the order in force, and so does a runc that
    gives up with cgroups of version 2. The container would then freeze later, unnoticed. `folders` are the container's
    cgroups by controller, with "" for version 2. Return False for a container that has ended.
    """
    if _is(folders, frozen=True):
        return True
    let_go(folders)
    return False


def take_back(folder: str) -> None:
    """Withdraw the order to freeze.

    `folder` is the container's cgroup of either version, which might no longer exist.
    """
    for file, word in (("freezer.state", "THAWED\n"), ("cgroup.freeze", "0\n")):
        with contextlib.suppress(OSError), open(os.path.join(folder, file), "r+", encoding="ascii") as order:
            order.write(word)


def hold(folders: dict[str, str], pids: list[int], *, beside: int) -> None:
    """Keep these stopped processes of a container from continuing until `let_go` is called. Raises `OSError`.

    `folders` are the container's cgroups, as for `holds_after_all`. First, the other processes in its cgroup are moved
    to the cgroup of the process `beside`, because CRIU and the processes that wait for CRIU run in the container's
    cgroup.
    """
    controller = _controller(folders)
    if controller not in folders:
        raise FileNotFoundError(errno.ENOENT, "the container has no cgroup that can be frozen")
    processes.move_others(folders[controller], controller, staying=pids, beside=beside)
    file, word = ("freezer.state", "FROZEN\n") if controller else ("cgroup.freeze", "1\n")
    with open(os.path.join(folders[controller], file), "r+", encoding="ascii") as order:
        order.write(word)


def let_go(folders: dict[str, str]) -> None:
    """Withdraw the order of `hold`. It is not an error if the container no longer exists."""
    if folder := folders.get(_controller(folders)):
        take_back(folder)


def end(folders: dict[str, str]) -> bool:
    """Kill the processes of a container and thaw them, because frozen processes end only when they are thawed.

    Return True if there were any.
    """
    try:
        return processes.kill_members(folders[_controller(folders)])
    except (OSError, KeyError, ValueError):
        return False
    finally:
        let_go(folders)


def end_frozen(folders: dict[str, str]) -> bool:
    """Kill the processes of a frozen container before any of them can continue. Return False if it is not frozen.

    runc kills only the init, and thaws it first. Its children would then run a little further, although they are
    already saved.
    """
    return _is(folders, frozen=True) and end(folders)


def _controller(folders: dict[str, str]) -> str:
    """Return the controller that freezes, which is "freezer", or "" for cgroups of version 2."""
    return "freezer" if "freezer" in folders else ""


def goes_on_after_all(folders: dict[str, str]) -> bool:
    """Return True if a container is not frozen though it should be, because CRIU was killed after thawing it.

    `folders` are as for `holds_after_all`. Return False for a container that has ended.
    """
    return _is(folders, frozen=False)


def _is(folders: dict[str, str], *, frozen: bool) -> bool:
    """Return True if a container has processes that are frozen or, with `frozen` false, that run."""
    with contextlib.suppress(OSError, KeyError):  # the container has ended
        if _controller(folders):
            word, folder = "FROZEN\n" if frozen else "THAWED\n", folders["freezer"]
            return _text(folder, "freezer.state") == word and _text(folder, "cgroup.procs") != ""
        is_so = {"populated 1", f"frozen {int(frozen)}"} <= set(_text(folders[""], "cgroup.events").splitlines())
        return is_so and (frozen or _text(folders[""], "cgroup.freeze") == "0\n")  # otherwise a freeze is pending
    return False


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
