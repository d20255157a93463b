"""The owners of tokens, cached for a moment, and the tokens that nobody has."""

import hashlib
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.tokens import Identity, identify

REMEMBERED_S = 5.0
"""The time for which a known token is not looked up again. A revoked token may work for so long."""
UNKNOWN_S = 2.0
"""The time for which a token that nobody has is not looked up again."""
REMEMBERED_AT_MOST = 10_000


class TokenLookup:
    """The cache of tokens' owners. Only the event loop's thread touches it. Keys are hashes: no secret is kept."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        clock = lambda: state.clock()  # noqa: E731, PLW0108  # tests put in their own clock later
        self._found = SmallCache[bytes, Identity | None](clock, at_most=REMEMBERED_AT_MOST)

    async def identity(self, secret: str) -> Identity | None:
        """Return the owner of a token, even of an expired one; None if the token is nobody's, or was revoked."""
        key = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        with suppress(KeyError):
            return self._found.find(key)
        identity = await run_in_threadpool(self._look_up, secret)
        self._found.put(key, identity, fresh_s=REMEMBERED_S if identity else UNKNOWN_S)
        return identity

    def _look_up(self, secret: str) -> Identity | None:
        with snapshot(self._state.engine) as db:
            return identify(db, secret)
