"""Users of the cluster without a token. Munge identifies the Unix user, and the admin's rules give the user a role.

The request has the headers `Authorization: Munge CREDENTIAL` and `Gleaner-Proof: NONCE DIGEST`, where DIGEST is the
SHA-256 of its body. The credential is checked before the body is read, so control reads bodies only from authenticated
callers. Each credential is accepted once. munged ensures this, but it forgets all credentials when it restarts, so this
module also remembers the nonces. If two control programs run, each remembers only its own nonces, but only one of them
writes to the queue.
"""

import grp
import hashlib
import hmac
import os
import pwd
import re
import threading
from collections.abc import Collection, Sequence

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from gleaner.control.queue.tokens import Identity
from gleaner.control.settings import MungeRule, MungeSettings
from gleaner.control.slurm.munge import TTL_S, MungeAway, MungeRefused, decode, payload_of

PROOF = "gleaner-proof"
SKEW_S = 5
"""The largest accepted difference between the clocks of the two nodes, according to the times in a credential."""
REMEMBERED_AT_MOST = 10_000
"""The maximum number of credentials that are remembered for each user."""
LONGEST_CREDENTIAL = 4096
THREADS = 4
"""The number of threads that can wait for munge at the same time. A call that hangs does not block other routes."""

_PROOF = re.compile("([0-9a-f]{32}) ([0-9a-f]{64})")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Once:
    """The credentials that are still valid, by user.

    Their number for each user is limited, and each is kept until it expires.
    """

    def __init__(self, at_most: int = REMEMBERED_AT_MOST) -> None:
        self._at_most = at_most
        self._seen: dict[str, dict[str, int]] = {}
        """By user, the end of each credential's lifetime."""
        self._turn = threading.Lock()

    def take(self, word: str, user: str, *, until_s: int, now_s: int) -> bool:
        """Return True if the user's credential is new. Raises 503 if the user has too many valid credentials."""
        with self._turn:
            seen = self._seen.setdefault(user, {})
            if word in seen:
                return False
            if len(seen) >= self._at_most:
                seen = self._seen[user] = {one: end_s for one, end_s in seen.items() if end_s >= now_s}
                if len(seen) >= self._at_most:
                    raise HTTPException(503, "too many munge credentials in a minute: try again", {"Retry-After": "5"})
            seen[word] = until_s
            return True


class MungeLogin:
    """The login that identifies callers by munge."""

    def __init__(self, settings: MungeSettings) -> None:
        self._settings = settings
        self._threads = CapacityLimiter(THREADS)
        self._once = Once()

    async def identity(self, scope: Scope, headers: Headers) -> Identity:
        """Return the caller. Raises 401, 403 for a user to whom no rule applies, or 503."""
        if not self._settings.allow:
            raise _unauthorized("control accepts no munge credentials here: ask an admin for a token")
        credential = headers["authorization"][len("munge ") :].strip()
        proof = _PROOF.fullmatch(headers.get(PROOF, ""))
        if proof is None or len(credential) > LONGEST_CREDENTIAL:
            raise _unauthorized(f"a munge credential comes with a header {PROOF}: NONCE and SHA-256 of the body")
        target = scope.get("raw_path", b"").decode("latin-1")
        if query := scope["query_string"].decode("latin-1"):
            target += f"?{query}"
        nonce, digest = proof.groups()
        payload = payload_of(method=scope["method"], target=target, body_digest=digest, nonce=nonce)
        return await run_sync(self._proven, credential, payload, limiter=self._threads)

    def _proven(self, credential: str, payload: str) -> Identity:
        try:
            found = decode(credential, socket=self._settings.socket, timeout_s=self._settings.timeout_s)
        except MungeRefused as error:
            raise _unauthorized(str(error)) from error
        except MungeAway as error:
            raise HTTPException(503, f"control cannot ask munge: {error}", {"Retry-After": "5"}) from error
        if not hmac.compare_digest(found.payload.encode(), payload.encode()):
            raise _unauthorized("this munge credential was made for another request")
        if not -SKEW_S <= found.decoded_s - found.encoded_s <= TTL_S + SKEW_S:
            raise _unauthorized(f"this munge credential is older than {TTL_S} s: do the clocks of the nodes agree?")
        user, groups = _unix_names(found.uid)
        identity = identity_of(user, groups, self._settings.allow)
        if identity is None:  # checked before anything is stored, so that unknown users take up no memory
            raise HTTPException(403, f"no rule of [[munge.allow]] admits Unix user {user}: ask an admin")
        if not self._once.take(payload, user, until_s=found.encoded_s + TTL_S + SKEW_S, now_s=found.decoded_s):
            raise _unauthorized("this munge credential has already been used")
        return identity

    async def with_its_body(self, headers: Headers, receive: Receive) -> Receive:
        """Return the whole body if the credential was made for it, and otherwise raise 401."""
        proof = _PROOF.fullmatch(headers.get(PROOF, ""))
        try:
            body = await Request({"type": "http"}, receive).body()
        except ClientDisconnect:
            return receive  # it reports the disconnection to the route
        if proof is None or hashlib.sha256(body).hexdigest() != proof.group(2):
            raise _unauthorized("this munge credential was made for another body")
        first = iter([{"type": "http.request", "body": body}])

        async def again() -> Message:
            return next(first, None) or await receive()

        return again


def identity_of(user: str, unix_groups: Collection[str], rules: Sequence[MungeRule]) -> Identity | None:
    """Return the identity of a Unix user by the first rule that applies, or None if none applies.

    >>> rules = [MungeRule(user="eve", role="metrics"), MungeRule(unix_group="atlas", group="atlas")]
    >>> identity_of("alice", {"users", "atlas"}, rules)
    Identity(role='user', name='alice', group='atlas', manager=False, token='', expires_s=None)
    """
    if not _NAME.fullmatch(user):
        return None
    for rule in rules:
        if rule.user == user or (rule.unix_group is not None and rule.unix_group in unix_groups):
            role = "user" if rule.role == "manager" else rule.role
            return Identity(role, user, rule.group, manager=rule.role == "manager")
    return None


def is_vouched_for(me: Identity, rules: Sequence[MungeRule]) -> bool:
    """Return True while the rules still give this Unix user the same rights."""
    try:
        user, groups = _unix_names(pwd.getpwnam(me.name).pw_uid)
    except (KeyError, HTTPException):
        return False
    return identity_of(user, groups, rules) == Identity(me.role, me.name, me.group, me.manager)


def _unix_names(uid: int) -> tuple[str, frozenset[str]]:
    """Return the user's name and the names of the user's groups from control's machine. Raises 403."""
    try:
        user = pwd.getpwuid(uid)
        found = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError) as error:
        raise HTTPException(403, f"control's machine knows no user with the id {uid}: ask an admin") from error
    names: set[str] = set()
    for gid in found:
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue  # rules can refer only to groups with a name
    return user.pw_name, frozenset(names)


def _unauthorized(why: str) -> HTTPException:
    return HTTPException(401, why, {"WWW-Authenticate": "Munge"})
