"""The rights of callers. Only `/health` answers unauthenticated callers. Even the description of the API needs a token.

`Gate` is in front of all routes, so that no route can forget the check. It also limits the size of a body, and control
never reads the body of an unknown caller. Callers authenticate with a token or, if the admin allows it, with a munge
credential (`munged`). The type of a route's `Caller` names the role that the route needs: `Anyone`, `User`, `Admin`,
`Metrics`, `OwnAgent`, `SomeAgent`. `may_change` decides who is allowed to change a job. Tokens are 256 random bits and
are looked up by their hash, so the time of a look-up reveals nothing about them. Tokens are never logged.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from fastapi import Depends, HTTPException, Path, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gleaner.agent.job_spec import Name
from gleaner.control.api.instruments import Instruments
from gleaner.control.api.munge_login import MungeLogin
from gleaner.control.api.problems import answer_to
from gleaner.control.control_state import ControlState
from gleaner.control.models.searches import CampaignFilter, JobFilter
from gleaner.control.models.uploads import PART_BYTES
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.tokens import Identity, identify

Filter = TypeVar("Filter", JobFilter, CampaignFilter)

OPEN_PATH = "/health"
LONGEST_TOKEN = 256
REMEMBERED_S = 5.0
"""The time for which a known token is not looked up again. A revoked token can still work for this time."""
UNKNOWN_S = 2.0
"""The time for which an unknown token is not looked up again."""
REMEMBERED_AT_MOST = 10_000
LARGEST_BODY_BYTES = 256 * 2**10
LARGER_BODIES_BYTES = {
    "/v1/uploads/[^/]+/[^/]+": PART_BYTES,
    "/v1/jobs": 8 * 2**20,  # a campaign of 100,000 jobs
    "/v1/agents/[^/]+/register": 2**20,
    "/v1/jobs/[0-9]+/attempts/[0-9]+/log": 2 * 2**20,  # agents halve a refused batch
}
"""The largest body for each path. Rejecting an invalid body of this size takes control less than a second."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, together with the state of control."""

    identity: Identity
    state: ControlState
    meters: Instruments
    about: list[str] = field(default_factory=list[str])
    """The subject of the request for the audit log, in addition to the names in its path."""

    @property
    def now_s(self) -> float:
        return self.state.clock()

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def group(self) -> str | None:
        """Return the only group that the caller is allowed to see, or None for all groups."""
        return None if self.identity.role == "admin" else self.identity.group

    def visible(self, wanted: Filter) -> Filter:
        """Return a search that finds only what the caller is allowed to see. Raises 403 for another group."""
        if self.group not in {None, wanted.group or self.group}:
            raise HTTPException(403, f"this token sees the jobs of group {self.group} only")
        return wanted.model_copy(update={"group": wanted.group or self.group})

    def may_change(self, what: str, *, group: str, submitter: str) -> None:
        """Raise 403 unless the caller is allowed to change the jobs that this user of this group has submitted."""
        me = self.identity
        if me.role == "admin":
            return
        if me.group != group:
            raise HTTPException(403, f"{what} belongs to another group")
        if not me.manager and submitter != me.name:
            raise HTTPException(
                403,
                f"{what} was submitted by {submitter}: only {submitter}, a manager of group {group} or an admin"
                " may change it",
            )

    def acts_for(self, named: str | None) -> str:
        """Return the named group, or the caller's group if none is named. Raises 422 if there is neither, and 403 for
        another group."""
        group = named or self.identity.group
        if group is None:
            raise HTTPException(422, "group: an admin's token has no group, so name the one that is meant")
        if self.group not in {None, group}:
            raise HTTPException(403, f"this token is for group {self.group} only, not for {group}")
        return group

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a connection for one consistent view of the queue."""
        return snapshot(self.state.engine)

    def writing(self) -> AbstractContextManager[Connection]:
        """Return one transaction. Only the leader writes, and other control programs answer 503 and name the leader."""
        return self.state.writing()


class TokenLookup:
    """The cache of tokens' owners. Only the event loop's thread uses it.

    Its keys are hashes, so it contains no secret.
    """

    def __init__(self, state: ControlState) -> None:
        self._state = state
        clock = lambda: state.clock()  # noqa: E731, PLW0108  # tests set their own clock later
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


class Gate:
    """The gate in front of the routes.

    It lets authenticated requests pass and stores the `Caller` in the request's state.
    """

    def __init__(self, app: ASGIApp, *, state: ControlState, meters: Instruments, takes_munge: bool) -> None:
        self._app = app
        self._state = state
        self._meters = meters
        self._lookups = TokenLookup(state)
        self._munged = MungeLogin(state.settings.munge) if takes_munge else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 for an unknown token, and 413 if the declared length of the body is too large."""
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            headers = Headers(scope=scope)
            try:
                identity = await self._identity(scope, headers)
                receive = _bounded(receive, headers.get("content-length", "0"), scope["path"])
                if self._munged is not None and is_munge(headers):
                    receive = await self._munged.with_its_body(headers, receive)
            except Exception as error:
                await answer_to(error)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = Caller(identity, self._state, self._meters)
        await self._app(scope, receive, send)

    async def _identity(self, scope: Scope, headers: Headers) -> Identity:
        """Return the caller. Raises 401."""
        if self._munged is not None and is_munge(headers):
            return await self._munged.identity(scope, headers)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret or len(secret) > LONGEST_TOKEN:
            raise _unknown()
        identity = await self._lookups.identity(secret)
        if identity is None:
            raise _unknown()
        if identity.expires_s is not None and identity.expires_s <= self._state.clock():
            ended = datetime.fromtimestamp(identity.expires_s, UTC)
            raise _unauthorized(f"this token expired at {ended:%Y-%m-%d %H:%M} UTC: an admin can rotate it")
        return identity


