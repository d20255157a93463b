"""The owners of tokens, cached for a moment, and the tokens that nobody has."""

import hashlib

from starlette.concurrency import run_in_threadpool

from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import snapshot
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
        self._found: dict[bytes, tuple[float, Identity | None]] = {}

    async def identity(self, secret: str) -> Identity | None:
        """Return the owner of a token, even of an expired one; None if the token is nobody's, or was revoked."""
        key = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        now_s = self._state.clock()
        found_s, identity = self._found.get(key, (float("-inf"), None))
        if 0 <= now_s - found_s < (REMEMBERED_S if identity else UNKNOWN_S):
            return identity
        identity = await run_in_threadpool(self._look_up, secret)
        self._found.pop(key, None)
        while len(self._found) >= REMEMBERED_AT_MOST:
            del self._found[next(iter(self._found))]  # the oldest
        self._found[key] = (now_s, identity)
        return identity

    def _look_up(self, secret: str) -> Identity | None:
        with snapshot(self._state.engine) as db:
            return identify(db, secret)
