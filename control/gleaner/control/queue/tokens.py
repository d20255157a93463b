"""Bearer tokens, and the groups that have one.

A secret is 256 random bits. Only its hash is stored, so a reader of the database cannot learn it. People identify a
token by its id, the beginning of the hash, which reveals nothing about the secret.
"""

import math
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, or_, select, update

from gleaner.agent.reporting.spooled_report import hash_of
from gleaner.control.models.tokens import Role, TokenIssued, TokenRow
from gleaner.control.queue.errors import Conflict, Invalid, NotFound
from gleaner.control.queue.tables import TOKEN

DAY_S = 24 * 3600.0
ID_LENGTH = 12
LATE_REPORTS_S = 3600.0
"""An agent's token stays valid for this long after its deregistration, because a report can still be on its way."""
AGENT_OVERTIME_S = DAY_S
"""An agent's token becomes invalid this long after the agent's planned end, whatever has happened to the agent."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a caller: the owner of a token, or a user of the cluster whom munge authenticates."""

    role: str
    """`user`, `agent`, `admin` or `metrics`."""
    name: str
    group: str | None
    manager: bool = False
    """True if a user is allowed to change all jobs of the group."""
    token: str = ""
    """The token's id, or "" if the caller has no token."""
    expires_s: float | None = None


def lasts_s(token: TokenRow) -> float:
    """Return how long the token was meant to be valid, in seconds, or infinity for a token without expiry."""
    return math.inf if token.expires_s is None else token.expires_s - token.issued_s


def new_secret() -> str:
    """Return a new random secret."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the hash of a secret, which is stored in its place."""
    return hash_of(secret)


def issue(db: Connection, *, role: str, name: str, group: str | None, now_s: float) -> str:
    """Make a token without expiry. Return its secret, which is not stored."""
    return make(db, role=role, name=name, group=group, now_s=now_s).token


def make(
    db: Connection,
    *,
    role: str,
    name: str,
    group: str | None,
    now_s: float,
    manager: bool = False,
    days: float | None = None,
) -> TokenIssued:
    """Make a token for a person, or for a program that reads the metrics. With `days`, the token expires."""
    if role not in {member.value for member in Role}:
        raise Invalid(f"{role!r} is no role; there are {', '.join(Role)}")
    if role == Role.USER and group is None:
        raise Invalid("group: a user's token needs the group whose jobs it may see")
    if manager and role != Role.USER:
        raise Invalid("manager: only a user's token can be that of a group's manager")
    secret = new_secret()
    expires_s = None if days is None else now_s + days * DAY_S
    register(db, Identity(role, name, group, manager, expires_s=expires_s), token_hash=digest(secret), now_s=now_s)
    return TokenIssued(token=secret, id=digest(secret)[:ID_LENGTH], expires_s=expires_s)


def register(db: Connection, who: Identity, *, token_hash: str, now_s: float) -> None:
    """Store the hash of a secret that was made elsewhere."""
    row: dict[str, object] = {"hash": token_hash, "id": token_hash[:ID_LENGTH], "role": Role(who.role)}
    row |= {"name": who.name, "group": who.group, "issued_s": now_s, "manager": who.manager, "expires_s": who.expires_s}
    db.execute(insert(TOKEN), row)


_BY_HASH = select(TOKEN).where(TOKEN.c.hash == bindparam("hash_"), TOKEN.c.revoked_s.is_(None))


def identify(db: Connection, secret: str) -> Identity | None:
    """Return the owner of a token, or None if the token is unknown or revoked. An expired token still has an owner."""
    row = db.execute(_BY_HASH, {"hash_": digest(secret)}).one_or_none()
    if row is None:
        return None
    return Identity(str(row.role.value), row.name, row.group, row.manager, token=row.id, expires_s=row.expires_s)


def revoke(db: Connection, *, role: str, name: str, now_s: float) -> int:
    """Revoke all tokens of that role and name. Return how many there were."""
    ended = update(TOKEN).where(TOKEN.c.role == Role(role), TOKEN.c.name == name, TOKEN.c.revoked_s.is_(None))
    return db.execute(ended.values(revoked_s=now_s)).rowcount


def agents_hashes(db: Connection, agent: str) -> tuple[str, ...]:
    """Return the hashes of all tokens of an agent.

    Expired tokens are included, because older files of the agent are verified with them.
    """
    mine = select(TOKEN.c.hash).where(TOKEN.c.role == Role.AGENT, TOKEN.c.name == agent, TOKEN.c.revoked_s.is_(None))
    return tuple(db.scalars(mine))


def end_later(db: Connection, *, agent: str, now_s: float) -> None:
    """Let an agent's token expire when no more of its reports can arrive, unless it expires sooner."""
    until_s = now_s + LATE_REPORTS_S
    sooner = or_(TOKEN.c.expires_s.is_(None), TOKEN.c.expires_s > until_s)
    db.execute(update(TOKEN).where(TOKEN.c.role == Role.AGENT, TOKEN.c.name == agent, sooner).values(expires_s=until_s))


