"""The groups that there are: those that the settings name, and those that somebody has a token for."""

from collections.abc import Iterable

from sqlalchemy import Connection, select

from gleaner.control.queue.errors import Invalid
from gleaner.control.queue.tables import TOKEN

NAMED_AT_MOST = 20


def with_tokens(db: Connection) -> frozenset[str]:
    """The groups that a token which was not revoked is for."""
    found = select(TOKEN.c.group).where(TOKEN.c.group.is_not(None), TOKEN.c.revoked_s.is_(None)).distinct()
    return frozenset(db.execute(found).scalars())


def must_exist(db: Connection, group: str, *, named: Iterable[str]) -> None:
    """Raise `Invalid` for a group that is neither among those that the settings name nor has a token.

    A name that was mistyped would else wait under a group that nobody has. Where there is no group at all yet, the
    site is being tried out by its first admin, and any name will do.
    """
    known = set(named)
    if group in known:
        return
    known |= with_tokens(db)
    if not known or group in known:
        return
    names = sorted(known)
    more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    raise Invalid(
        f"group: there is no group {group}; there are {', '.join(names[:NAMED_AT_MOST])}{more}. "
        f"`glean token create --role user --name NAME --group {group}` makes it, or [groups] in control's settings"
    )
