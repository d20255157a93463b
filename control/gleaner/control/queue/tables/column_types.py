"""Types of columns, and the base class of all tables.

Each table has constraints for the facts that a state implies, so that no code path can violate them. Enums are stored
by value. Times are seconds since the epoch.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from pydantic import BaseModel
from sqlalchemy import JSON, BigInteger, Dialect, Index, Integer, String, TextClause, TypeDecorator, text
from sqlalchemy import Text as PlainText
from sqlmodel import SQLModel
from sqlmodel._compat import SQLModelConfig

from gleaner.agent.system.untrusted import storable

BIG_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers only INTEGER PRIMARY KEY automatically
JSON_OR_NULL = JSON(none_as_null=True)
BY_VALUE: dict[str, Any] = {"native_enum": False, "create_constraint": True, "length": 16, "values_callable": list}
"""The options of an `Enum` column. They store the values of the members, whereas SQLAlchemy would store their names."""
CHURNED = {"postgresql_with": {"autovacuum_vacuum_scale_factor": "0.01"}}
"""The options of a table whose rows are rewritten at every transition. By default, PostgreSQL cleans up a table only
when a fifth of its rows are dead, and a claim would step over the dead rows at the front of the index of the waiting
jobs."""


def partial_index(name: str, *columns: str | TextClause, where: str, unique: bool = False) -> Index:
    """Return an index of the rows that satisfy a condition. Only a query with exactly the same condition uses it."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class StorableText(TypeDecorator[str]):
    """The text of a message, which can quote any input. Characters that no database accepts are replaced."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Names(TypeDecorator[tuple[str, ...]]):
    """Names without line ends (of nodes, folders or schemes), sorted and stored as a text that a unique index can
    hold."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Collection[str] | None, dialect: Dialect) -> str:
        return "\n".join(sorted(value or ()))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...]:
        return tuple((value or "").splitlines())


class Document(TypeDecorator[Any]):
    """An instance of a Pydantic class, stored as JSON."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[BaseModel]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: BaseModel | None, dialect: Dialect) -> Any:
        return None if value is None else value.model_dump(mode="json")

    def process_result_value(self, value: Any, dialect: Dialect) -> BaseModel | None:
        return None if value is None else self.kind.model_validate(value)


class QueueRecord(SQLModel):
    """The base class of every table. The API shows frozen classes instead, because a row cannot be frozen."""

    __tablename__: ClassVar[str]  # pyright: ignore[reportIncompatibleVariableOverride]
    model_config = SQLModelConfig(frozen=False)
