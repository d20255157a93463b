"""Who may do what. Nothing but `/health` answers without a token, not even the API's own description.

`Gate` stands before the routes, so that no route can forget to ask, and a caller without a token cannot even make
control read a body; it also bounds the body. What a role may do is said where a route takes its `Caller`:
`Anyone`, `User`, `Admin`, `OwnAgent`, `SomeAgent`. Tokens are 256 random bits and are looked up by their hash, so
how long a look-up takes says nothing about them. No token is ever logged.
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gleaner.control.api.meters import Meters
from gleaner.control.api.problems import answer, answer_to
from gleaner.control.api.shapes import Name
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.tokens import Identity, identify
from gleaner.control.site import Site

OPEN_PATH = "/health"
REMEMBERED_S = 5.0
"""A token that was found is not looked up again for this long; so long may a revoked one go on."""
REMEMBERED_AT_MOST = 10_000
LONGEST_TOKEN = 256
LARGEST_BODY_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the request's token, and what control is."""

    identity: Identity
    site: Site
    meters: Meters

    @property
    def now_s(self) -> float:
        return self.site.clock()

    @property
    def group(self) -> str | None:
        """The only group that the caller may see; None: all."""
        return None if self.identity.role == "admin" else self.identity.group

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """One consistent look at the queue."""
        with snapshot(self.site.engine) as db:
            yield db

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """One transaction. Only the leading control program writes; another one says who leads (503)."""
        with self.site.writing() as db:
            yield db


class Gate:
    """Lets a request pass if it carries a known token; the routes find the `Caller` in the request's state."""

    def __init__(self, app: ASGIApp, *, site: Site, meters: Meters) -> None:
        self._app = app
        self._site = site
        self._meters = meters
        # Only the event loop's thread touches this. Keys are hashes: the secrets themselves are not kept.
        self._remembered: dict[bytes, tuple[float, Identity]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without a known token, 413 to a body that says it is too large."""
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            headers = Headers(scope=scope)
            try:
                identity = await self._identity(headers.get("authorization", ""))
            except Exception as error:
                await answer_to(error)(scope, receive, send)
                return
            if identity is None:
                refusal = answer(
                    401,
                    "send a known token, as `Authorization: Bearer TOKEN`; an admin makes them with `glean token`",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
            if _is_too_large(headers.get("content-length")):
                await answer_to(_too_large())(scope, receive, send)
                return
            receive = _bounded(receive)
            scope.setdefault("state", {})["caller"] = Caller(identity, self._site, self._meters)
        await self._app(scope, receive, send)

    async def _identity(self, header: str) -> Identity | None:
        scheme, _, secret = header.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret or len(secret) > LONGEST_TOKEN:
            return None
        key = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        now_s = self._site.clock()
        known = self._remembered.get(key)
        if known is not None and 0 <= now_s - known[0] < REMEMBERED_S:
            return known[1]
        self._remembered.pop(key, None)
        found = await run_in_threadpool(self._look_up, secret)
        if found is not None:
            if len(self._remembered) >= REMEMBERED_AT_MOST:
                self._remembered.clear()
            self._remembered[key] = (now_s, found)
        return found

    def _look_up(self, secret: str) -> Identity | None:
        with snapshot(self._site.engine) as db:
            return identify(db, secret)


def _too_large() -> HTTPException:
    return HTTPException(413, f"the body is larger than {LARGEST_BODY_BYTES // 2**20} MiB: send less at once")


def _is_too_large(content_length: str | None) -> bool:
    return content_length is not None and (not content_length.isdecimal() or int(content_length) > LARGEST_BODY_BYTES)


def _bounded(receive: Receive) -> Receive:
    """The same body, which raises once it is larger than a client without `Content-Length` may send."""
    seen_bytes = 0

    async def receiving() -> Message:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        if seen_bytes > LARGEST_BODY_BYTES:
            raise _too_large()
        return message

    return receiving


# These are coroutines because FastAPI would send plain functions through the thread pool, once per request.


async def _anyone(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


async def _user(request: Request) -> Caller:
    caller = await _anyone(request)
    if caller.identity.role not in {"user", "admin"}:
        raise HTTPException(403, "an agent's token allows only its own agent's calls")
    return caller


async def _admin(request: Request) -> Caller:
    caller = await _anyone(request)
    if caller.identity.role != "admin":
        raise HTTPException(403, "this needs an admin's token")
    return caller


async def _some_agent(request: Request) -> Caller:
    caller = await _anyone(request)
    if caller.identity.role != "agent":
        raise HTTPException(403, "this needs an agent's token")
    return caller


async def _own_agent(request: Request, name: Annotated[Name, Path(description="The agent's own name")]) -> Caller:
    caller = await _some_agent(request)
    if caller.identity.name != name:
        raise HTTPException(403, f"this token belongs to another agent than {name}")
    return caller


Anyone = Annotated[Caller, Depends(_anyone)]
User = Annotated[Caller, Depends(_user)]
Admin = Annotated[Caller, Depends(_admin)]
SomeAgent = Annotated[Caller, Depends(_some_agent)]
OwnAgent = Annotated[Caller, Depends(_own_agent)]
