"""Types of columns that several modules of tables share."""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Enum, Integer
from sqlmodel import JSON

BIG: Any = BigInteger()
BIG_ID: Any = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up INTEGER PRIMARY KEY only
JSON_OR_NULL: Any = JSON(none_as_null=True)


def words(kind: type[StrEnum], name: str) -> Any:
    """One of the members, stored by its value."""
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=16,
        values_callable=_values,  # SQLAlchemy would store the members' names
    )


def _values(kind: type[StrEnum]) -> list[str]:
    return [member.value for member in kind]
