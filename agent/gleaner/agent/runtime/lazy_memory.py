"""The memory of a restored container that comes while it runs: the agent's side of root's page server.

The agent writes CRIU's page maps so that CRIU leaves this memory out (`privileged.shim.lazy_maps`). Then it sends
whole verified blocks: those that the processes wait for first, then those that were waited for after the last restore,
in that order, then all others.
"""

import itertools
import json
import socket
import struct
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""The blocks that were waited for after a restore: the process's number, and the address."""
_LONGEST_ORDER = 4096
_MOST_PROCESSES = 64
"""The most processes whose memory comes later: each one has a thread, which reads some blocks ahead."""
_USER_NAMESPACE = "userns-"

Waits = list[tuple[int, int]]
Run = tuple[int, int, int]


class LazyMemory:
    """The memory of one restore that comes later."""

    def __init__(self, archive: FolderArchive) -> None:
        self._archive = archive
        self.plans = _plans(archive)
        """The plan for each process by its number; none if nothing can come later."""
        self._by_image = {f"pagemap-{plan.process}.img": plan for plan in self.plans.values()}
        self._by_image |= {plan.pages: plan for plan in self.plans.values()}
        self._ended = threading.Event()
        self._connection: socket.socket | None = None
        self._began_s = 0.0
        self.waits: Waits = []
        """The pages that processes have waited for, in order."""
        self.complete_s: float | None = None
        """For how long the memory has come; None if not all is there."""
        self.failure: Exception | None = None
        """Why the rest of the memory does not come."""

    def chunks(self, image: str) -> Iterator[bytes]:
        """Yield the content of an image as CRIU is to get it."""
        plan = self._by_image.get(image) if self._connection is not None else None
        if plan is None:
            return self._archive.read(PREFIX + image)
        return iter([plan.pagemap]) if image.startswith("pagemap") else self._eager_chunks(plan)

    def _eager_chunks(self, plan: LazyPlan) -> Iterator[bytes]:
        starts = _block_starts(self._archive, PREFIX + plan.pages)
        ends = [(bisect_right(starts, at) - 1, bisect_left(starts, at + length)) for _, length, at in plan.eager]
        numbers = sorted({number for first, end in ends for number in range(first, end)})
        contents = self._archive.read(PREFIX + plan.pages, numbers)
        for number, content in zip(numbers, contents, strict=True):
            for _, length, offset in _pieces(plan.eager, starts[number], starts[number] + len(content)):
                yield content[offset - starts[number] : offset - starts[number] + length]

    def begin(self, connection: socket.socket) -> None:
        """Begin to answer the page server at this connection."""
        self._connection, self._began_s = connection, time.monotonic()
        feeds = {plan.process: _Feed(self._archive, plan) for plan in self.plans.values() if plan.lazy}
        lock = threading.Lock()
        for feed in feeds.values():
            threading.Thread(target=self._send, args=(connection, feed, lock), daemon=True).start()
        threading.Thread(target=self._hear, args=(connection, feeds), daemon=True).start()

    def _send(self, connection: socket.socket, feed: "_Feed", lock: threading.Lock) -> None:
        try:
            for head, content in feed.messages():
                with lock:
                    connection.sendall(head)
                    connection.sendall(content)
        except (StorageError, OSError) as error:
            self.failure = self.failure or error
            self.end()

    def _hear(self, connection: socket.socket, feeds: Mapping[int, "_Feed"]) -> None:
        with suppress(OSError):
            while len(message := receive_all(connection, BLOCK.size)) == BLOCK.size and message != COMPLETE:
                process, _, address = BLOCK.unpack(message)
                if message != BEGIN and len(self.waits) < _LONGEST_ORDER:
                    self.waits.append((process, address))
                for feed in feeds.values() if message == BEGIN else filter(None, [feeds.get(process)]):
                    feed.wanted.put(None if message == BEGIN else feed.block(address))
            if message == COMPLETE:
                self.complete_s, self.failure = time.monotonic() - self._began_s, None
        for feed in feeds.values():
            feed.wanted.put(None)
        self.end()

    def end(self) -> None:
        """Send no more. If memory is missing, the page server's watchdog kills the container."""
        self._ended.set()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def wait(self) -> bool:
        """Wait until all memory is there. Return False if it does not come, or does not come in time."""
        if self._connection is None:
            return True
        self._ended.wait(BLOCK_WITHIN_S)
        return self.complete_s is not None


