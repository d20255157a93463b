"""A clock for tests: its time goes on only when everybody who could do something waits for it."""

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class FakeClock:
    """Time that a test moves. `loops` is how many loops sleep when nothing is left to do at one instant."""

    def __init__(self, now_s: float = 1_790_000_000.0, *, loops: int = 1) -> None:
        self.began_s = self._now_s = now_s
        self.loops = loops
        self._order = itertools.count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []

    @property
    def passed_s(self) -> float:
        return self._now_s - self.began_s

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self.passed_s

    async def sleep(self, duration_s: float) -> None:
        awake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self._now_s + duration_s, next(self._order), awake))
        await awake

    def pause(self, duration_s: float) -> None:
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        self._now_s += duration_s

    async def run(self, life: Coroutine[Any, Any, Result]) -> Result:
        """Let it live, and time go on for it in no time."""
        task = asyncio.create_task(life)
        while not task.done():
            await asyncio.sleep(0.0005)
            self._sleeping = [one for one in self._sleeping if not one[2].done()]
            if len(self._sleeping) >= self.loops:
                heapq.heapify(self._sleeping)
                until_s, _, awake = heapq.heappop(self._sleeping)
                self._now_s = max(self._now_s, until_s)
                awake.set_result(None)
        return await task
