"""Sessions of browsers on the web page, and the codes with which browsers sign in.

A code can be used once, within a minute, and becomes a session with its own secret. Only the hashes of codes and
secrets are stored. A session ends after some hours, and immediately when the token behind it ends. If munge has
authenticated the user instead, `web.gate` checks at each request that the rules still give the same rights. Sessions
are listed and ended like tokens. All control programs share the table, so a session survives a restart.
"""

import math

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, update

from gleaner.control.models.tokens import TokenRow
from gleaner.control.queue.tables import TOKEN, WEB_SESSION
from gleaner.control.queue.tokens import ID_LENGTH, Identity, digest, is_good, new_secret

CODE_S = 60.0
SESSION_S = 12 * 3600.0


def issue_code(db: Connection, who: Identity, *, now_s: float) -> str:
    """Return a code with which a browser can sign in once as this user or admin."""
    code = new_secret()
    _add(db, who, code, opened_s=None, expires_s=now_s + CODE_S)
    return code


def is_code(db: Connection, code: str, *, now_s: float) -> bool:
    """Return True for a code that is valid now."""
    return db.execute(select(WEB_SESSION.c.hash).where(*_good_code(code, now_s))).one_or_none() is not None


def open_by_code(db: Connection, code: str, *, now_s: float) -> str | None:
    """Turn a code into a session, and return its secret. Return None for a code that is unknown, used or too old."""
    secret = new_secret()
    opened = update(WEB_SESSION).where(*_good_code(code, now_s))
    values = {"hash": digest(secret), "opened_s": now_s, "expires_s": now_s + SESSION_S}
    if db.execute(opened.values(values)).rowcount == 0:
        return None
    return secret if identify(db, secret, now_s=now_s) else None


def open_by_token(db: Connection, who: Identity, *, now_s: float) -> str:
    """Begin a session for the owner of a token, and return its secret."""
    secret = new_secret()
    _add(db, who, secret, opened_s=now_s, expires_s=now_s + SESSION_S)
    return secret


def identify(db: Connection, secret: str, *, now_s: float) -> Identity | None:
    """Return the owner of a session, or None if the session or the token behind it has ended."""
    mine = select(WEB_SESSION).where(WEB_SESSION.c.hash == digest(secret), WEB_SESSION.c.opened_s.is_not(None))
    row = db.execute(mine.where(WEB_SESSION.c.expires_s > now_s)).one_or_none()
    if row is None:
        return None
    expires_s = row.expires_s
    if row.token:
        token = select(TOKEN.c.expires_s).where(TOKEN.c.id == row.token, is_good(now_s))
        behind = db.execute(token).one_or_none()
        if behind is None:
            return None
        expires_s = min(expires_s, math.inf if behind.expires_s is None else behind.expires_s)
    return Identity(row.role, row.name, row.group, row.manager, token=row.token, expires_s=expires_s)


def rows(db: Connection, *, now_s: float) -> tuple[TokenRow, ...]:
    """Return the sessions that have not ended, the newest first."""
    good = select(TOKEN.c.id).where(is_good(now_s))
    mine = WEB_SESSION.c
    lasts = mine.opened_s.is_not(None) & (mine.expires_s > now_s) & or_(mine.token == "", mine.token.in_(good))
    found = db.execute(select(WEB_SESSION).where(lasts).order_by(mine.opened_s.desc(), mine.hash)).mappings()
    return tuple(
        TokenRow.model_validate(
            {**row, "id": row["hash"][:ID_LENGTH], "issued_s": row["opened_s"], "revoked_s": None}
            | {"session_of": row["token"] or "munge"}
        )
        for row in found
    )


def end_listed(db: Connection, session: str) -> None:
    """End the session with this id."""
    db.execute(delete(WEB_SESSION).where(WEB_SESSION.c.hash.startswith(session)))


def end(db: Connection, secret: str) -> None:
    """End a session. Ending it again is not an error."""
    db.execute(delete(WEB_SESSION).where(WEB_SESSION.c.hash == digest(secret)))


def remove_ended(db: Connection, *, now_s: float, at_most: int) -> int:
    """Remove sessions and codes that have ended. Return how many were removed."""
    some = select(WEB_SESSION.c.hash).where(WEB_SESSION.c.expires_s <= now_s).limit(at_most)
    return db.execute(delete(WEB_SESSION).where(WEB_SESSION.c.hash.in_(some))).rowcount


def _good_code(code: str, now_s: float) -> tuple[ColumnElement[bool], ...]:
    return WEB_SESSION.c.hash == digest(code), WEB_SESSION.c.opened_s.is_(None), WEB_SESSION.c.expires_s > now_s


def _add(db: Connection, who: Identity, secret: str, *, opened_s: float | None, expires_s: float) -> None:
    row = {"hash": digest(secret), "token": who.token, "role": who.role, "name": who.name, "group": who.group}
    db.execute(insert(WEB_SESSION), row | {"manager": who.manager, "opened_s": opened_s, "expires_s": expires_s})