def is_munge(headers: Headers) -> bool:
    """Return True if the caller sends a munge credential instead of a token."""
    return headers.get("authorization", "").lower().startswith("munge ")


def _unauthorized(why: str) -> HTTPException:
    return HTTPException(401, why, {"WWW-Authenticate": "Bearer"})


def _unknown() -> HTTPException:
    return _unauthorized("send a known token, as `Authorization: Bearer TOKEN`; an admin makes them with `glean token`")


def largest_body(path: str) -> int:
    """Return the size in bytes of the largest body that a route accepts."""
    larger = (size for pattern, size in LARGER_BODIES_BYTES.items() if re.fullmatch(pattern, path))
    return next(larger, LARGEST_BODY_BYTES)


def _bounded(receive: Receive, declared: str, path: str) -> Receive:
    """Return the body. A body above the route's limit raises 413, even before it is read if its length is declared."""
    most_bytes, seen_bytes = largest_body(path), 0
    too_large = HTTPException(413, f"the body is larger than {most_bytes // 2**10} KiB: send less at once")
    if not declared.isdecimal() or int(declared) > most_bytes:
        raise too_large

    async def receiving() -> Message:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        if seen_bytes > most_bytes:
            raise too_large
        return message

    return receiving


def _one_of(*roles: str, why: str = "") -> Callable[[Request], Awaitable[Caller]]:
    """Return the dependency that admits these roles, and raises 403 for others."""

    # This is a coroutine, because FastAPI would run a plain function in the thread pool, once for each request.
    async def checked(request: Request) -> Caller:
        caller: Caller = request.state.caller
        role = caller.identity.role
        if role not in roles:
            is_reader = role == "metrics"
            raise HTTPException(403, "a token of role metrics reads /metrics and nothing else" if is_reader else why)
        return caller

    return checked


Anyone = Annotated[Caller, Depends(_one_of("user", "admin", "agent"))]
User = Annotated[Caller, Depends(_one_of("user", "admin", why="an agent's token allows only its own agent's calls"))]
Admin = Annotated[Caller, Depends(_one_of("admin", why="this needs an admin's token"))]
Metrics = Annotated[
    Caller, Depends(_one_of("metrics", "admin", why="this needs a token of role metrics, or an admin's"))
]
SomeAgent = Annotated[Caller, Depends(_one_of("agent", why="this needs an agent's token"))]


async def _own_agent(caller: SomeAgent, name: Annotated[Name, Path(description="The agent's own name")]) -> Caller:
    if caller.identity.name != name:
        raise HTTPException(403, f"this token belongs to another agent than {name}")
    return caller


OwnAgent = Annotated[Caller, Depends(_own_agent)]
