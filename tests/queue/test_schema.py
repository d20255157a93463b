"""The tables: a database of another version is one clear line, and so is one that does not work."""

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, create_mock_engine, make_url, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.queue.queue_harness import QueueHarness

from gleaner.control.models.base import replaced
from gleaner.control.models.drains import DrainTask
from gleaner.control.queue import drains, queries
from gleaner.control.queue.database import check_schema, connect, migrate, snapshot, transaction
from gleaner.control.queue.errors import Invalid, QueueBusy, SchemaMismatch
from gleaner.control.queue.tables import METADATA

NUMBER = ("0050", "2f3a9c6d0a6e")
"""The number of the tables (`queue/migrations/versions`), and a digest of them."""
FROZEN = Path(drains.__file__).parent / "migrations" / "versions"
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.mark.parametrize("kind", BOTH)
def test_a_database_without_tables_says_what_to_run(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    is_sqlite = kind == "sqlite"
    engine = connect(f"sqlite:///{tmp_path}/empty.db" if is_sqlite else request.getfixturevalue("empty_postgres_url"))
    with pytest.raises(SchemaMismatch, match="no tables yet: run `glean control migrate`"):
        check_schema(engine)
    with pytest.raises(SchemaMismatch, match="run `glean control migrate`"), snapshot(engine) as db:
        queries.status(db)


@pytest.mark.parametrize(("revision", "says"), [("9999", "a newer Gleaner"), ("0034", "an earlier Gleaner")])
def test_a_database_of_another_gleaner_is_refused_in_one_line_and_left_as_it_is(
    queue_engine: Engine, revision: str, says: str
) -> None:
    harness = QueueHarness(queue_engine)
    harness.job()
    with queue_engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    before = harness.everything()
    for refused in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match=rf"of {says} \(tables {revision}\)") as said:
            refused(queue_engine)
        assert "\n" not in str(said.value)
    assert harness.everything() == before


def test_whoever_changes_a_table_gives_the_tables_a_new_number(sqlite_url: str) -> None:
    """Else a database with other tables would be taken for one of this version."""
    tables = METADATA.sorted_tables
    made = [str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in tables]
    for index in sorted((index for table in tables for index in table.indexes), key=lambda index: str(index.name)):
        made.append(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
    with connect(sqlite_url).connect() as connection:
        number = MigrationContext.configure(connection).get_current_revision()
    assert (number, hashlib.sha256("".join(made).encode()).hexdigest()[:12]) == NUMBER


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_the_frozen_tables_of_the_release_are_those_of_the_classes(url: str) -> None:
    """Until there is a second revision. With GLEANER_TESTS=golden, before the release, it writes them again."""
    dialect, made = make_url(url).get_dialect()(), list[str]()
    engine = create_mock_engine(url, lambda statement, *_: made.append(str(statement.compile(dialect=dialect))))
    METADATA.create_all(engine, checkfirst=False)
    tables = [statement for statement in made if statement.lstrip().startswith("CREATE TABLE ")]
    others = sorted(set(made) - set(tables))
    lines = "".join(f"{statement.strip()};\n" for statement in (*tables, *others)).expandtabs(4).splitlines()
    made_now = "".join(f"{line.rstrip()}\n" for line in lines)
    frozen = FROZEN / f"first_{dialect.name}.sql"
    if os.environ.get("GLEANER_TESTS") == "golden":
        frozen.write_text(made_now)
    assert frozen.read_text() == made_now


def test_sqlite_waits_for_the_disk_at_every_commit(sqlite_url: str) -> None:
    with transaction(connect(sqlite_url)) as db:
        asked = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in _PRAGMAS}
    assert asked == _PRAGMAS


_PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_database_locked_by_another_program_is_one_clear_line(sqlite_url: str) -> None:
    engine = connect(sqlite_url + "?timeout=0.1")
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(QueueBusy) as busy, transaction(engine):
        pass
    assert str(busy.value) == "the queue's database is locked by another program: try again"
    with snapshot(engine) as db:  # readers are not in anybody's way
        assert queries.status(db).new == 0
    other.execute("ROLLBACK")
    with transaction(engine) as db:
        assert queries.status(db).new == 0


def test_a_writer_in_the_same_program_waits_its_turn_but_not_for_ever(sqlite_url: str) -> None:
    engine = connect(sqlite_url + "?timeout=0.1")
    with transaction(engine), pytest.raises(QueueBusy, match="locked by another transaction"), transaction(engine):
        pass


@pytest.mark.postgres
def test_after_the_server_has_dropped_all_connections_the_queue_works_again(postgres_url: str) -> None:
    engine = connect(postgres_url)
    with snapshot(engine) as db:
        queries.status(db)
    other = create_engine(postgres_url)
    with other.connect() as connection:
        drop = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gleaner'"
        connection.execute(text(f"{drop} AND datname = current_database()"))
    with pytest.raises(QueueBusy, match="does not work now") as busy, snapshot(engine) as db:
        queries.status(db)
    assert "\n" not in str(busy.value)
    with snapshot(engine) as db:
        assert queries.status(db).new == 0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no database URL"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:////no/such/folder/queue.db", "there is no folder /no/such/folder"),
        ("mysql://host/db", "mysql is not supported"),
        ("postgresql://host/db", "postgresql is not supported; use"),
    ],
)
def test_a_wrong_url_is_refused_with_what_would_be_right(url: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        connect(url)


def test_a_text_that_no_database_takes_is_stored_so_that_it_can_be_shown(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    number = harness.do(drains.ask, task=DrainTask.DRAIN, nodes=("n1",), by="root", now_s=1.0)
    harness.do(drains.record_progress, replaced(harness.look(drains.one, number), said="caf\udce9 \0 é"))
    assert harness.look(drains.one, number).said == "caf? \N{REPLACEMENT CHARACTER} é"


def test_a_name_that_no_database_takes_is_refused_in_one_line(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    with pytest.raises(Invalid, match=r"cannot hold a value of this: .*surrogate"):
        harness.do(drains.ask, task=DrainTask.DRAIN, nodes=("n1",), by="caf\udce9", now_s=1.0)
    if queue_engine.dialect.name == "postgresql":
        with pytest.raises(Invalid, match=r"cannot hold a value of this: .*NUL"):
            harness.do(drains.ask, task=DrainTask.DRAIN, nodes=("n1",), by="\0", now_s=1.0)
    assert harness.look(drains.open_ones) == ()
