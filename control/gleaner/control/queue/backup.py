"""A copy of the queue's database in one file: taken while control runs, and put back while it does not.

SQLite copies itself through its online backup, PostgreSQL through `pg_dump`, `pg_restore` and `psql`. What is put back
is marked until `recovery` has made it safe (`UNFINISHED`): control does not start before that.
"""

import os
import secrets
import shutil
import sqlite3
import subprocess
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, select

from gleaner.agent.system import atomic
from gleaner.control.queue import leader
from gleaner.control.queue.database import UNFINISHED, connect, is_newer, snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.queue.tables import JOB, METADATA

PROGRAM_S = 3600.0
"""The longest time for one program of PostgreSQL's."""
COPY_PAGES = 1000
NAMED_AT_MOST = 5
"""The greatest number of tables that an error names."""
_CORE = {"leader", "job", "attempt"}
"""Tables that each version of Gleaner has, and hardly another application has all of them."""
_MARK = f"CREATE TABLE IF NOT EXISTS {UNFINISHED} (id INTEGER)"
_SQLITE, _POSTGRESQL = b"SQLite format 3\x00", b"PGDMP"


class BackupFailed(QueueError):
    """The copy was not taken, or not put back; one line."""


def back_up(engine: Engine, file: Path) -> int:
    """Write a copy of the database to a new file, readable by its owner alone. Return its size in bytes.

    The copy is of one instant, and control may run. A file of that name is replaced at the end, by a whole copy.
    Raises `BackupFailed`, or `OSError`.
    """
    if engine.dialect.name == "sqlite" and file.exists() and file.samefile(_file_of(engine)):
        raise BackupFailed(f"{file} is the database itself: name another file")
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if engine.dialect.name == "sqlite":
            _copy_sqlite(_file_of(engine), new)
        else:
            _run(
                "pg_dump",
                ["--no-password", "--format=custom", "--no-owner", "--no-privileges", f"--file={new}"],
                engine,
            )
        _sync(new)
        new.replace(file)
        atomic.sync_folder(file.parent)
    finally:
        new.unlink(missing_ok=True)
    return file.stat().st_size


@contextmanager
def put_back(engine: Engine, file: Path, *, replace: bool) -> Generator[Engine]:
    """Put the copy back. Yield an engine on which it is made safe (`recovery`); then it is the queue's database.

    SQLite's copy is made safe beside the database, which keeps its place until the end. PostgreSQL's is loaded at once,
    in one transaction, and is marked until it is safe.

    Raises `BackupFailed` for a copy of the other kind of database, if control runs, or, without `replace`, if the
    database has jobs.
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
    new = _beside(place)
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
            db.execute("PRAGMA journal_mode=DELETE")  # all is in the one file
        _check_free(engine, replace=replace)
        engine.dispose()
        _sync(new)
        _remove_sqlite(place, but_for_the_file=True)
        new.replace(place)
        atomic.sync_folder(place.parent)
    finally:
        _remove_sqlite(new)


def _check_free(engine: Engine, *, replace: bool) -> None:
    """Raise `BackupFailed` if the database must not be replaced now."""
    if engine.dialect.name == "sqlite" and not _file_of(engine).exists():
        return
    with snapshot(engine) as db:
        there = set(inspect(db).get_table_names())
        if engine.dialect.name != "sqlite":
            _check_ours(db, there, replace=replace)
        if "leader" in there and (who := leader.leader(db, now=leader.NOW)) is not None:
            raise BackupFailed(f"control runs ({who}): stop all control programs, and try again")
        is_ours = UNFINISHED in there  # what a restore has left that was broken off
        if "job" in there and not replace and not is_ours and db.execute(select(JOB.c.id).limit(1)).first() is not None:
            raise BackupFailed("the database has jobs, which would be lost: back it up, and give --replace")


def _check_ours(db: Connection, there: set[str], *, replace: bool) -> None:
    """Raise `BackupFailed` if tables of another application would be dropped from PostgreSQL's schema.

    Many applications have a table `alembic_version`, and some have one called `job`.
    """
    ours = {"alembic_version", *METADATA.tables}
    named = ", ".join(sorted(there - ours)[:NAMED_AT_MOST]) or "no other tables"
    if there & ours and UNFINISHED not in there and not there >= _CORE:
        raise BackupFailed(
            f"the database's schema is another application's ({', '.join(sorted(there)[:NAMED_AT_MOST])}): give Gleaner"
            " a database of its own, in [queue] url"
        )
    if is_newer(MigrationContext.configure(db).get_current_revision()) and not (replace and there >= _CORE):
        raise BackupFailed(
            f"the database is of a newer Gleaner, and all tables of its schema would be dropped, with {named}: back it"
            " up, and give --replace"
        )


def finish(db: Connection) -> None:
    """Remove the mark: the database is safe."""
    db.exec_driver_sql(f"DROP TABLE IF EXISTS {UNFINISHED}")


def _file_of(engine: Engine) -> Path:
    return Path(str(engine.url.database))


def _beside(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")


def _copy_sqlite(source: Path, into: Path) -> None:
    """Copy a database that others may write to. Raises `BackupFailed` if it is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old, closing(sqlite3.connect(into)) as new:
            old.backup(new, pages=COPY_PAGES)
            new.execute("PRAGMA journal_mode=DELETE")  # else the copy would be three files
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
    """Replace all tables by those of the copy, in one transaction, and mark them."""
    script = file.with_name(f".{file.name}.sql")
    drop = "".join(f'DROP TABLE IF EXISTS "{name}" CASCADE;' for name in _tables(engine))
    try:
        os.close(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        _run("pg_restore", ["--no-owner", "--no-privileges", f"--file={script}", str(file)], None)
        in_one = ["--no-password", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]
        _run("psql", [*in_one, f"--command={drop}{_MARK}", f"--file={script}"], engine)
    finally:
        script.unlink(missing_ok=True)


def _tables(engine: Engine) -> set[str]:
    """Return the names of all tables that are Gleaner's: those of a newer version, too, where one has been here.

    A table that stays would be in the way when that version migrates the database again.
    """
    ours = {"alembic_version", UNFINISHED, *METADATA.tables}
    with snapshot(engine) as db:
        found = MigrationContext.configure(db).get_current_revision()
        return ours | set(inspect(db).get_table_names()) if is_newer(found) else ours


def _run(program: str, arguments: Sequence[str], engine: Engine | None) -> None:
    """Run a program of PostgreSQL's, connected as control is. The password is not on its command line."""
    path = shutil.which(program)
    if path is None:
        raise BackupFailed(
            f"{program} is not installed here: install PostgreSQL's client programs of the server's version"
        )
    known = {"PGOPTIONS": "-c client_min_messages=error"} | ({} if engine is None else _environment(engine))
    try:
        done = subprocess.run(
            [path, *arguments],
            env=os.environ | known,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=PROGRAM_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackupFailed(f"{program} has not ended within {PROGRAM_S:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BackupFailed(said[0] if said else f"{program} ended with {done.returncode}")


_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "service": "PGSERVICE",
}


def _environment(engine: Engine) -> dict[str, str]:
    """Return the variables of libpq that connect as the engine does (libpq-envars.html)."""
    _, options = engine.dialect.create_connect_args(engine.url)
    return {_VARIABLES[name]: str(value) for name, value in options.items() if name in _VARIABLES}
