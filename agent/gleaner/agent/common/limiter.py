"""Limit how many of an agent's jobs do something at the same time, such as saving."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Slot:
    """One slot in use.

    `at_once` is the largest number of slots that have been in use at the same time since this one was taken, including
    this one.
    """

    at_once: int = 1
    waits: bool = False
    """True while the slot's user lets the others finish first."""


class Limiter:
    """A limited number of slots. A job that finds no free slot waits. A limiter serves one event loop and is not safe
    for threads."""

    def __init__(self, most: int) -> None:
        self.number = most
        self._free = asyncio.Semaphore(most)
        self._slots: list[Slot] = []
        self._change = asyncio.Event()
        """Set when a slot has been freed since this was last cleared."""

    @property
    def busy(self) -> int:
        """The number of slots in use, not counting those whose users wait for the others."""
        return sum(not slot.waits for slot in self._slots)

    @asynccontextmanager
    async def slot(self, *, waits: bool = False) -> AsyncGenerator[Slot]:
        """Take a slot for the duration of the context.

        Pass `waits` if the slot's user does nothing before the others have finished.
        """
        async with self._free:
            mine = Slot(waits=waits)
            self._slots.append(mine)
            self._update_at_once()
            try:
                yield mine
            finally:
                self._slots = [slot for slot in self._slots if slot is not mine]
                self._change.set()

    async def wait_for_others(self, mine: Slot, *, unless: Callable[[], bool]) -> None:
        """Wait in a slot while other slots are in use, since one more job would only slow the others down.

        `unless` is called now and whenever another slot has been freed. If it returns True, the wait ends early. If
        several jobs wait, one of them goes first.
        """
        mine.waits = True
        while any(not slot.waits for slot in self._slots if slot is not mine) and not unless():
            self._change.clear()
            await self._change.wait()
        mine.waits = False
        self._update_at_once()

    def recheck(self) -> None:
        """Make all jobs that wait call `unless` again."""
        self._change.set()

    def _update_at_once(self) -> None:
        """Update `at_once` of each slot in use."""
        for slot in self._slots:
            if not slot.waits:
                slot.at_once = max(slot.at_once, self.busy)


def default_saves_at_once(cores: int) -> int:
    """Return how many saves to run at the same time. More saves would not be faster together, and each would be slower.

    A streamed save keeps about two cores busy, because one core hashes and compresses while CRIU and the engine copy
    memory on the other. On two cores, four saves of 256 MiB reached the disk in about the same time (1.0 to 2.1 s, in
    no clear order), whether one, two, three or four ran at the same time. Fewer than four saves leave slow storage idle
    whenever they pause a job, copy its memory or sync. One more save than the cores can feed fills such gaps on larger
    nodes. With more than eight, a node's storage is the limit.

    >>> [default_saves_at_once(cores) for cores in (1, 2, 10, 64)]
    [4, 4, 6, 8]
    """
    return min(max(cores // 2 + 1, 4), 8)