class _Feed:
    """The memory that one process still needs."""

    def __init__(self, archive: FolderArchive, plan: LazyPlan) -> None:
        self._archive, self._plan, self._part = archive, plan, PREFIX + plan.pages
        self._starts = _block_starts(archive, self._part)
        self._is_open = bytearray(b"\x01" * (len(self._starts) - 1))
        before = [self.block(address) for process, address in _order(archive) if process == plan.process]
        self._rest = itertools.chain((one for one in before if one is not None), range(len(self._is_open)))
        self.wanted: SimpleQueue[int | None] = SimpleQueue()
        """The blocks to send next. After None all can be sent."""

    def messages(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the head and the content of all that is to be sent, each once."""
        for number in iter(self.wanted.get, None):
            yield from self._blocks([number])
        yield from self._blocks(self._all())

    def _all(self) -> Iterator[int]:
        for number in self._rest:
            while not self.wanted.empty():
                if (wanted := self.wanted.get()) is not None:
                    yield wanted
            yield number

    def _blocks(self, numbers: Iterable[int]) -> Iterator[tuple[bytes, memoryview]]:
        reading: deque[int] = deque()

        def left() -> Iterator[int]:
            for number in numbers:
                start, end = self._starts[number : number + 2]
                if self._is_open[number] and _pieces(self._plan.lazy, start, end):
                    self._is_open[number] = False
                    reading.append(start)
                    yield number

        for content in self._archive.read(self._part, left()):
            start = reading.popleft()
            for address, length, offset in _pieces(self._plan.lazy, start, start + len(content)):
                piece = memoryview(content)[offset - start : offset - start + length]
                yield BLOCK.pack(self._plan.process, length, address), piece

    def block(self, address: int) -> int | None:
        """Return the number of the block with the page at this address; None if the page does not come later."""
        at = bisect_right(self._plan.lazy, address, key=lambda run: run[0]) - 1
        start, length, offset = self._plan.lazy[at] if at >= 0 else (0, 0, 0)
        return bisect_right(self._starts, offset + address - start) - 1 if start <= address < start + length else None


def _plans(archive: FolderArchive) -> dict[int, LazyPlan]:
    """Return a plan for each process; none if nothing can come later."""
    images: dict[str, dict[int, bytes]] = {"mm": {}, "pagemap": {}}
    for name in archive.parts:
        kind, _, number = name.removeprefix(PREFIX).removesuffix(".img").partition("-")
        if name.startswith(PREFIX + _USER_NAMESPACE):
            return {}  # the kernel does not tell root of forks there
        if kind in images and number.isdecimal():
            images[kind][int(number)] = b"".join(archive.read(name))
    try:
        found = plans(images["mm"], images["pagemap"])
    except (NotUnderstood, ValueError, struct.error):  # CRIU says better what is wrong with it
        return {}
    lazy = [PREFIX + plan.pages in archive.parts for plan in found.values() if plan.lazy]
    return found if all(lazy) and 0 < len(lazy) <= _MOST_PROCESSES else {}


def _order(archive: FolderArchive) -> Waits:
    """Return what the processes have waited for after the restore before."""
    if ORDER_PART not in archive.parts:
        return []
    with suppress(ValueError, TypeError, RecursionError):
        return [(int(one), int(two)) for one, two in json.loads(b"".join(archive.read(ORDER_PART)))]
    return []


def _block_starts(archive: FolderArchive, part: str) -> list[int]:
    """Return the offset of each block of a part, and its end."""
    return [0, *itertools.accumulate(block.size_bytes for block in archive.layout.blocks[part])]


def _pieces(runs: Sequence[Run], start: int, end: int) -> list[Run]:
    """Return what of these runs (each an address, a length and an offset) lies between two offsets."""
    pieces: list[Run] = []
    for at in range(max(0, bisect_right(runs, start, key=lambda run: run[2]) - 1), len(runs)):
        address, length, offset = runs[at]
        if offset >= end:
            break
        first, last = max(start, offset), min(end, offset + length)
        if first < last:
            pieces.append((address + first - offset, last - first, first))
    return pieces
