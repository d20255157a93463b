"""The time by which an agent ends: whichever of two clocks is further."""

import time
from collections.abc import Callable


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Seconds since the epoch that never go slower than the time since the node's start does.

    A node's wall clock may be set back while an agent lives, and the agent would stay past its end. It may be set
    forward, and the shared end be nearer than was thought. The later of the two counts in both cases, so an agent ends
    too early rather than too late.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _since_boot_s) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_s = wall() - steady()

    def now_s(self) -> float:
        """Return the time, seconds since the epoch."""
        return max(self._wall(), self._steady() + self._ahead_s)
