"""Bearer tokens, and the groups that somebody has a token for.

A secret is 256 random bits. Only its hash is stored, so no reader of the database has it. A token has an id for people,
the beginning of its hash: it tells nothing of the secret.
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
"""An agent's token is good for so long after its deregistration: a report may have been overtaken on the way."""
AGENT_OVERTIME_S = DAY_S
"""An agent's token is worth nothing so long after the end that the agent was submitted for, whatever has become of it.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: the owner of a token, or a user of the cluster whom munge vouches for."""

    role: str
    """`user`, `agent`, `admin` or `metrics`."""
    name: str
    group: str | None
    manager: bool = False
    """True if a user may change all jobs of the group."""
    token: str = ""
    """The token's id; empty where there was none."""
    expires_s: float | None = None


def lasts_s(token: TokenRow) -> float:
    """Return how long the token was meant to be good for; infinite for one that does not end by itself."""
    return math.inf if token.expires_s is None else token.expires_s - token.issued_s


def new_secret() -> str:
    """Return a secret that nobody has had before."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return what is stored of a secret."""
    return hash_of(secret)


def issue(db: Connection, *, role: str, name: str, group: str | None, now_s: float) -> str:
    """Make a token that does not end by itself. Return its secret, which is stored nowhere."""
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
    """Make a token for a person, or for what reads the metrics. With `days` it ends by itself."""
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
    """Return whose token it is; None if it is nobody's, or was revoked. An expired token is still somebody's."""
    row = db.execute(_BY_HASH, {"hash_": digest(secret)}).one_or_none()
    if row is None:
        return None
    return Identity(str(row.role.value), row.name, row.group, row.manager, token=row.id, expires_s=row.expires_s)


def revoke(db: Connection, *, role: str, name: str, now_s: float) -> int:
    """End all tokens of that role and name. Return how many there were."""
    ended = update(TOKEN).where(TOKEN.c.role == Role(role), TOKEN.c.name == name, TOKEN.c.revoked_s.is_(None))
    return db.execute(ended.values(revoked_s=now_s)).rowcount


def agents_hashes(db: Connection, agent: str) -> tuple[str, ...]:
    """Return the hashes of an agent's tokens, also of those that have ended: they prove what the agent wrote before."""
    mine = select(TOKEN.c.hash).where(TOKEN.c.role == Role.AGENT, TOKEN.c.name == agent, TOKEN.c.revoked_s.is_(None))
    return tuple(db.scalars(mine))


def end_later(db: Connection, *, agent: str, now_s: float) -> None:
    """Let an agent's token end when no report of the agent can be late any more, unless it ends sooner."""
    until_s = now_s + LATE_REPORTS_S
    sooner = or_(TOKEN.c.expires_s.is_(None), TOKEN.c.expires_s > until_s)
    db.execute(update(TOKEN).where(TOKEN.c.role == Role.AGENT, TOKEN.c.name == agent, sooner).values(expires_s=until_s))


def people_tokens(db: Connection, *, now_s: float, everything: bool = False) -> tuple[TokenRow, ...]:
    """Return all tokens but the agents', the newest first; those that have ended only if `everything` is wanted."""
    wanted = select(TOKEN).where(TOKEN.c.role != Role.AGENT).order_by(TOKEN.c.issued_s.desc(), TOKEN.c.hash)
    if not everything:
        good = or_(TOKEN.c.expires_s.is_(None), TOKEN.c.expires_s > now_s)
        wanted = wanted.where(TOKEN.c.revoked_s.is_(None), good)
    return tuple(TokenRow.model_validate(row) for row in db.execute(wanted).mappings())


def one(db: Connection, token: str) -> TokenRow:
    """Return the token of a person by its id. Raises `NotFound`."""
    return TokenRow.model_validate(_locked(db, token)._mapping)


def end(db: Connection, token: str, *, now_s: float) -> TokenRow:
    """Revoke one token of a person. To revoke it once more is no error."""
    row = _locked(db, token)
    if row.revoked_s is None:
        db.execute(update(TOKEN).where(TOKEN.c.hash == row.hash).values(revoked_s=now_s))
    return one(db, token)


def rotate(db: Connection, token: str, *, now_s: float) -> TokenIssued:
    """Replace a token by a new one for the same owner, good for as long as the old one was meant to be."""
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
    """Remove people's tokens that ended before `before_s`. Return how many."""
    return _remove(db, (TOKEN.c.role != Role.AGENT) & (before_s > _ENDED_S), at_most)


def remove_ended_agents(db: Connection, *, spooling: Collection[str], now_s: float, at_most: int) -> int:
    """Remove the tokens of agents that have ended, but for those whose reports are still to be proved. Return how many.

    `spooling` are the agents with reports on the storage.
    """
    over = (TOKEN.c.role == Role.AGENT) & (now_s - LATE_REPORTS_S > _ENDED_S)
    return _remove(db, over & TOKEN.c.name.not_in(spooling), at_most)


_ENDED_S = func.coalesce(TOKEN.c.revoked_s, TOKEN.c.expires_s)


def _remove(db: Connection, which: ColumnElement[bool], at_most: int) -> int:
    some = select(TOKEN.c.hash).where(which).limit(at_most)
    return db.execute(delete(TOKEN).where(TOKEN.c.hash.in_(some))).rowcount


def _locked(db: Connection, token: str) -> Any:
    rows = db.execute(select(TOKEN).where(TOKEN.c.id == token, TOKEN.c.role != Role.AGENT).with_for_update()).all()
    if len(rows) != 1:  # 48 bits: that two begin alike is not to be expected, and neither is then touched
        raise NotFound(f"there is no token {token}: `glean token list` shows their ids")
    return rows[0]


GROUPS_NAMED_AT_MOST = 20


def groups_with_tokens(db: Connection) -> frozenset[str]:
    """Return the groups that a token which was not revoked is for."""
    found = select(TOKEN.c.group).where(TOKEN.c.group.is_not(None), TOKEN.c.revoked_s.is_(None)).distinct()
    return frozenset(db.execute(found).scalars())


def check_group(db: Connection, group: str, *, named: Iterable[str]) -> None:
    """Raise `Invalid` for a group that is neither among those that the settings name nor has a token.

    A mistyped name would else wait under a group that nobody has. Where there is no group at all yet, the site is being
    tried out by its first admin, and any name will do.
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
