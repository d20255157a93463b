"""Provide the only source of time, and compare the node's clock with control's.

All code that reads the time or waits takes a clock as an argument, so that a test can pass its own. Threads and their
waits also come from the clock, because a test's clock advances only when all threads wait for it. Time-outs of
`asyncio` follow the event loop's time.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVarTuple

Args = TypeVarTuple("Args")


class Clock(Protocol):
    """A source of time, and of threads that wait for it. It can be called from any thread."""

    def now_s(self) -> float:
        """Return seconds since the epoch, for instants that other programs share, such as the agent's end."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary instant, to measure durations. Changes of the wall clock have no effect."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Wait this long on the event loop."""
        ...

    def pause(self, duration_s: float) -> None:
        """Block the thread for this long."""
        ...

    def wait(self, event: threading.Event, patience_s: float) -> bool:
        """Wait for the event for at most `patience_s`, and return True if it is set. Blocks."""
        ...

    def start(self, work: Callable[[*Args], object], *args: *Args) -> None:
        """Call `work` in a new daemon thread."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock whose holder can wait for this clock."""
        ...


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The node's wall clock, unless it has been set back.

    If a node's wall clock were set back while an agent lives, the agent would stay past its end. If it were set
    forward, the shared end would be nearer than it seemed. So the time is that of the wall clock or of a clock that
    counts from the node's start, whichever is later, and an agent ends too early rather than too late.
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

    def wait(self, event: threading.Event, patience_s: float) -> bool:
        return event.wait(patience_s)

    def start(self, work: Callable[[*Args], object], *args: *Args) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()

    def lock(self) -> AbstractContextManager[object]:
        return threading.Lock()


if TYPE_CHECKING:
    _: type[Clock] = SystemClock


EXCHANGES = 10
"""Only this many of the newest answers count, so that a corrected clock is soon accepted."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer.

    Instants are seconds since the epoch, two by the node's clock and one by control's.
    """

    sent_s: float
    control_s: float
    received_s: float


def least_ahead_s(exchanges: Sequence[Exchange]) -> float:
    """Return the minimum time by which the node's clock is ahead of control's.

    A value below 0 means that the node's clock is behind, and 0 means that the clocks might agree. `exchanges` are in
    order of time. Exchanges before a change of either clock do not count.

    >>> least_ahead_s([Exchange(107.0, 105.0, 107.5), Exchange(117.0, 115.0, 125.0)])
    2.0
    >>> least_ahead_s([Exchange(100.0, 105.0, 109.0)])
    0.0
    """
    low_s, high_s = -math.inf, math.inf
    for each in reversed(exchanges):
        lower_s = max(low_s, each.sent_s - each.control_s)
        upper_s = min(high_s, each.received_s - each.control_s)
        if lower_s > upper_s:
            break
        low_s, high_s = lower_s, upper_s
    return min(max(0.0, low_s), high_s)
