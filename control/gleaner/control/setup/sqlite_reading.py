"""Open the queue's SQLite database so that nothing of it is written. Standard library only."""

import sqlite3
from contextlib import closing
from pathlib import Path


def opened(path: Path, patience_s: float) -> closing[sqlite3.Connection]:
    """Open an SQLite database of which nothing is written. Raises `sqlite3.Error`."""
    if not path.exists():
        raise sqlite3.OperationalError(f"there is no database {path}: run `glean control migrate`")
    # Without a log nobody has it open; SQLite would make one even to read.
    way = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return closing(sqlite3.connect(f"{path.as_uri()}?{way}", uri=True, timeout=patience_s))
