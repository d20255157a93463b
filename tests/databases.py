"""SQLite databases for tests. All tables are made once a process; each test has a copy of its own."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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
