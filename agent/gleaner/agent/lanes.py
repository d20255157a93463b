"""How many of an agent's jobs do something at once, for example save."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Lane:
    """One of those who do it. `at_once` is how many did it at most while this one did, this one included."""

    at_once: int = 1
    waits: bool = False
    """It has its lane, and lets the others end first."""


class Lanes:
    """A limited number of lanes; who finds none free waits. For one event loop, no thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = asyncio.Semaphore(number)
        self._used: list[Lane] = []
        self._left = asyncio.Event()
        """Somebody has left a lane since this was last cleared."""

    @property
    def busy(self) -> int:
        """How many do it now, without those who wait."""
        return sum(not lane.waits for lane in self._used)

    @asynccontextmanager
    async def one(self, *, waits: bool = False) -> AsyncGenerator[Lane]:
        """A lane for the time of the context. `waits`: it does nothing before it has let others end."""
        async with self._free:
            mine = Lane(waits=waits)
            self._used.append(mine)
            self._count()
            try:
                yield mine
            finally:
                self._used = [lane for lane in self._used if lane is not mine]
                self._left.set()

    async def let_others_end(self, mine: Lane, *, unless: Callable[[], bool]) -> None:
        """Wait in a lane as long as others do it, for one who would only slow them down.

        `unless` is asked now, and whenever one of them has ended. Of several who wait, one goes first.
        """
        mine.waits = True
        while any(not lane.waits for lane in self._used if lane is not mine) and not unless():
            self._left.clear()
            await self._left.wait()
        mine.waits = False
        self._count()

    def look_again(self) -> None:
        """Have those who wait ask once more."""
        self._left.set()

    def _count(self) -> None:
        """How many do it at once, for each of those who do."""
        for lane in self._used:
            if not lane.waits:
                lane.at_once = max(lane.at_once, self.busy)


def default_saves_at_once(cores: int) -> int:
    """So many saves at once are together as fast as any larger number; more would only all be slow.

    A streamed save keeps about two cores busy: one hashes and compresses while CRIU and the engine copy. On two
    cores, four saves of 256 MiB reached the disk in the same time (1.0 to 2.1 s, without order) whether one, two,
    three or four went on at once. Fewer than four leave slow storage idle while they pause, copy and sync. One more
    than the cores can feed fills such gaps on larger nodes. Past eight it is the storage that bounds a node.

    >>> [default_saves_at_once(cores) for cores in (1, 2, 10, 64)]
    [4, 4, 6, 8]
    """
    return min(max(cores // 2 + 1, 4), 8)
