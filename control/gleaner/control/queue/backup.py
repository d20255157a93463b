"""Copy the queue's database to one file while control runs, and restore it from the file while control is stopped.

SQLite is copied in one read transaction, and PostgreSQL by `pg_dump`, `pg_restore` and `psql`. A restored database is
marked as unfinished (`UNFINISHED`) until `recovery` has made it safe, and control does not start before then.
"""

import os
import secrets
import shutil
import sqlite3
import subprocess
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, Engine, inspect

from gleaner.agent.system import atomic
from gleaner.control.queue import leader, queries
from gleaner.control.queue.database import UNFINISHED, connect, snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.queue.tables import METADATA

LONGEST_S = 3600.0
"""The longest time for one of PostgreSQL's programs."""
NAMED_AT_MOST = 5
"""The greatest number of tables that an error message lists."""
_CORE = {"leader", "job", "attempt"}
"""Tables that every version of Gleaner has. Another application is unlikely to have all of them."""
_OURS = {"alembic_version", UNFINISHED, *METADATA.tables}
_MARK = f"CREATE TABLE IF NOT EXISTS {UNFINISHED} (id INTEGER)"
_SQLITE, _POSTGRESQL = b"SQLite format 3\x00", b"PGDMP"


class BackupFailed(QueueError):
    """The database was not copied, or not restored. The message is one line."""


def back_up(engine: Engine, file: Path) -> int:
    """Write a copy of the database to a new file that only its owner can read. Return its size in bytes.

    The copy shows the database at one instant, and control can keep running. Raises `BackupFailed`, for example if the
    file already exists, or `OSError`.
    """
    if file.exists():
        raise BackupFailed(f"{file} is there already: name another file")
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if engine.dialect.name == "sqlite":
            _copy_sqlite(_file_of(engine), new)
        else:
            plain = ["--no-password", "--format=custom", "--no-owner", "--no-privileges", f"--file={new}"]
            with _program("pg_dump", plain, engine):
                pass
        _sync(new)
        os.link(new, file)
        atomic.sync_folder(file.parent)
    except FileExistsError:
        raise BackupFailed(f"{file} is there already: name another file") from None
    finally:
        new.unlink(missing_ok=True)
    return file.stat().st_size


