"""SQLite databases for tests. All tables are made once a process; each test has a copy of its own."""

from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from gleaner.control.queue.database import connect, migrate


@cache
def _with_tables() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        engine = connect(f"sqlite:///{path}")
        migrate(engine)
        engine.dispose()
        return path.read_bytes()


def new_sqlite(folder: Path) -> str:
    """The URL of a fresh database with all tables, `queue.db` in this folder."""
    path = folder / "queue.db"
    assert not path.exists(), "a restart goes on with what there is"
    path.write_bytes(_with_tables())
    return f"sqlite:///{path}"


def share_compiled_statements(patch: pytest.MonkeyPatch) -> None:
    """Let all engines of this process share the statements that SQLAlchemy has compiled.

    SQLAlchemy keeps them for each engine and each dialect object, and each test has an engine of its own: without this
    a sixth of the queue's tests is spent on compiling.
    """
    compiled: MutableMapping[Any, Any] = {}

    def sharing(*words: Any, **options: Any) -> Engine:
        engine = create_engine(*words, **options)
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        patch.setattr(dialect, "__hash__", lambda self: hash(type(self)))
        patch.setattr(dialect, "__eq__", lambda self, other: type(self) is type(other))
    patch.setattr("gleaner.control.queue.database.create_engine", sharing)