def is_good(now_s: float) -> ColumnElement[bool]:
    """Return the condition that a token has not ended."""
    return TOKEN.c.revoked_s.is_(None) & or_(TOKEN.c.expires_s.is_(None), TOKEN.c.expires_s > now_s)


def people_tokens(db: Connection, *, now_s: float, everything: bool = False) -> tuple[TokenRow, ...]:
    """Return all tokens except those of agents, the newest first. Ended ones are included only with `everything`."""
    wanted = select(TOKEN).where(TOKEN.c.role != Role.AGENT).order_by(TOKEN.c.issued_s.desc(), TOKEN.c.hash)
    if not everything:
        wanted = wanted.where(is_good(now_s))
    return tuple(TokenRow.model_validate(row) for row in db.execute(wanted).mappings())


def one(db: Connection, token: str) -> TokenRow:
    """Return a person's token by its id. Raises `NotFound`."""
    return TokenRow.model_validate(_locked(db, token)._mapping)


def end(db: Connection, token: str, *, now_s: float) -> TokenRow:
    """Revoke one token of a person. Revoking it again is not an error."""
    row = _locked(db, token)
    if row.revoked_s is None:
        db.execute(update(TOKEN).where(TOKEN.c.hash == row.hash).values(revoked_s=now_s))
    return one(db, token)


def rotate(db: Connection, token: str, *, now_s: float) -> TokenIssued:
    """Replace a token with a new one for the same owner, with the same period of validity."""
    row = _locked(db, token)
    if row.revoked_s is not None:
        raise Conflict(f"token {token} was revoked: make a new one with `glean token create`")
    db.execute(update(TOKEN).where(TOKEN.c.hash == row.hash).values(revoked_s=now_s))
    return make(
        db,
        role=row.role.value,
        name=row.name,
        group=row.group,
        manager=row.manager,
        now_s=now_s,
        days=None if row.expires_s is None else (row.expires_s - row.issued_s) / DAY_S,
    )


def remove_ended(db: Connection, *, before_s: float, at_most: int) -> int:
    """Remove people's tokens that ended before `before_s`. Return how many were removed."""
    return _remove(db, (TOKEN.c.role != Role.AGENT) & (before_s > _ENDED_S), at_most)


def remove_ended_agents(db: Connection, *, spooling: Collection[str], now_s: float, at_most: int) -> int:
    """Remove the tokens of ended agents, but not those with which a report must still be verified. Return how many were
    removed.

    `spooling` are the agents with reports in the storage.
    """
    over = (TOKEN.c.role == Role.AGENT) & (now_s - LATE_REPORTS_S > _ENDED_S)
    return _remove(db, over & TOKEN.c.name.not_in(spooling), at_most)


_ENDED_S = func.coalesce(TOKEN.c.revoked_s, TOKEN.c.expires_s)


def _remove(db: Connection, which: ColumnElement[bool], at_most: int) -> int:
    some = select(TOKEN.c.hash).where(which).limit(at_most)
    return db.execute(delete(TOKEN).where(TOKEN.c.hash.in_(some))).rowcount


def _locked(db: Connection, token: str) -> Any:
    rows = db.execute(select(TOKEN).where(TOKEN.c.id == token, TOKEN.c.role != Role.AGENT).with_for_update()).all()
    if len(rows) != 1:  # Two equal ids of 48 bits are not expected. If they occur, neither token is changed.
        raise NotFound(f"there is no token {token}: `glean token list` shows their ids")
    return rows[0]


GROUPS_NAMED_AT_MOST = 20


def groups_with_tokens(db: Connection) -> frozenset[str]:
    """Return the groups that have a token that was not revoked."""
    found = select(TOKEN.c.group).where(TOKEN.c.group.is_not(None), TOKEN.c.revoked_s.is_(None)).distinct()
    return frozenset(db.execute(found).scalars())


def check_group(db: Connection, group: str, *, named: Iterable[str]) -> None:
    """Raise `Invalid` for a group that is not in the settings and has no token.

    Otherwise jobs with a mistyped group would wait under a group that does not exist. If there is no group at all, the
    first admin is still trying out the site, and every name is accepted.
    """
    known = set(named)
    if group in known:
        return
    known |= groups_with_tokens(db)
    if not known or group in known:
        return
    names = sorted(known)
    more = f" and {len(names) - GROUPS_NAMED_AT_MOST} more" if len(names) > GROUPS_NAMED_AT_MOST else ""
    raise Invalid(
        f"group: there is no group {group}; there are {', '.join(names[:GROUPS_NAMED_AT_MOST])}{more}. "
        f"`glean token create --role user --name NAME --group {group}` makes it, or [groups] in control's settings"
    )
