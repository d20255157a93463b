"""A bound on how many callers are answered at once, on how many wait, and on how many of them come from one address."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, HTTPException, Request

STRANGERS_AT_ONCE = 4
STRANGERS_WAIT = 256
"""The most look-ups of unknown tokens that may wait or be under way."""
STRANGERS_PER_HOST = 32
"""The most such look-ups from one address, so that one address cannot keep all others out."""

STORE_AT_ONCE = 2
STORERS_WAIT = 64
"""The most callers who store or remove images and inputs, or wait for that."""

Found = TypeVar("Found")


class CallerPlaces:
    """A few places, and the callers who have one or wait for one. Only the event loop's thread touches it."""

    def __init__(self, *, at_once: int, at_most: int, per_host: int | None = None, refusal: str) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._at_most = at_most
        self._per_host = per_host
        self._refusal = refusal
        self._there: Counter[str] = Counter()

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """Wait for a place, and keep it. Raises 503 if too many wait."""
        with self._counted(""):
            async with self._limiter:
                yield

    async def run(self, ask: Callable[[], Found], *, host: str) -> Found:
        """Run `ask` in a thread of these places alone, and return its answer. Raises 503 if too many wait."""
        with self._counted(host):
            return await run_sync(ask, limiter=self._limiter)

    @contextmanager
    def _counted(self, host: str) -> Generator[None]:
        is_full_for_host = self._per_host is not None and self._there[host] >= self._per_host
        if is_full_for_host or self._there.total() >= self._at_most:
            raise HTTPException(503, f"{self._refusal}: try again", {"Retry-After": "2"})
        self._there[host] += 1
        try:
            yield
        finally:
            self._there[host] -= 1
            if not self._there[host]:
                del self._there[host]


def strangers() -> CallerPlaces:
    """Return the few threads for callers who are not known yet."""
    return CallerPlaces(
        at_once=STRANGERS_AT_ONCE,
        at_most=STRANGERS_WAIT,
        per_host=STRANGERS_PER_HOST,
        refusal="too many callers that are not known yet",
    )


def storers() -> CallerPlaces:
    """Return the places of callers who store or remove images and inputs, which takes minutes, one after the other."""
    return CallerPlaces(
        at_once=STORE_AT_ONCE, at_most=STORERS_WAIT, refusal="too many images and inputs are being stored"
    )


async def _storing(request: Request) -> AsyncGenerator[None]:
    places: CallerPlaces = request.app.state.storers
    async with places.one():
        yield


IN_TURN = Depends(_storing)
"""A route with this waits for its turn to store without a thread: agents find one however many wait."""
