"""The owners of tokens, and the unknown tokens, both cached for a short time."""

import hashlib
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.tokens import Identity, identify

REMEMBERED_S = 5.0
"""The time for which a known token is not looked up again. A revoked token can still work for this time."""
UNKNOWN_S = 2.0
"""The time for which an unknown token is not looked up again."""
REMEMBERED_AT_MOST = 10_000


class TokenLookup:
    """The cache of tokens' owners. Only the event loop's thread uses it.

    Its keys are hashes, so it contains no secret.
    """

    def __init__(self, state: ControlState) -> None:
        self._state = state
        clock = lambda: state.clock()  # noqa: E731, PLW0108  # tests put in their own clock later
        self._found = SmallCache[bytes, Identity | None](clock, at_most=REMEMBERED_AT_MOST)

    async def identity(self, secret: str) -> Identity | None:
        """Return the owner of a token, even of an expired one, or None if the token is unknown or was revoked."""
        key = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        with suppress(KeyError):
            return self._found.find(key)
        identity = await run_in_threadpool(self._look_up, secret)
        self._found.put(key, identity, fresh_s=REMEMBERED_S if identity else UNKNOWN_S)
        return identity

    def _look_up(self, secret: str) -> Identity | None:
        with snapshot(self._state.engine) as db:
            return identify(db, secret)
