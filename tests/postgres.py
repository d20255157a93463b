"""A PostgreSQL server of our own, for tests and benchmarks: real, in a temporary folder, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

LARGE_BYTES = 4 * 2**20
"""A database with such a table is made anew: to empty it would leave a file that each look has to read."""
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY = """
DO $$
DECLARE name text;
BEGIN
    SET LOCAL session_replication_role = replica;  -- rows may refer to rows that are gone already
    FOR name IN SELECT relname FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
            AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL
    LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
END $$
"""
_LARGEST_BYTES = "SELECT max(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this account."""


class PostgresMissing(Exception):
    """The server's programs are not installed."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, reached over a unix socket in a folder that only its account and root can enter."""

    folder: Path

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{ACCOUNT}@/{database}?host={self.folder}"

    def create(self, database: str, *, template: str = "template1") -> str:
        """Make a database; the answer is its URL."""
        with psycopg.connect(dbname="postgres", host=str(self.folder), user=ACCOUNT, autocommit=True) as connection:
            names = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(database), Identifier(template))
            connection.execute(names)
        return self.url(database)

    def version(self, database: str) -> str:
        """The version of a database's tables."""
        with psycopg.connect(dbname=database, host=str(self.folder), user=ACCOUNT, autocommit=True) as connection:
            (version,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or ("",)
        return str(version)

    def empty(self, database: str, *, template: str, version: str) -> None:
        """Remove all rows, and end all connections: the database is then as it was when it was made.

        That takes some ms; to make a database and to drop it takes half a second.
        """
        with psycopg.connect(dbname=database, host=str(self.folder), user=ACCOUNT, autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            connection.execute(_EMPTY)
            connection.execute("DELETE FROM alembic_version WHERE version_num <> %s", (version,))
            connection.execute("INSERT INTO alembic_version VALUES (%s) ON CONFLICT DO NOTHING", (version,))
            (largest_bytes,) = connection.execute(_LARGEST_BYTES).fetchone() or (0,)
        if largest_bytes > LARGE_BYTES:
            self.drop(database)
            self.create(database, template=template)

    def drop(self, database: str) -> None:
        with psycopg.connect(dbname="postgres", host=str(self.folder), user=ACCOUNT, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(database)))


def programs() -> Path:
    """The folder of the newest installed server's programs. Raises `PostgresMissing`."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("postgres")
    if elsewhere:
        return Path(elsewhere).resolve().parent
    raise PostgresMissing("PostgreSQL's server programs are missing: apt-get install postgresql")


@contextmanager
def running(*, durable: bool, place: Path | None = None, settings: tuple[str, ...] = ()) -> Iterator[Server]:
    """A fresh server. Not `durable`, it does not wait for the disk: quicker, for tests that cut no power."""
    bin_folder = programs()
    folder = Path(tempfile.mkdtemp(prefix="gleaner-postgres-", dir=place))
    as_account: dict[str, Any] = {}
    if os.geteuid() == 0:
        shutil.chown(folder, ACCOUNT, pwd.getpwnam(ACCOUNT).pw_gid)
        as_account["user"] = ACCOUNT
    data, log = folder / "data", folder / "log"
    env = {"PATH": f"{bin_folder}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}

    def run(*command: str) -> None:
        result = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, **as_account)
        if result.returncode:
            said = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{command[0]}: {result.stderr or result.stdout}{said}")

    options = [f"unix_socket_directories={folder}", "listen_addresses=", "max_connections=120", *settings]
    if not durable:
        options += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
    try:
        run("initdb", "-D", str(data), "-U", ACCOUNT, "-A", "trust", "-E", "UTF8", "--no-sync")
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in (each.split("=", 1) for each in options))
        run("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-t", "60", "start")
        try:
            yield Server(folder)
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
