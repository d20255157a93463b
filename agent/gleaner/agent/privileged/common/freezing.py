"""Repeated tries to freeze a container, and the state of one that could not be frozen or thawed."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterator

from . import processes

_WITHIN_S = 5.0
"""The time for further tries: on a busy node the kernel may not stop all threads in the time that runc allows."""
_AGAIN_S = 0.2
_TRIES = 2
"""The least number of tries: with cgroups of version 2, runc itself waits for 10 s."""


def tries() -> Iterator[bool]:
    """Yield for each try True if it is the last one, and wait between them."""
    until_s = time.monotonic() + _WITHIN_S
    for number in itertools.count(1):
        is_last = number >= _TRIES and time.monotonic() >= until_s
        yield is_last
        if is_last:
            return
        time.sleep(_AGAIN_S)


def holds_after_all(folders: dict[str, str]) -> bool:
    """Return True if a container that runc could not freeze is frozen after all. Else take the order to freeze back.

    A runc that was killed leaves the order in force; with cgroups of version 2, a runc that gives up does so too. The
    container would then stop later, unseen. `folders` are the container's cgroups by controller; "" is that of
    version 2. Return False for a container that has ended.
    """
    if _is(folders, frozen=True):
        return True
    let_go(folders)
    return False


def take_back(folder: str) -> None:
    """Take the order to freeze back. `folder` is the container's cgroup of either version; it may have gone."""
    for file, word in (("freezer.state", "THAWED\n"), ("cgroup.freeze", "0\n")):
        with contextlib.suppress(OSError), open(os.path.join(folder, file), "r+", encoding="ascii") as order:
            order.write(word)


def hold(folders: dict[str, str], pids: list[int], *, beside: int) -> None:
    """Order that these processes of a container, which all stand still, do not go on until `let_go`. Raises `OSError`.

    `folders` are the container's cgroups, as for `holds_after_all`. Other processes in its cgroup are moved to that of
    the process `beside` before: runc has CRIU, and what waits for CRIU, run in the container's cgroup.
    """
    controller = _controller(folders)
    if controller not in folders:
        raise FileNotFoundError(errno.ENOENT, "the container has no cgroup that can be frozen")
    processes.move_others(folders[controller], controller, staying=pids, beside=beside)
    file, word = ("freezer.state", "FROZEN\n") if controller else ("cgroup.freeze", "1\n")
    with open(os.path.join(folders[controller], file), "r+", encoding="ascii") as order:
        order.write(word)


def let_go(folders: dict[str, str]) -> None:
    """Take the order of `hold` back. A container that has gone is no error."""
    if folder := folders.get(_controller(folders)):
        take_back(folder)


def end(folders: dict[str, str]) -> bool:
    """Kill the processes of a container, and let them go on, since frozen ones end only then.

    Return True if there were any.
    """
    try:
        return processes.kill_members(folders[_controller(folders)])
    except (OSError, KeyError, ValueError):
        return False
    finally:
        let_go(folders)


def end_frozen(folders: dict[str, str]) -> bool:
    """Kill the processes of a frozen container before any of them goes on. Return False if it is not frozen.

    runc kills the init alone, and thaws it first. Its children would take another step, though they are saved.
    """
    return _is(folders, frozen=True) and end(folders)


def _controller(folders: dict[str, str]) -> str:
    """Return the controller that freezes: "freezer", or "" for cgroups of version 2."""
    return "freezer" if "freezer" in folders else ""


def goes_on_after_all(folders: dict[str, str]) -> bool:
    """Return True if a container is not frozen though it should be: CRIU was killed when it had thawed it.

    `folders` are as for `holds_after_all`. Return False for a container that has ended.
    """
    return _is(folders, frozen=False)


def _is(folders: dict[str, str], *, frozen: bool) -> bool:
    """Return True if a container has processes, and they are frozen (or, with `frozen` false, go on)."""
    with contextlib.suppress(OSError, KeyError):  # it has ended
        if _controller(folders):
            word, folder = "FROZEN\n" if frozen else "THAWED\n", folders["freezer"]
            return _text(folder, "freezer.state") == word and _text(folder, "cgroup.procs") != ""
        is_so = {"populated 1", f"frozen {int(frozen)}"} <= set(_text(folders[""], "cgroup.events").splitlines())
        return is_so and (frozen or _text(folders[""], "cgroup.freeze") == "0\n")  # else it is about to be frozen
    return False


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
