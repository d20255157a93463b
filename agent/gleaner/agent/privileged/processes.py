"""The node's processes: which there are, and the end of all that one of them has started."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def kill_with_descendants(pid: int) -> None:
    """Kill a process and all that it has started."""
    _send([pid], signal.SIGSTOP)
    kill_descendants(pid)
    _send([pid], signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill all that a process has started, whatever sessions and namespaces they are in by now.

    They are stopped first, until no more are found: else one could start another between the look and its end.
    """
    doomed: list[int] = []
    while True:
        found = _descendants(pid)
        if set(found) <= set(doomed):
            break
        doomed = found
        _send(doomed, signal.SIGSTOP)
    _send(found, signal.SIGKILL)  # not `doomed`: of those some may have ended, and their numbers be others' by now


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for one, _, parent in all_processes():
        children.setdefault(parent, []).append(one)
    found = children.get(pid, [])
    for one in found:  # it grows meanwhile
        found += children.get(one, [])
    return found


def all_processes() -> Iterator[tuple[int, str, int]]:
    """Yield the number, the state and the parent of each process that can be seen from here."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                yield int(name), state, int(parent)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
