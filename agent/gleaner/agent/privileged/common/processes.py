"""The node's processes: a list of them all, and the end of all that one of them has started."""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def kill_with_descendants(pid: int) -> None:
    """Kill a process and all that it has started."""
    _send({pid}, signal.SIGSTOP)
    kill_descendants(pid)
    _send({pid}, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill all that a process has started, whatever sessions and namespaces they are in by now.

    The descendants are stopped first, until no more are found: else one of them could start another between the look
    and its own end. They are looked for again after they are killed: a look may miss a process whose parent ends in the
    middle of it.
    """
    killed: set[int] = set()
    while not (found := _stopped_descendants(pid)) <= killed:
        _send(found, signal.SIGKILL)
        killed |= found


def _stopped_descendants(pid: int) -> set[int]:
    stopped: set[int] = set()
    while not (found := set(_descendants(pid))) <= stopped:
        _send(found, signal.SIGSTOP)
        stopped = found
    return found


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for one, _, parent in all_processes():
        children.setdefault(parent, []).append(one)
    found = children.get(pid, [])
    for one in found:  # the list grows meanwhile
        found += children.get(one, [])
    return found


def all_processes() -> Iterator[tuple[int, str, int]]:
    """Yield the number, the state and the parent of each process that can be seen from here."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                yield int(name), state, int(parent)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
