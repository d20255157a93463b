"""The database: connections, transactions, and the check that its tables belong to this version.

SQLite runs in WAL mode with `synchronous=FULL`, so that a commit is on disk before an agent learns of it. With
`NORMAL`, a power cut could undo the last commits. Then an attempt number could be used twice, and a result that its
agent believes to be delivered would be computed again. PostgreSQL's default (`synchronous_commit=on`) is equally safe.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gleaner.control.queue.errors import Invalid, QueueBusy, SchemaMismatch

BUSY_TIMEOUT_S = 10.0
"""The time that a transaction waits for the database before it raises `QueueBusy`."""
CAMPAIGN_TIMEOUT_S = 120.0
"""The time limit for one statement that writes all jobs of a campaign. A hundred thousand jobs take seconds, and
several times as long on a busy server."""
_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c jit=off"
    f" -c lock_timeout={BUSY_TIMEOUT_S:.0f}s -c statement_timeout={BUSY_TIMEOUT_S:.0f}s"
    f" -c idle_in_transaction_session_timeout={BUSY_TIMEOUT_S:.0f}s"
)
"""All statements find their rows by index, whatever the values, so a new plan for each call would cost more than the
statement itself. The server ends the transaction of a program that was stopped within it, so that another program can
lead (see `leader.holds`)."""
_WIRE: dict[str, Any] = {
    "connect_timeout": int(BUSY_TIMEOUT_S),
    "tcp_user_timeout": int(BUSY_TIMEOUT_S * 1000),
    "keepalives_idle": int(BUSY_TIMEOUT_S / 2),
    "keepalives_interval": 1,
    "keepalives_count": int(BUSY_TIMEOUT_S / 2),
}
"""With these options, a server that has vanished from the network is noticed within `BUSY_TIMEOUT_S` seconds, whether
or not data was being sent."""
_WAS_IDLE = "25P03"
_MIGRATIONS = Path(__file__).parent / "migrations"
_WRITER = "gleaner_writer"
"""The execution option with the lock on which the writing threads of this process wait for their turn (SQLite)."""
_BEGIN = "gleaner_begin"
UNFINISHED = "restore_unfinished"
"""A table that exists after a backup was loaded, until `recovery` has made the database safe."""


@dataclass(frozen=True, slots=True)
class _Turn:
    lock: threading.Lock
    patience_s: float


def connect(url: str) -> Engine:
    """Return the engine for an SQLAlchemy URL. No connection is opened yet, but SQLite's folder must exist.

    Raises `Invalid` for a URL that is neither for SQLite nor for PostgreSQL (psycopg).
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise Invalid(f"queue.url is no database URL: {error}") from error
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        if not parsed.database or parsed.database == ":memory:":
            raise Invalid("queue.url must name a file (sqlite:////path/queue.db): a queue in memory would be lost")
        folder = Path(parsed.database).parent
        if not folder.is_dir():
            raise Invalid(f"queue.url: there is no folder {folder}; make it, owned by the account that runs control")
        return _sqlite(parsed)
    if parsed.drivername == "postgresql+psycopg":
        return create_engine(
            url,
            pool_size=20,
            max_overflow=25,  # together: Starlette's 40 threads, those for unknown callers, and those for /health
            pool_timeout=BUSY_TIMEOUT_S,
            connect_args=_WIRE | {"application_name": "gleaner", "options": _OPTIONS},
        )
    raise Invalid(f"queue.url: {parsed.drivername} is not supported; use sqlite:////PATH or postgresql+psycopg://...")


def _sqlite(url: URL) -> Engine:
    patience_s = float(str(url.query.get("timeout", BUSY_TIMEOUT_S)))
    engine = create_engine(
        url,
        pool_size=20,
        max_overflow=25,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={"timeout": patience_s, "check_same_thread": False},
        execution_options={_WRITER: _Turn(threading.Lock(), patience_s)},
    )

    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        dbapi_connection.isolation_level = None  # the driver itself would begin transactions at other moments
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-65536"):
            dbapi_connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))

    return engine


@contextmanager
def transaction(engine: Engine) -> Generator[Connection]:
    """Run one transaction that can write. It is committed at the end, or rolled back if an exception leaves it.

    On SQLite, the transaction holds the write lock from its beginning, so its reads stay valid. Raises `QueueBusy` or
    `SchemaMismatch`.
    """
    with _translated(engine), _writers_turn(engine), engine.connect() as db:
        if engine.dialect.name == "sqlite":
            db.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        with db.begin():
            yield db


