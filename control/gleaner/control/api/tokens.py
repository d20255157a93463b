"""Tokens for users, admins and readers of the metrics, and codes with which browsers sign in to the web page.

Agents receive their tokens from control when they are submitted. An admin can see, revoke and replace all other tokens.
A user can do the same only with the user's own tokens.
"""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query
from sqlalchemy import Connection

from gleaner.control.api import examples
from gleaner.control.api.access import Admin, Caller, User
from gleaner.control.api.problems import documented
from gleaner.control.models.base import replaced
from gleaner.control.models.tokens import TokenFilter, TokenIssued, TokenRequest, TokenRow, WebCode
from gleaner.control.queue import tokens, web_sessions
from gleaner.control.queue.errors import NotFound

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
web_codes = APIRouter(prefix="/v1/web-codes", tags=["tokens"])

TokenId = Annotated[
    str,
    Path(pattern="^([0-9a-f]{12}|own)$", description="The token's id, or `own`: the one sent", examples=["own"]),
]


@router.post("", status_code=201, responses=documented(409, 413, 422))
def issue(caller: Admin, request: Annotated[TokenRequest, examples.A_TOKEN_REQUEST]) -> TokenIssued:
    """Make a token. The secret is shown only this once, because only its hash is stored."""
    with caller.writing() as db:
        made = tokens.make(db, **request.model_dump(), now_s=caller.now_s)
    caller.about.append(f"{request.role} {request.name}, token {made.id}")
    return made


@router.get("", responses=documented(422))
def list_tokens(caller: User, wanted: Annotated[TokenFilter, Query()]) -> list[TokenRow]:
    """Return the tokens of people and the sessions of browsers, the newest first. Agents' tokens are left out.

    A user sees only the user's own tokens.
    """
    with caller.reading() as db:
        found = tokens.people_tokens(db, now_s=caller.now_s, everything=wanted.all)
        found += web_sessions.rows(db, now_s=caller.now_s)
    return [each for each in found if _may_see(caller, each)]


@router.post("/{token}/revoke", responses=documented(404, 409, 422))
def revoke(caller: User, token: TokenId) -> TokenRow:
    """Revoke a token or a session, which becomes invalid within seconds. Revoking a token again is not an error."""
    with caller.writing() as db:
        for session in web_sessions.rows(db, now_s=caller.now_s):
            if session.id == token and _may_see(caller, session):
                web_sessions.end_listed(db, token)
                return replaced(session, revoked_s=caller.now_s)
        return tokens.end(db, _own(caller, db, token), now_s=caller.now_s)


@router.post("/{token}/rotate", status_code=201, responses=documented(404, 409, 422))
def rotate(caller: User, token: TokenId) -> TokenIssued:
    """Replace a token with a new one of the same owner. The new secret is shown only this once. The old token is
    revoked."""
    with caller.writing() as db:
        id_ = _own(caller, db, token)
        _check_is_no_stronger(caller, db, id_)
        made = tokens.rotate(db, id_, now_s=caller.now_s)
    caller.about.append(f"new token {made.id}")
    return made


@web_codes.post("", status_code=201, responses=documented())
def issue_web_code(caller: User) -> WebCode:
    """Make a code that signs one browser in as the caller. It can be used once, within a minute."""
    now_s = caller.now_s
    with caller.writing() as db:
        code = web_sessions.issue_code(db, caller.identity, now_s=now_s)
    return WebCode(code=code, expires_s=now_s + web_sessions.CODE_S)


def _own(caller: Caller, db: Connection, token: str) -> str:
    """Return the token's id if the caller is allowed to revoke it.

    Raises `NotFound` if the token belongs to another user or does not exist.
    """
    id_ = caller.identity.token if token == "own" else token  # noqa: S105
    if not id_:
        raise HTTPException(409, "munge vouches for you: there is no token to change")
    found = tokens.one(db, id_)
    if not _may_see(caller, found):
        raise NotFound(f"there is no token {id_} of yours")
    return id_


def _check_is_no_stronger(caller: Caller, db: Connection, token: str) -> None:
    """Raise 403 for a token with more rights or a longer validity than the caller's token.

    Otherwise a stolen token could be exchanged for a stronger one.
    """
    me = caller.identity
    if me.role == "admin" or token == me.token:
        return
    found = tokens.one(db, token)
    if found.manager and not me.manager:
        raise HTTPException(403, f"token {token} belongs to a manager: rotate it with itself, or ask an admin")
    if me.expires_s is not None and tokens.lasts_s(found) > tokens.lasts_s(tokens.one(db, me.token)):
        raise HTTPException(
            403, f"token {token} is valid for longer than the one that you send: rotate it with itself, or ask an admin"
        )


def _may_see(caller: Caller, token: TokenRow) -> bool:
    me = caller.identity
    return me.role == "admin" or (me.role, me.name, me.group) == (token.role, token.name, token.group)
