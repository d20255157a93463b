"""The encrypted secrets of groups: how they are set, listed and removed.

A secret applies to all URLs below its own. If several apply, the one with the longest URL is used.
"""

from pathlib import Path

from cryptography.fernet import MultiFernet
from pydantic import SecretStr
from sqlalchemy import Connection, and_, delete, insert, select, update
from sqlalchemy.sql import ColumnElement

from gleaner.agent.common.allowed_urls import location
from gleaner.agent.messages import CredentialGiven
from gleaner.control.models.secrets import MOST_SECRETS, SecretPut, SecretRow
from gleaner.control.queue import secret_key
from gleaner.control.queue.errors import Conflict, KeyFault, NotFound
from gleaner.control.queue.tables import SECRET

_SHOWN = [column for column in SECRET.c if column.name != "sealed"]


def rows(db: Connection, group: str | None) -> tuple[SecretRow, ...]:
    """Return the secrets of a group, or of all groups for None, sorted by name."""
    wanted = select(*_SHOWN).order_by(SECRET.c.name, SECRET.c.group)
    if group is not None:
        wanted = wanted.where(SECRET.c.group == group)
    return tuple(SecretRow(**row) for row in db.execute(wanted).mappings())


def row(db: Connection, group: str, name: str) -> SecretRow:
    """Return one secret. Raises `NotFound`."""
    for each in rows(db, group):
        if each.name == name:
            return each
    raise NotFound(f"group {group} has no secret {name}: `glean secret list` shows what there is")


def put(db: Connection, given: SecretPut, *, group: str, setter: str, keys: MultiFernet, now_s: float) -> SecretRow:
    """Store a secret in place of any older one with its name. Raises `Conflict` if another one has the same URL."""
    others = [each for each in rows(db, group) if each.name != given.name]
    for other in others:
        if location(other.url) == location(given.url):
            raise Conflict(f"the secret {other.name} is for {given.url}: set that one, or remove it first")
    if len(others) >= MOST_SECRETS:
        raise Conflict(
            f"group {group} has {MOST_SECRETS} secrets, which is the most: remove some with `glean secret rm`"
        )
    sealed = keys.encrypt(given.value.get_secret_value().encode())
    now = {"url": given.url, "kind": given.kind, "sealed": sealed, "set_s": now_s, "setter": setter}
    if not db.execute(update(SECRET).where(_is(group, given.name)).values(now)).rowcount:
        db.execute(insert(SECRET).values(group=group, name=given.name, **now))
    return row(db, group, given.name)


def remove(db: Connection, group: str, name: str) -> None:
    """Delete a secret. Raises `NotFound`."""
    row(db, group, name)
    db.execute(delete(SECRET).where(_is(group, name)))


def find(db: Connection, group: str, url: str, key_file: Path) -> CredentialGiven | None:
    """Return the group's secret for a URL, for the agent that is about to use it, or None if the group has none."""
    where = location(url)
    mine = db.execute(select(SECRET.c.url, SECRET.c.sealed).where(SECRET.c.group == group)).all()
    fitting = [row for row in mine if where.is_within(location(row.url))]
    if not fitting:
        return None
    best = max(fitting, key=lambda row: len(location(row.url).folders))
    value = fault = ""
    try:
        value = secret_key.decrypt(key_file, bytes(best.sealed))
    except KeyFault as error:
        fault = str(error)
    return CredentialGiven(url=best.url, value=SecretStr(value), fault=fault)


def _is(group: str, name: str) -> ColumnElement[bool]:
    return and_(SECRET.c.group == group, SECRET.c.name == name)
