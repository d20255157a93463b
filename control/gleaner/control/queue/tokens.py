"""Bearer tokens. A secret is 256 random bits; only its hash is stored, so no reader of the database has it."""

import hashlib
import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from gleaner.control.queue.errors import Invalid
from gleaner.control.queue.tables import TOKEN, Role


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose token it is."""

    role: str
    """`user`, `agent` or `admin`."""
    name: str
    group: str | None


def new_secret() -> str:
    """A secret that nobody has had before."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is stored of a secret. One round of SHA-256 is enough: nobody guesses 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def issue(db: Connection, *, role: str, name: str, group: str | None, now_s: float) -> str:
    """Make a token; the answer is its secret, which is stored nowhere."""
    if role not in {member.value for member in Role}:
        raise Invalid(f"{role!r} is no role; there are {', '.join(Role)}")
    if role == Role.USER and group is None:
        raise Invalid("a user's token needs a group")
    secret = new_secret()
    register(db, role=Role(role), name=name, group=group, token_hash=digest(secret), now_s=now_s)
    return secret


def register(db: Connection, *, role: Role, name: str, group: str | None, token_hash: str, now_s: float) -> None:
    """Store the hash of a secret that was made elsewhere."""
    row = {"hash": token_hash, "role": role, "name": name, "group": group, "issued_s": now_s, "revoked_s": None}
    db.execute(insert(TOKEN), row)


_BY_HASH = select(TOKEN.c.role, TOKEN.c.name, TOKEN.c.group).where(
    TOKEN.c.hash == bindparam("hash_"), TOKEN.c.revoked_s.is_(None)
)


def identify(db: Connection, secret: str) -> Identity | None:
    """Whose token it is; None if it is nobody's, or was revoked."""
    row = db.execute(_BY_HASH, {"hash_": digest(secret)}).one_or_none()
    return None if row is None else Identity(str(row.role.value), row.name, row.group)


def revoke(db: Connection, *, role: str, name: str, now_s: float) -> int:
    """End all tokens of that role and name; how many there were."""
    ended = update(TOKEN).where(TOKEN.c.role == Role(role), TOKEN.c.name == name, TOKEN.c.revoked_s.is_(None))
    return db.execute(ended.values(revoked_s=now_s)).rowcount
