"""Load the memory of a restored container while it runs, as the agent's side of root's page server.

The agent writes CRIU's page maps so that CRIU leaves this memory out (`privileged.shim.lazy_maps`). Then it sends whole
verified blocks. First come those that the processes wait for, then those that were waited for after the previous
restore, in the same order, and then all others.
"""

import itertools
import json
import socket
import struct
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.privileged.shim.criu_messages import NotUnderstood
from gleaner.agent.privileged.shim.lazy_maps import LazyPlan, plans
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK, BLOCK_WITHIN_S, COMPLETE
from gleaner.agent.runtime.criu_streams import PREFIX
from gleaner.agent.system.ipc import receive_all

ORDER_PART = "order.json"
"""The blocks that processes waited for after a restore, each as the process's number and the address."""
_LONGEST_ORDER = 4096
_MOST_PROCESSES = 2
"""These are the init and one program.

Memory that is still missing at a fork becomes the child's own copy, although it would otherwise be shared.
"""
_USER_NAMESPACE = "userns-"
_TOGETHER = 4
"""The number of blocks to send when a process waits for the first of them. It might read on."""

Waits = list[tuple[int, int]]
Run = tuple[int, int, int]


class LazyMemory:
    """The memory of one restore that is loaded later."""

    def __init__(self, archive: FolderArchive) -> None:
        self._archive = archive
        self.plans = _plans(archive)
        """The plan for each process by its number, or no plans if nothing can be loaded later."""
        self._starts = {process: _block_starts(archive, PREFIX + plan.pages) for process, plan in self.plans.items()}
        """The offset of each block of a process's pages, and the end of the last."""
        self._sent: set[tuple[int, int]] = set()
        self._wanted: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        """The blocks to send next, each as the process's number and the block's number.

        After None, all blocks can be sent.
        """
        self._ended = threading.Event()
        self._connection: socket.socket | None = None
        self._began_s = 0.0
        self.waits: Waits = []
        """The pages that processes have waited for, in order."""
        self.is_sent = True
        """False while there is still memory to send."""
        self.complete_s: float | None = None
        """The time that the memory took to load, or None if not all of it is loaded."""
        self.failure: Exception | None = None
        """The reason why the rest of the memory cannot be loaded."""

    def chunks(self, image: str) -> Iterator[bytes]:
        """Yield the content of an image in the form that CRIU receives."""
        for plan in self.plans.values() if self._connection is not None else ():
            if image == f"pagemap-{plan.process}.img":
                return iter([plan.pagemap])
            if image == plan.pages:
                return self._eager_chunks(plan)
        return self._archive.read(PREFIX + image)

    def _eager_chunks(self, plan: LazyPlan) -> Iterator[bytes]:
        starts = self._starts[plan.process]
        ends = [(bisect_right(starts, at) - 1, bisect_left(starts, at + length)) for _, length, at in plan.eager]
        numbers = sorted({number for first, end in ends for number in range(first, end)})
        contents = self._archive.read(PREFIX + plan.pages, numbers)
        for number, content in zip(numbers, contents, strict=True):
            for _, _, piece in _pieces(plan.eager, starts[number], content):
                yield bytes(piece)

    def begin(self, connection: socket.socket) -> None:
        """Start answering the page server over this connection."""
        self._connection, self._began_s, self.is_sent = connection, time.monotonic(), False
        for act in (self._send, self._hear):
            threading.Thread(target=act, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        order, plans = _order(self._archive), [plan for plan in self.plans.values() if plan.lazy]
        try:
            for process, number in iter(self._wanted.get, None):
                self._send_some(connection, process, number)
            for plan in plans:
                before = (self._block(plan, address) for process, address in order if process == plan.process)
                numbers = (number for number in before if number is not None)
                self._send_blocks(connection, plan, self._after_waits(connection, plan, numbers))
            for plan in plans:
                every = range(len(self._starts[plan.process]) - 1)
                self._send_blocks(connection, plan, self._after_waits(connection, plan, every))
            self.is_sent = True
        except (StorageError, OSError) as error:
            self.failure = error if self.complete_s is None else None
            self.end()

    def _after_waits(self, connection: socket.socket, plan: LazyPlan, numbers: Iterable[int]) -> Iterator[int]:
        """Yield these blocks. When the process waits for a block, continue with that one and those that follow it.

        A process that reads on then finds its memory loaded, and waits only once instead of for each block.
        """
        here, others = iter(range(0)), iter(numbers)
        while True:
            while not self._wanted.empty():
                if (wanted := self._wanted.get()) is None:
                    continue
                process, number = wanted
                if process == plan.process:
                    here = iter(range(number, len(self._starts[process]) - 1))
                else:
                    self._send_some(connection, process, number)
            for number in itertools.chain(here, others):
                yield number
                break
            else:
                return

    def _send_some(self, connection: socket.socket, process: int, number: int) -> None:
        end = min(number + _TOGETHER, len(self._starts[process]) - 1)
        self._send_blocks(connection, self.plans[process], range(number, end))

    def _send_blocks(self, connection: socket.socket, plan: LazyPlan, numbers: Iterable[int]) -> None:
        reading: deque[int] = deque()
        starts = self._starts[plan.process]

        def left() -> Iterator[int]:
            for number in numbers:
                is_sent = (plan.process, number) in self._sent
                if not is_sent and next(_within(plan.lazy, *starts[number : number + 2]), None) is not None:
                    self._sent.add((plan.process, number))
                    reading.append(starts[number])
                    yield number

        for content in self._archive.read(PREFIX + plan.pages, left()):
            for address, length, piece in _pieces(plan.lazy, reading.popleft(), content):
                connection.sendall(BLOCK.pack(plan.process, length, address))
                connection.sendall(piece)

    def _hear(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while len(message := receive_all(connection, BLOCK.size)) == BLOCK.size and message != COMPLETE:
                process, _, address = BLOCK.unpack(message)
                if message == BEGIN:
                    self._wanted.put(None)
                elif (number := self._block(self.plans[process], address)) is not None:
                    self._wanted.put((process, number))
                    if len(self.waits) < _LONGEST_ORDER:
                        self.waits.append((process, address))
            if message == COMPLETE:
                self.complete_s, self.failure = time.monotonic() - self._began_s, None
        self.end()

    def end(self) -> None:
        """Stop sending. If memory is missing, the page server's watchdog kills the container."""
        self._ended.set()
        self._wanted.put(None)
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def wait(self) -> bool:
        """Wait until all memory is loaded. Return False if it is not loaded, or not in time."""
        if self._connection is None:
            return True
        self._ended.wait(BLOCK_WITHIN_S)
        return self.complete_s is not None

    def _block(self, plan: LazyPlan, address: int) -> int | None:
        """Return the number of the block with the page at this address, or None if the page is not loaded later."""
        at = bisect_right(plan.lazy, address, key=lambda run: run[0]) - 1
        start, length, offset = plan.lazy[at] if at >= 0 else (0, 0, 0)
        is_there = start <= address < start + length
        return bisect_right(self._starts[plan.process], offset + address - start) - 1 if is_there else None


def _plans(archive: FolderArchive) -> dict[int, LazyPlan]:
    """Return a plan for each process, or none if nothing can be loaded later."""
    images: dict[str, dict[int, bytes]] = {"mm": {}, "pagemap": {}}
    for name in archive.parts:
        kind, _, number = name.removeprefix(PREFIX).removesuffix(".img").partition("-")
        if name.startswith(PREFIX + _USER_NAMESPACE):
            return {}  # there the kernel does not report forks to root
        if kind in images and number.isdecimal():
            images[kind][int(number)] = b"".join(archive.read(name))
    try:
        found = plans(images["mm"], images["pagemap"])
    except (NotUnderstood, ValueError, struct.error):  # CRIU gives a better reason
        return {}
    is_fit = len(found) <= _MOST_PROCESSES and all(PREFIX + plan.pages in archive.parts for plan in found.values())
    return found if is_fit and any(plan.lazy for plan in found.values()) else {}


def _order(archive: FolderArchive) -> Waits:
    """Return the pages that processes waited for after the previous restore."""
    if ORDER_PART not in archive.parts:
        return []
    with suppress(ValueError, TypeError, RecursionError):
        return [(int(one), int(two)) for one, two in json.loads(b"".join(archive.read(ORDER_PART)))]
    return []


def _block_starts(archive: FolderArchive, part: str) -> list[int]:
    """Return the offset of each block of a part, and the end of the last."""
    return [0, *itertools.accumulate(size_bytes for _, _, _, size_bytes, _ in archive.layout.blocks[part].rows())]


def _pieces(runs: Sequence[Run], start: int, block: bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the parts of these runs that are in a block at this offset, with address, length and content."""
    for address, length, offset in _within(runs, start, start + len(block)):
        yield address, length, memoryview(block)[offset - start : offset - start + length]


def _within(runs: Sequence[Run], start: int, end: int) -> Iterator[Run]:
    """Yield the parts of these runs (each an address, a length and an offset) that are between two offsets."""
    for at in range(max(0, bisect_right(runs, start, key=lambda run: run[2]) - 1), len(runs)):
        address, length, offset = runs[at]
        if offset >= end:
            break
        first, last = max(start, offset), min(end, offset + length)
        if first < last:
            yield address + first - offset, last - first, first
