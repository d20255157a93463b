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
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.privileged.shim.criu_messages import NotUnderstood
from gleaner.agent.privileged.shim.lazy_maps import LazyPlan, plans
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK, BLOCK_WITHIN_S, COMPLETE
from gleaner.agent.runtime.criu_streams import PREFIX
from gleaner.agent.system.ipc import receive_all

ORDER_PART = "order.json"
"""The blocks that were waited for after a restore: the process's number, and the address."""
_LONGEST_ORDER = 4096
_USER_NAMESPACE = "userns-"

Waits = list[tuple[int, int]]
Run = tuple[int, int, int]


class LazyMemory:
    """The memory of one restore that comes later."""

    def __init__(self, archive: FolderArchive) -> None:
        self._archive = archive
        self._plans = _plans(archive)
        self._by_image = {f"pagemap-{plan.process}.img": plan for plan in self._plans.values()}
        self._by_image |= {plan.pages: plan for plan in self._plans.values()}
        self._ended = threading.Event()
        self._connection: socket.socket | None = None
        self._feeds: dict[int, _Feed] = {}
        self._clock = SystemClock()
        self._began_s = 0.0
        self.waits: Waits = []
        """What the processes have waited for, in order."""
        self.complete_s: float | None = None
        """For how long the memory has come; None if not all is there."""
        self.failure: Exception | None = None
        """Why the rest of the memory does not come."""

    @property
    def is_useful(self) -> bool:
        """True if there is any memory that can come later."""
        return any(plan.lazy for plan in self._plans.values())

    def chunks(self, image: str) -> Iterator[bytes]:
        """Yield the content of an image as CRIU is to get it."""
        plan = self._by_image.get(image) if self._connection is not None else None
        if plan is None:
            return self._archive.read(PREFIX + image)
        return iter([plan.pagemap]) if image.startswith("pagemap") else self._eager_chunks(plan)

    def _eager_chunks(self, plan: LazyPlan) -> Iterator[bytes]:
        starts = _block_starts(self._archive, PREFIX + plan.pages)
        pieces = [_pieces(plan.eager, one, two) for one, two in itertools.pairwise(starts)]
        numbers = [number for number, each in enumerate(pieces) if each]
        contents = self._archive.read(PREFIX + plan.pages, numbers)
        for number, content in zip(numbers, contents, strict=True):
            for _, length, offset in pieces[number]:
                yield content[offset - starts[number] : offset - starts[number] + length]

    def begin(self, connection: socket.socket) -> None:
        """Begin to answer the page server at this connection."""
        self._connection, self._began_s = connection, self._clock.monotonic_s()
        connection.settimeout(None)
        lock = threading.Lock()
        for plan in self._plans.values():
            if plan.lazy:
                self._feeds[plan.process] = _Feed(self._archive, plan, connection, lock)
        for feed in self._feeds.values():
            threading.Thread(target=self._run, args=(feed,), name=f"memory {feed.process}", daemon=True).start()
        threading.Thread(target=self._hear, args=(connection,), name="page server", daemon=True).start()

    def _run(self, feed: "_Feed") -> None:
        try:
            feed.run()
        except (StorageError, OSError) as error:
            self._fail(error)

    def _hear(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while len(message := receive_all(connection, BLOCK.size)) == BLOCK.size:
                if message == COMPLETE:
                    self.complete_s = self._clock.monotonic_s() - self._began_s
                    break
                if message == BEGIN:
                    for feed in self._feeds.values():
                        feed.begin()
                    continue
                process, _, address = BLOCK.unpack(message)
                if len(self.waits) < _LONGEST_ORDER:
                    self.waits.append((process, address))
                if (feed := self._feeds.get(process)) is not None:
                    feed.want(address)
        self.end()

    def _fail(self, error: Exception) -> None:
        if self.complete_s is None and self.failure is None and not self._ended.is_set():
            self.failure = error
        self.end()

    def end(self) -> None:
        """Send no more. If memory is missing, the page server's watchdog kills the container."""
        self._ended.set()
        for feed in self._feeds.values():
            feed.end()
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
    """What one process still needs. A thread runs it, others say what to send first."""

    def __init__(self, archive: FolderArchive, plan: LazyPlan, connection: socket.socket, lock: threading.Lock) -> None:
        self.process = plan.process
        self._part, self._lazy = PREFIX + plan.pages, plan.lazy
        self._archive, self._connection, self._lock = archive, connection, lock
        self._starts = _block_starts(archive, self._part)
        self._is_open = [True] * (len(self._starts) - 1)
        self._wanted: deque[int] = deque()
        before = [self._block(address) for process, address in _order(archive) if process == plan.process]
        self._rest = itertools.chain((one for one in before if one is not None), range(len(self._is_open)))
        self._changed = threading.Condition()
        self._is_begun = self._is_ended = False

    def begin(self) -> None:
        """Send everything from now on."""
        with self._changed:
            self._is_begun = True
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify()

    def want(self, address: int) -> None:
        """Send the block with this address next."""
        with self._changed:
            if (number := self._block(address)) is not None:
                self._wanted.append(number)
                self._changed.notify()

    def run(self) -> None:
        """Send all blocks, each once. Before `begin`, send only what is wanted."""
        while (early := self._early()) is not None:
            for number, content in zip(early, self._archive.read(self._part, early), strict=True):
                self._send(number, content)
        taken: deque[int] = deque()
        for content in self._archive.read(self._part, self._numbers(taken)):
            self._send(taken.popleft(), content)

    def _early(self) -> list[int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._is_begun or self._is_ended)
            if self._is_begun or self._is_ended:
                return None
            return self._open([self._wanted.popleft()])

    def _numbers(self, taken: deque[int]) -> Iterator[int]:
        while not self._is_ended:
            number = self._wanted.popleft() if self._wanted else next(self._rest, None)
            if number is None:
                return
            if self._open([number]):
                taken.append(number)
                yield number

    def _open(self, numbers: list[int]) -> list[int]:
        """Return those of these blocks that were not taken before, and take them."""
        found = [number for number in numbers if self._is_open[number]]
        for number in found:
            self._is_open[number] = False
        return [number for number in found if _pieces(self._lazy, *self._starts[number : number + 2])]

    def _send(self, number: int, content: bytes) -> None:
        start = self._starts[number]
        for address, length, offset in _pieces(self._lazy, start, start + len(content)):
            with self._lock:
                self._connection.sendall(BLOCK.pack(self.process, length, address))
                self._connection.sendall(memoryview(content)[offset - start : offset - start + length])

    def _block(self, address: int) -> int | None:
        at = bisect_right(self._lazy, address, key=lambda run: run[0]) - 1
        start, length, offset = self._lazy[at] if at >= 0 else (0, 0, 0)
        if not start <= address < start + length:
            return None
        return bisect_right(self._starts, offset + address - start) - 1


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
        return plans(images["mm"], images["pagemap"])
    except (NotUnderstood, ValueError, struct.error):  # CRIU says better what is wrong with it
        return {}


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