@contextmanager
def put_back(engine: Engine, file: Path, *, replace: bool) -> Generator[Engine]:
    """Restore the copy, and yield an engine with which `recovery` makes it safe. Afterwards the copy is the queue's
    database.

    A SQLite copy is made safe in a separate file, and replaces the database only at the end. A PostgreSQL copy replaces
    the database immediately, in one transaction, and stays marked until it is safe.

    Raises `BackupFailed` if the copy comes from the other kind of database, if control runs, or if the database has
    jobs and `replace` is not set.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    with file.open("rb") as copy:
        begins = copy.read(len(_SQLITE))
    if not begins.startswith(_SQLITE if is_sqlite else _POSTGRESQL):
        raise BackupFailed(f"{file} is no backup of a {'SQLite' if is_sqlite else 'PostgreSQL'} database")
    _check_free(engine, replace=replace)
    if not is_sqlite:
        _load_postgresql(engine, file)
        yield engine
        return
    place = _file_of(engine)
    new = place.with_name(f".{place.name}.new")
    _remove_sqlite(new)
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        owner = (place if place.exists() else place.parent).stat()
        if os.geteuid() == 0:
            os.chown(new, owner.st_uid, owner.st_gid)
        _copy_sqlite(file, new)
        with closing(sqlite3.connect(new)) as db:
            db.execute(_MARK)
            db.commit()
        safe = connect(f"sqlite:///{new}")
        yield safe
        safe.dispose()
        with closing(sqlite3.connect(new)) as db:
            db.execute("PRAGMA journal_mode=DELETE")  # so that all data is in this one file
        _check_free(engine, replace=replace)
        engine.dispose()
        _sync(new)
        _remove_sqlite(place, but_for_the_file=True)
        new.replace(place)
        atomic.sync_folder(place.parent)
    finally:
        _remove_sqlite(new)


def _check_free(engine: Engine, *, replace: bool) -> None:
    """Raise `BackupFailed` if replacing the database is not allowed now."""
    if engine.dialect.name == "sqlite" and not _file_of(engine).exists():
        return
    with snapshot(engine) as db:
        there = set(inspect(db).get_table_names())
        if engine.dialect.name != "sqlite":
            _check_ours(there)
        if "leader" in there and (who := leader.leader(db, now=leader.NOW)) is not None:
            raise BackupFailed(f"control runs ({who}): stop all control programs, and try again")
        is_ours = UNFINISHED in there  # left over from an interrupted restore
        if "job" in there and not replace and not is_ours and queries.has_jobs(db):
            raise BackupFailed("the database has jobs, which would be lost: back it up, and give --replace")


def _check_ours(there: set[str]) -> None:
    """Raise `BackupFailed` if PostgreSQL's schema has tables of another application or of a newer Gleaner.

    Many applications have a table `alembic_version`, and some have a table `job`.
    """
    if there - _OURS or (there and UNFINISHED not in there and not there >= _CORE):
        raise BackupFailed(
            f"the database has tables that this version does not know ({', '.join(sorted(there)[:NAMED_AT_MOST])}):"
            " give Gleaner a database of its own, in [queue] url, or drop them"
        )


def finish(db: Connection) -> None:
    """Remove the mark, because the database is now safe."""
    db.exec_driver_sql(f"DROP TABLE IF EXISTS {UNFINISHED}")


def _file_of(engine: Engine) -> Path:
    return Path(str(engine.url.database))


def _copy_sqlite(source: Path, into: Path) -> None:
    """Copy a database to which other programs might write. Raises `BackupFailed` if it is damaged.

    The copy is one read transaction, because SQLite would otherwise restart the copy at each write by another program.
    """
    read_only = sqlite3.connect(f"file:{source}?mode=ro", uri=True, isolation_level=None)
    try:
        with closing(read_only) as old, closing(sqlite3.connect(into)) as new:
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM sqlite_master").fetchone()
            old.backup(new)
            new.execute("PRAGMA journal_mode=DELETE")  # otherwise the copy would consist of three files
            found = str(new.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        raise BackupFailed(f"{source}: {error}") from error
    if found != "ok":
        raise BackupFailed(f"{source} is damaged: {found}")


def _remove_sqlite(file: Path, *, but_for_the_file: bool = False) -> None:
    for name in (f"{file.name}-wal", f"{file.name}-shm", *(() if but_for_the_file else (file.name,))):
        file.with_name(name).unlink(missing_ok=True)


def _sync(file: Path) -> None:
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _load_postgresql(engine: Engine, file: Path) -> None:
    """Replace all tables with those of the copy, in one transaction, and mark the database as unfinished.

    The output of `pg_restore` is piped to `psql`, which commits at the end of its input. This function closes that
    input only if pg_restore has succeeded.
    """
    drop = "".join(f'DROP TABLE IF EXISTS "{name}" CASCADE;' for name in sorted(_OURS))
    in_one = ["--no-password", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
    script = ["--no-owner", "--no-privileges", "--file=-", str(file)]
    with (
        _program("psql", [*in_one, f"--command={drop}{_MARK}", "--file=-"], engine, stdin=subprocess.PIPE) as psql,
        _program("pg_restore", script, None, stdout=psql.stdin),
    ):
        pass


@contextmanager
def _program(
    name: str,
    arguments: Sequence[str],
    engine: Engine | None,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: IO[bytes] | int | None = subprocess.DEVNULL,
) -> Generator[subprocess.Popen[bytes]]:
    """Run one of PostgreSQL's programs with control's connection settings, and wait until it ends. Raises
    `BackupFailed`.

    The password does not appear on the command line. The program is killed if the caller fails before the program ends.
    """
    path = shutil.which(name)
    if path is None:
        raise BackupFailed(
            f"{name} is not installed here: install PostgreSQL's client programs of the server's version"
        )
    known = {"PGOPTIONS": "-c client_min_messages=error"}
    if engine is not None:
        _, options = engine.dialect.create_connect_args(engine.url)
        options.pop("context", None)  # specific to psycopg
        known |= {"PGPASSWORD": password} if (password := options.pop("password", None)) else {}
        arguments = [f"--dbname={make_conninfo(**options)}", *arguments]
    with (
        TemporaryFile() as said,
        subprocess.Popen(
            [path, *arguments], env=os.environ | known, stdin=stdin, stdout=stdout, stderr=said
        ) as program,
    ):
        try:
            yield program
            if program.stdin is not None:
                program.stdin.close()
            program.wait(LONGEST_S)
        except BackupFailed:
            if not program.poll():  # otherwise this program's own failure has also ended the other program
                raise
        except subprocess.TimeoutExpired:
            raise BackupFailed(f"{name} has not ended within {LONGEST_S:.0f} s") from None
        finally:
            program.kill()
        if program.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise BackupFailed(lines[0] if lines else f"{name} ended with {program.returncode}")
