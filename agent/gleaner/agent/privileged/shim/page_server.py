"""Serve the pages of one restored container by putting them into its processes' memory while the processes run.

The agent sends whole verified blocks, beginning with those that a process waits for, and CRIU passes a userfaultfd for
each process. The kernel reports how a process changes memory that is still missing. Until such a report is read, the
kernel refuses pages (EAGAIN), so a page is never put at an address that its memory has left. The agent is not trusted.
A block must be within the memory that is named in CRIU's page maps, which root's relay has read.

`page_watchdog` contains the other half, which kills the container if this process ends before all memory is loaded.
"""

from __future__ import annotations  # the node may have Python 3.9

import bisect
import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import time
from collections import deque

from ...system import ipc
from ..common import userfault
from .lazy_maps import PAGE, Range, later_ranges

BLOCK = struct.Struct("<IIQ")
"""A message to or from the agent: process number in the checkpoint, length and address, followed by a block's bytes."""
MAP = struct.Struct("<II")
"""The head of a page map from root's relay, with the process's number and the length of the page map."""
_NUMBER = struct.Struct("<I")
BEGIN, COMPLETE = BLOCK.pack(0, 0, 1), BLOCK.pack(0, 0, 0)
"""Messages to the agent: it can now send all memory, and all memory is loaded."""
MOST_BYTES = 2**20
BLOCK_WITHIN_S = 60.0
"""The longest time without a block while memory is missing, and the longest time to put a block in its place."""
_PATIENCE_S = 20.0
_RESTORED, _ENDED = 0x52535446, 1 << 31
"""The number that CRIU sends when all processes are restored.

Numbers from `_ENDED` on stand for a process that has ended.
"""
_REPORTS = 64

Run = tuple[int, int, int]
"""Missing memory, with its start and end in the checkpoint, and how far it has moved since."""


class MemoryLost(Exception):
    """The memory cannot be completed. The message is one line."""


