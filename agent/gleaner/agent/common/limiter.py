"""A limit on how many of an agent's jobs do something at once, for example save."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Limiter:
    """One lane in use. `at_once` is how many were in use at most while this one was, this one included."""

    at_once: int = 1
    waits: bool = False
    """True while the lane's user lets the others end first."""


class Limiters:
    """A limited number of lanes; a job that finds none free waits. For one event loop, no thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = asyncio.Semaphore(number)
        self._used: list[Limiter] = []
        self._left = asyncio.Event()
        """Set when a lane has become free since this was last cleared."""

    @property
    def busy(self) -> int:
        """The number of lanes in use, without those whose user waits."""
        return sum(not lane.waits for lane in self._used)

    @asynccontextmanager
    async def one(self, *, waits: bool = False) -> AsyncGenerator[Limiter]:
        """Take a lane for the time of the context. `waits`: its user does nothing before the others have ended."""
        async with self._free:
            mine = Limiter(waits=waits)
            self._used.append(mine)
            self._count()
            try:
                yield mine
            finally:
                self._used = [lane for lane in self._used if lane is not mine]
                self._left.set()

    async def let_others_end(self, mine: Limiter, *, unless: Callable[[], bool]) -> None:
        """Wait in a lane as long as others are in use, since one more would only slow them down.

        `unless` is called now, and whenever another lane has become free. Of several that wait, one goes first.
        """
        mine.waits = True
        while any(not lane.waits for lane in self._used if lane is not mine) and not unless():
            self._left.clear()
            await self._left.wait()
        mine.waits = False
        self._count()

    def look_again(self) -> None:
        """Have those that wait call `unless` once more."""
        self._left.set()

    def _count(self) -> None:
        """Update `at_once` of each lane in use."""
        for lane in self._used:
            if not lane.waits:
                lane.at_once = max(lane.at_once, self.busy)


def default_saves_at_once(cores: int) -> int:
    """Return how many saves at once are together as fast as any larger number; more would only be slower each.

    A streamed save keeps about two cores busy: one hashes and compresses while CRIU and the engine copy. On two
    cores, four saves of 256 MiB reached the disk in the same time (1.0 to 2.1 s, without order) whether one, two,
    three or four went on at once. Fewer than four leave slow storage idle while they pause, copy and sync. One more
    than the cores can feed fills such gaps on larger nodes. Past eight it is the storage that bounds a node.

    >>> [default_saves_at_once(cores) for cores in (1, 2, 10, 64)]
    [4, 4, 6, 8]
    """
    return min(max(cores // 2 + 1, 4), 8)
