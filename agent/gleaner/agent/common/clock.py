"""The one source of time. Whoever reads it, or waits for it, has a clock passed in; a test passes its own.

Time-outs of `asyncio` follow the event loop's time, and waits for a `threading.Event` the system's.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol


class Clock(Protocol):
    """Time, and waiting for it. May be called from any thread."""

    def now_s(self) -> float:
        """Return the time, seconds since the epoch: for instants that others know, such as the agent's end."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some instant: for durations, which a wall clock that is set must not change."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait so long on the event loop."""
        ...

    def pause(self, duration_s: float) -> None:
        """Wait so long. Blocks."""
        ...


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The node's clocks. Its time never goes slower than the time since the node's start does.

    A node's wall clock may be set back while an agent lives, and the agent would stay past its end. It may be set
    forward, and the shared end be nearer than was thought. The later of the two counts in both cases, so an agent ends
    too early rather than too late.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _since_boot_s) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_s = wall() - steady()

    def now_s(self) -> float:
        return max(self._wall(), self._steady() + self._ahead_s)

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    def pause(self, duration_s: float) -> None:
        time.sleep(duration_s)


if TYPE_CHECKING:
    _: type[Clock] = SystemClock
