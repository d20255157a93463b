"""What several modules of tables share: types of columns, and a model's plain table."""

from enum import StrEnum
from typing import Any, cast

from sqlalchemy import BigInteger, Enum, Integer, Table
from sqlmodel import JSON, SQLModel

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


def table(model: type[SQLModel]) -> Table:
    """The plain table of a model, as statements take it."""
    return cast(Table, cast(Any, model).__table__)  # SQLModel adds it when the class is made
