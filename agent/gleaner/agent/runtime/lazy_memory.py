"""Load the memory of a restored container while it runs, as the agent's counterpart of the page server, which runs as
root.

The agent writes CRIU's page maps so that CRIU leaves this memory out (`privileged.shim.lazy_maps`). Then it sends whole
verified blocks. First come those that the program waits for, then those that were waited for after the previous
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
from gleaner.agent.privileged.shim.lazy_maps import LazyPlan, Run, find_plan
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK, BLOCK_WITHIN_S, COMPLETE
from gleaner.agent.privileged.shim.vdso import PAGEMAP
from gleaner.agent.runtime.criu_streams import PREFIX
from gleaner.agent.system.ipc import receive_all

ORDER_PART = "order.json"
"""The pages that processes waited for after a restore, each as the process's number and the address."""
_LONGEST_ORDER = 4096
_MOST_PROCESSES = 2
"""If a container has more processes than its init (with the lower number) and one program, no memory is loaded later.

Memory that is still missing at a fork would become the child's own copy, although it would otherwise be shared.
"""
_USER_NAMESPACE = "userns-"
_TOGETHER = 4
"""The number of blocks to send when a process waits for the first of them, since it might read on."""


class LazyMemory:
    """The part of the program's memory that is loaded only after the restore."""

    def __init__(self, archive: FolderArchive, plan: LazyPlan, inits: Sequence[LazyPlan]) -> None:
        self._archive, self._plan = archive, plan
        self._pagemaps = {f"pagemap-{one.process}.img": one.pagemap for one in (plan, *inits)}
        rows = archive.layout.blocks[PREFIX + plan.pages].rows()
        self._starts = [0, *itertools.accumulate(size_bytes for _, _, _, size_bytes, _ in rows)]
        """The offset of each block of the program's pages, and the end of the last."""
        self._sent: set[int] = set()
        self._wanted: SimpleQueue[range | None] = SimpleQueue()
        """The blocks to send next. After None, all blocks can be sent."""
        self._ended = threading.Event()
        self._connection: socket.socket | None = None
        self._began_s = 0.0
        self.waits: list[tuple[int, int]] = []
        """The pages that the program has waited for, in order, each as the program's number and the address."""
        self.complete_s: float | None = None
        """The time that the memory took to load, or None if not all of it is loaded."""
        self.failure: Exception | None = None
        """The reason why some memory is not sent, or None if all of it is."""

    def chunks(self, image: str) -> Iterator[bytes]:
        """Yield the content of an image in the form that CRIU receives."""
        if self._connection is not None and image in self._pagemaps:
            return iter([self._pagemaps[image]])
        if self._connection is not None and image == self._plan.pages:
            starts, eager = self._starts, self._plan.eager
            blocks = (range(bisect_right(starts, at) - 1, bisect_left(starts, at + length)) for _, length, at in eager)
            return (bytes(piece) for _, piece in self._read(eager, itertools.chain.from_iterable(blocks), set()))
        return self._archive.read(PREFIX + image)

    def begin(self, connection: socket.socket) -> None:
        """Start answering the page server over this connection."""
        self._connection, self._began_s = connection, time.monotonic()
        self.failure = Exception("the cause is unknown")
        for act in (self._send, self._hear):
            threading.Thread(target=act, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        try:
            order = [self._following(address)[:1] for address in _order(self._archive, self._plan.process)]
            for following in iter(self._wanted.get, None):
                self._send_blocks(connection, following[:_TOGETHER])
            numbers = itertools.chain(*order, range(len(self._starts) - 1))
            self._send_blocks(connection, self._after_waits(numbers))
            self.failure = None
        except (StorageError, OSError) as error:
            self.failure = error if self.complete_s is None else None
            self.end()

    def _after_waits(self, others: Iterator[int]) -> Iterator[int]:
        """Yield these blocks. When the program waits for a block, continue with that one and those that follow it.

        A process that reads on then finds its memory loaded, and waits only once instead of for each block.
        """
        here: Iterator[int] = iter(())
        while (number := next(itertools.chain(here, others), None)) is not None:
            yield number
            while not self._wanted.empty():
                here = iter(self._wanted.get() or ())

    def _send_blocks(self, connection: socket.socket, numbers: Iterable[int]) -> None:
        for address, piece in self._read(self._plan.lazy, numbers, self._sent):
            connection.sendall(BLOCK.pack(self._plan.process, len(piece), address))
            connection.sendall(piece)

    def _read(self, runs: Sequence[Run], numbers: Iterable[int], done: set[int]) -> Iterator[tuple[int, memoryview]]:
        """Yield the parts of these runs that are in these blocks, each with its address. Read no block twice."""
        reading: deque[tuple[int, list[Run]]] = deque()

        def needed() -> Iterator[int]:
            for number in numbers:
                start, end = self._starts[number : number + 2]
                if number not in done and (pieces := list(_within(runs, start, end))):
                    done.add(number)
                    reading.append((start, pieces))
                    yield number

        for content in self._archive.read(PREFIX + self._plan.pages, needed()):
            start, pieces = reading.popleft()
            for address, length, offset in pieces:
                yield address, memoryview(content)[offset - start : offset - start + length]

    def _hear(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while len(message := receive_all(connection, BLOCK.size)) == BLOCK.size and message != COMPLETE:
                process, _, address = BLOCK.unpack(message)
                if message == BEGIN:
                    self._wanted.put(None)
                elif following := self._following(address):
                    self._wanted.put(following)
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
        """Wait until all memory is loaded. Return False if that fails or takes too long."""
        if self._connection is None:
            return True
        self._ended.wait(BLOCK_WITHIN_S)
        return self.complete_s is not None

    def _following(self, address: int) -> range:
        """Return the block with the page at this address and all that follow it, or none if it is not loaded later."""
        start, length, offset = self._plan.lazy[bisect_right(self._plan.lazy, address, key=lambda run: run[0]) - 1]
        is_there = start <= address < start + length
        first = bisect_right(self._starts, offset + address - start) - 1 if is_there else len(self._starts)
        return range(first, len(self._starts) - 1)


def find_lazy_memory(archive: FolderArchive) -> LazyMemory | None:
    """Return the memory of a checkpoint that can be loaded later, or None if there is none."""
    names = {name.removeprefix(PREFIX) for name in archive.parts if name.startswith(PREFIX)}
    processes = sorted(int(match.group(1)) for match in map(PAGEMAP.match, names) if match)
    if not 0 < len(processes) <= _MOST_PROCESSES or any(name.startswith(_USER_NAMESPACE) for name in names):
        return None  # in a namespace of users, the kernel does not report forks to root

    def image(kind: str, process: int) -> bytes:
        name = f"{kind}-{process}.img"
        return b"".join(archive.read(PREFIX + name)) if name in names else b""

    *others, program = processes
    try:
        of_others = b"".join(image("mm", process) for process in others)
        plan = find_plan(program, image("pagemap", program), image("mm", program), of_others)
        inits = [find_plan(process, image("pagemap", process), b"", b"") for process in others]
    except (NotUnderstood, ValueError, struct.error):  # CRIU gives a better reason
        return None
    return LazyMemory(archive, plan, inits) if plan.lazy and plan.pages in names else None


def _order(archive: FolderArchive, process: int) -> list[int]:
    """Return the addresses of the pages that a process waited for after the previous restore."""
    with suppress(ValueError, TypeError, RecursionError):
        if ORDER_PART in archive.parts:
            order = json.loads(b"".join(archive.read(ORDER_PART)))
            return [int(address) for number, address in order if number == process]
    return []


def _within(runs: Sequence[Run], start: int, end: int) -> Iterator[Run]:
    """Yield the parts of these runs that are between two offsets."""
    for at in range(max(0, bisect_right(runs, start, key=lambda run: run[2]) - 1), len(runs)):
        address, length, offset = runs[at]
        if offset >= end:
            break
        first, last = max(start, offset), min(end, offset + length)
        if first < last:
            yield address + first - offset, last - first, first
