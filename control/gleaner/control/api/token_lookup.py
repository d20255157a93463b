"""The owners of tokens, cached for a moment. Look-ups of unknown tokens never delay those of known ones.

A token that was good once is looked up again by the threads that answer requests. A token that was never seen waits for
one of a few threads of its own. If too many wait already, its caller is told to come back (503). So a caller who sends
wrong tokens can keep strangers from being heard, but nobody whom control knows: no registered agent misses a heartbeat.
"""

import hashlib
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from gleaner.control.api.caller_places import CallerPlaces
from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.tokens import Identity, identify

REMEMBERED_S = 5.0
"""The time for which a token that was found is not looked up again. A revoked token may work for so long."""
REMEMBERED_AT_MOST = 10_000
REFUSED_S = 2.0
"""The time for which a token that was not found is not looked up again."""
REFUSED_AT_MOST = 1000

Found = TypeVar("Found")


class TokenLookup:
    """The cache of tokens' owners. Only the event loop's thread touches it. Keys are hashes: no secret is kept."""

    def __init__(self, state: ControlState, strangers: CallerPlaces) -> None:
        self._state = state
        self._strangers = strangers
        self._known: dict[bytes, tuple[float, Identity]] = {}
        self._refused: dict[bytes, float] = {}

    async def identity(self, secret: str, *, host: str) -> Identity | None:
        """Return the owner of a token, even of an expired one; None if the token is nobody's, or was revoked."""
        key = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        now_s = self._state.clock()
        known = self._known.get(key)
        if known is not None and 0 <= now_s - known[0] < REMEMBERED_S:
            return known[1]
        refused_s = self._refused.get(key)
        if refused_s is not None and 0 <= now_s - refused_s < REFUSED_S:
            return None
        if known is not None:
            found = await run_in_threadpool(self._look_up, secret)
        else:
            found = await self._strangers.run(lambda: self._look_up(secret), host=host)
        self._known.pop(key, None)
        self._refused.pop(key, None)
        if found is None:
            _make_room(self._refused, REFUSED_AT_MOST)
            self._refused[key] = now_s
        else:
            _make_room(self._known, REMEMBERED_AT_MOST)
            self._known[key] = (now_s, found)
        return found

    def _look_up(self, secret: str) -> Identity | None:
        with snapshot(self._state.engine) as db:
            return identify(db, secret)


def _make_room(remembered: dict[bytes, Found], at_most: int) -> None:
    """Forget the oldest entries, so that one more has room."""
    while len(remembered) >= at_most:
        del remembered[next(iter(remembered))]
