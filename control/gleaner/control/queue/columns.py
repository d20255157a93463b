"""Columns and constraints as the queue's tables write them; the tables are in `schema`."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Dialect, Enum, Integer, TypeDecorator, text
from sqlalchemy import Text as PlainText

from gleaner.agent.system.untrusted import storable

BIG = BigInteger()
BIG_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up INTEGER PRIMARY KEY only
JSON_OR_NULL = JSON(none_as_null=True)
CHURNED: dict[str, Any] = {"postgresql_with": {"autovacuum_vacuum_scale_factor": "0.01"}}
"""For a table whose rows are rewritten at every transition. By default PostgreSQL lets a fifth of a table die before it
cleans up, and a claim steps over the dead rows at the front of the index of the waiting jobs."""


class Text(TypeDecorator[str]):
    """A text for people, which may quote anybody. What no database takes is replaced."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


def words(kind: type[StrEnum], name: str) -> Any:
    """Return the type of a column that holds one of the members, stored by its value."""
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=16,
        values_callable=list,  # a StrEnum's members are its values; SQLAlchemy would store their names
    )


def not_null(name: str, type_: Any, *more: Any, **words: Any) -> Column[Any]:
    """Return a column that always has a value. A plain `Column` may be null."""
    return Column(name, type_, *more, nullable=False, **words)


def listed(*words: StrEnum) -> str:
    """Return the words as SQL writes a list of them, sorted, so that the text is always the same.

    >>> from gleaner.control.states import State
    >>> listed(State.SAVED, State.NEW)
    "'New', 'Saved'"
    """
    return ", ".join(f"'{word.value}'" for word in sorted(words))


def only_where(condition: str) -> dict[str, Any]:
    """Return what makes an index one of those rows only."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}