@contextmanager
def snapshot(engine: Engine) -> Generator[Connection]:
    """Run one read-only transaction, which sees the queue as it was at one instant."""
    with _translated(engine), engine.connect() as db:
        if engine.dialect.name == "postgresql":
            db.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield db


def allow_whole_campaign(db: Connection) -> None:
    """Raise the time limit for the statements of this transaction, so that they can write all jobs of a campaign.

    SQLite has no limit for a statement, because other writers wait for the transaction anyway.
    """
    if db.dialect.name == "postgresql":
        db.exec_driver_sql(f"SET LOCAL statement_timeout = '{CAMPAIGN_TIMEOUT_S:.0f}s'")


def migrate(engine: Engine) -> None:
    """Create this version's tables in an empty database. Raises `SchemaMismatch` if it has another version's tables."""
    with _translated(engine), _writers_turn(engine), engine.connect() as connection:
        config = _alembic()
        found = MigrationContext.configure(connection).get_current_revision()
        connection.rollback()
        _refuse_others(found)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


def check_schema(engine: Engine) -> None:
    """Raise `SchemaMismatch` unless the tables belong to this version."""
    with _translated(engine), engine.connect() as connection:
        check_tables(connection)


def check_tables(db: Connection) -> None:
    """Check the tables within a transaction, because another program might have migrated them since this one
    started."""
    check_revision(MigrationContext.configure(db).get_current_revision())
    if inspect(db).has_table(UNFINISHED):
        raise SchemaMismatch("a backup was put back, and that was broken off: run `glean control restore` again")


def check_revision(found: str | None) -> None:
    """Raise `SchemaMismatch` unless this is the revision of this version's tables.

    None means that there are no tables.
    """
    _refuse_others(found)
    if found is None:
        raise SchemaMismatch("the queue's database has no tables yet: run `glean control migrate`")


@cache
def _own_revision() -> str:
    return str(ScriptDirectory.from_config(_alembic()).get_current_head())


def _refuse_others(found: str | None) -> None:
    if found is not None and found > _own_revision():
        raise SchemaMismatch(
            f"the queue's database is of a newer Gleaner (tables {found}): install that one again, or put back a backup"
            " from before, with `glean control restore FILE --replace`"
        )
    if found not in {None, _own_revision()}:
        raise SchemaMismatch(
            f"the queue's database is of an earlier Gleaner (tables {found}), which this version does not read:"
            " let its jobs end there, and begin here with an empty database"
        )


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _writers_turn(engine: Engine) -> Generator[None]:
    # SQLite waits for the write lock in growing steps. This is slow, and the last caller often wins.
    turn: _Turn | None = engine.get_execution_options().get(_WRITER)
    if turn is None:
        yield
        return
    if not turn.lock.acquire(timeout=turn.patience_s):
        raise QueueBusy("the queue's database is locked by another transaction: try again")
    try:
        yield
    finally:
        turn.lock.release()


@contextmanager
def _translated(engine: Engine) -> Generator[None]:
    """Translate the driver's errors into the queue's own errors, each with a message of one line."""
    try:
        yield
    except PoolTimeoutError as error:
        raise QueueBusy("all connections to the queue's database are in use: try again") from error
    except (OperationalError, ProgrammingError) as error:
        said = _first_line(error)
        if (
            "no such table" in said
            or "no such column" in said
            or getattr(error.orig, "sqlstate", None) in {"42P01", "42703"}
        ):
            raise SchemaMismatch(
                f"the queue's database does not have this version's tables ({said}): run `glean control migrate`"
            ) from error
        if isinstance(error, ProgrammingError):
            raise
        if "locked" in said or "lock timeout" in said:
            raise QueueBusy("the queue's database is locked by another program: try again") from error
        where = engine.url.render_as_string(hide_password=True)
        raise QueueBusy(f"the queue's database {where} does not work now: {said}") from error
    except (DataError, UnicodeEncodeError) as error:
        raise Invalid(f"the queue's database cannot hold a value of this: {_first_line(error)}") from error
    except InternalError as error:
        if getattr(error.orig, "sqlstate", None) != _WAS_IDLE:
            raise
        raise QueueBusy("this program stood still within a transaction, which is undone: try again") from error


def _first_line(error: Exception) -> str:
    told = error.orig if isinstance(error, DBAPIError) else error
    lines = str(told).strip().splitlines()
    return lines[0] if lines else type(told).__name__