class Space:
    """The missing memory of one process, in the order of its addresses in the checkpoint."""

    def __init__(self, process: int, runs: list[Run]) -> None:
        self.process = process
        self.runs = runs
        self._moves = {by for *_, by in runs}

    def _between(self, start: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_left(self.runs, (start,))
        if first and self.runs[first - 1][1] > start:
            first -= 1
        return first, bisect.bisect_left(self.runs, (end,))

    def first(self, start: int, end: int) -> Run | None:
        """Return the first missing piece of a range in the checkpoint."""
        first, last = self._between(start, end)
        if first >= last:
            return None
        run = self.runs[first]
        return max(run[0], start), min(run[1], end), run[2]

    def cut(self, start: int, end: int) -> list[Run]:
        """Remove a range in the checkpoint from the missing memory, and return the removed pieces."""
        first, last = self._between(start, end)
        runs = self.runs[first:last]
        outside = [(one, min(two, start), by) for one, two, by in runs if one < start]
        outside += [(max(one, end), two, by) for one, two, by in runs if two > end]
        self.runs[first:last] = outside
        return [(max(one, start), min(two, end), by) for one, two, by in runs]

    def find(self, address: int) -> int | None:
        """Return the checkpoint address of the page that is missing at this address, or None if none is missing."""
        places = ((address - by, self.first(address - by, address - by + PAGE)) for by in self._moves)
        return next((place for place, run in places if run is not None and run[2] == address - place), None)

    def drop(self, start: int, end: int) -> list[Run]:
        """Remove the memory between two addresses from the missing memory, and return the removed pieces."""
        inside = [run for run in self.runs if run[0] + run[2] < end and run[1] + run[2] > start]
        return [piece for one, two, by in inside for piece in self.cut(max(one, start - by), min(two, end - by))]

    def move(self, old: int, new: int, length: int) -> None:
        """Record that memory has moved."""
        moved = self.drop(old, old + length)
        self.drop(new, new + length)
        for one, two, by in moved:
            bisect.insort(self.runs, (one, two, by + new - old))
        self._moves = {by for *_, by in self.runs}


class PageServer:
    """The page server of one restore.

    CRIU connects to the socket `criu`. Blocks arrive through `agent`, and page maps through `maps`. `guard` is a
    descriptor that becomes readable when the watchdog ends.
    """

    def __init__(self, guard: int, criu: socket.socket, agent: socket.socket, maps: socket.socket) -> None:
        self._agent, self._maps = agent, maps
        self._named: dict[int, list[Range]] = {}
        self._spaces: dict[int, Space] = {}
        self._faults: deque[tuple[int, int]] = deque()
        self._is_restored = False
        self._heard_s = time.monotonic()
        self._buffer = bytearray(MOST_BYTES)  # one for all blocks, as new memory would cost more than the copy
        agent.settimeout(BLOCK_WITHIN_S)
        maps.settimeout(_PATIENCE_S)
        self._criu, self._connection = criu, criu
        self._guard = guard
        self._poller = select.poll()
        for one in (guard, criu.fileno(), agent.fileno(), maps.fileno()):
            self._poller.register(one, select.POLLIN)

    def serve(self) -> None:
        """Serve pages until all memory is loaded. Raises `MemoryLost`, `OSError` or `struct.error`, among others."""
        while not (self._is_restored and not any(space.runs for space in self._spaces.values())):
            ready = [one for one, _ in self._poller.poll(0 if self._faults else 1000)]
            if self._guard in ready:
                raise MemoryLost("the watchdog has ended")
            for one in ready:
                if one in self._spaces:
                    self._hear(one)
            for _ in range(len(self._faults)):
                self._answer(*self._faults.popleft())
            if self._maps.fileno() in ready:
                self._read_map()
            if self._connection.fileno() in ready:
                self._hear_criu()
            if self._agent.fileno() in ready:
                self._take_block()
            self._check_time()
        for descriptor in list(self._spaces):
            self._remove(descriptor)
        with contextlib.suppress(OSError):
            self._agent.sendall(COMPLETE)

    # ── CRIU ──

    def _hear_criu(self) -> None:
        if self._connection is self._criu:
            self._poller.unregister(self._criu)
            self._connection, _ = self._criu.accept()
            self._connection.settimeout(_PATIENCE_S)
            self._poller.register(self._connection, select.POLLIN)
            return
        (number,) = _NUMBER.unpack(ipc.receive_all(self._connection, _NUMBER.size))
        if number == _RESTORED:
            self._poller.unregister(self._connection)
            self._is_restored, self._heard_s = True, time.monotonic()
            self._agent.sendall(BEGIN)
        elif number < _ENDED:
            _, descriptor = ipc.receive(self._connection, 1)
            if descriptor is None:
                raise MemoryLost("CRIU sends no descriptor")
            while number not in self._named:  # CRIU receives a page map only after all of it was sent to us
                self._read_map()
            self._add(descriptor, Space(number, [(one, two, 0) for one, two in self._named[number]]))

    def _read_map(self) -> None:
        """Read a page map. Raises `KeyError` if the end of the page maps has already been read."""
        head = ipc.receive_all(self._maps, MAP.size)
        if len(head) < MAP.size:
            self._poller.unregister(self._maps)
            return
        process, length = MAP.unpack(head)
        self._named[process] = later_ranges(ipc.receive_all(self._maps, length))

    def _add(self, descriptor: int, space: Space) -> None:
        self._spaces[descriptor] = space
        self._poller.register(descriptor, select.POLLIN)

    def _remove(self, descriptor: int) -> None:
        """Forget a process that has ended or has all its memory."""
        self._poller.unregister(descriptor)
        del self._spaces[descriptor]
        os.close(descriptor)

    # ── the kernel ──

    def _hear(self, descriptor: int) -> None:
        """Record how a process has changed its memory, and note the pages that it waits for.

        Some reports might be left for the next call.
        """
        with contextlib.suppress(BlockingIOError):
            for report in userfault.reports(os.read(descriptor, userfault.REPORT_BYTES * _REPORTS)):
                self._follow(descriptor, *report)

    def _follow(self, descriptor: int, kind: int, first: int, second: int, third: int) -> None:
        space = self._spaces[descriptor]
        if kind == userfault.FAULT:
            self._faults.append((descriptor, second - second % PAGE))
        elif kind == userfault.FORK:
            self._add(first & 0xFFFFFFFF, Space(space.process, list(space.runs)))
        elif kind == userfault.MOVE:
            space.move(first, second, third)
            userfault.wake(descriptor, first, third)
        elif kind in (userfault.REMOVE, userfault.UNMAP):
            space.drop(first, second)
            userfault.wake(descriptor, first, second - first)
        else:
            raise MemoryLost(f"the kernel reports {kind}, which is not known here")

    def _answer(self, descriptor: int, page: int) -> None:
        """Ask for the page that a process waits for, or supply zeros where the checkpoint has no memory."""
        space = self._spaces.get(descriptor)
        if space is None:
            return
        self._hear(descriptor)  # its earlier reports come first
        if (place := space.find(page)) is not None:
            self._agent.sendall(BLOCK.pack(space.process, PAGE, place))
            return
        error = userfault.fill_with_zeros(descriptor, page, PAGE)
        if error in (errno.EEXIST, errno.ENOENT):  # the page is there, or its place no longer exists
            userfault.wake(descriptor, page, PAGE)
        elif error:
            self._faults.append((descriptor, page))
            self._react(descriptor, error)

    def _react(self, descriptor: int, error: int) -> None:
        """React to the kernel's refusal of a page, so that the caller can try again. Raises `MemoryLost`."""
        if error == errno.EAGAIN:  # it accepts pages again once its reports are read, but perhaps not for long
            self._hear(descriptor)
            os.sched_yield()
            self._check_time()
        elif error == errno.ESRCH:
            self._remove(descriptor)
        else:
            raise MemoryLost(f"no page can be put in its place: {os.strerror(error)}")

    def _check_time(self) -> None:
        if self._is_restored and time.monotonic() - self._heard_s > BLOCK_WITHIN_S:
            raise MemoryLost("for too long no block has come, or the processes have let none be put in its place")

    # ── the agent ──

    def _take_block(self) -> None:
        process, length, start = BLOCK.unpack(ipc.receive_all(self._agent, BLOCK.size))
        named = self._named.get(process, [])
        at = bisect.bisect_right(named, (start, 2**64)) - 1
        is_sound = 0 < length <= MOST_BYTES and not length % PAGE and not start % PAGE
        if not is_sound or at < 0 or start + length > named[at][1]:
            raise MemoryLost(f"the agent sends a block of {length} bytes at {start:#x}, where none is missing")
        left = memoryview(self._buffer)[:length]
        while left:
            if not (count := self._agent.recv_into(left)):
                raise MemoryLost("the agent has gone in the middle of a block")
            left = left[count:]
        self._heard_s = time.monotonic()
        self._place(process, start, start + length)

    def _place(self, process: int, start: int, end: int) -> None:
        """Put a block where it is missing, in the process and in those that were forked from it."""
        source, whole = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer)), True
        while found := self._missing(process, start, end):
            descriptor, space, (one, two, by) = found
            length = two - one if whole else PAGE
            copied, error = userfault.copy(descriptor, one + by, source + one - start, length)
            if copied:
                space.cut(one, one + copied)
            if error == errno.EEXIST:
                space.cut(one, one + PAGE)
                userfault.wake(descriptor, one + by, PAGE)
            elif error == errno.ENOENT and length > PAGE:  # the border between two mappings is inside
                whole = False
            elif error:
                self._react(descriptor, error)

    def _missing(self, process: int, start: int, end: int) -> tuple[int, Space, Run] | None:
        for descriptor, space in self._spaces.items():
            if space.process == process and (piece := space.first(start, end)) is not None:
                return descriptor, space, piece
        return None
