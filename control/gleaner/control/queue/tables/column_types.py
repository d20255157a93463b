"""Types of columns, and the base of all tables.

What a state implies is a constraint in its table, so that no code path can break it. Enums are stored by value. Times
are seconds since the epoch.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from pydantic import BaseModel
from sqlalchemy import JSON, BigInteger, Dialect, Integer, String, TypeDecorator
from sqlalchemy import Text as PlainText
from sqlmodel import SQLModel
from sqlmodel._compat import SQLModelConfig

from gleaner.agent.system.untrusted import storable

BIG_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up INTEGER PRIMARY KEY only
JSON_OR_NULL = JSON(none_as_null=True)
BY_VALUE: dict[str, Any] = {"native_enum": False, "create_constraint": True, "length": 16, "values_callable": list}
"""For an `Enum`: a StrEnum's members are its values, and SQLAlchemy would store their names."""
CHURNED = {"postgresql_with": {"autovacuum_vacuum_scale_factor": "0.01"}}
"""For a table whose rows are rewritten at every transition. By default PostgreSQL lets a fifth of a table die before it
cleans up, and a claim steps over the dead rows at the front of the index of the waiting jobs."""


class StorableText(TypeDecorator[str]):
    """A text for people, which may quote anybody. What no database takes is replaced."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class Names(TypeDecorator[tuple[str, ...]]):
    """Names without line ends (of nodes, folders, schemes), sorted, as a text that a unique index can hold."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Collection[str] | None, dialect: Dialect) -> str:
        return "\n".join(sorted(value or ()))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...]:
        return tuple((value or "").splitlines())


class Document(TypeDecorator[Any]):
    """A value of a Pydantic class, as JSON."""

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
    """The last base of every table. What the API shows of it is a frozen class, which the row itself cannot be."""

    __tablename__: ClassVar[str]  # pyright: ignore[reportIncompatibleVariableOverride]
    model_config = SQLModelConfig(frozen=False)
