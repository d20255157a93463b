"""The tables: Alembic makes what the code declares, and a wrong version is one clear line."""

import os
import site
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, text
from tests.postgres import Server
from tests.queue.queue_harness import QueueHarness

from gleaner.control.models.drains import DrainTask
from gleaner.control.queue import drains, jobs, queries
from gleaner.control.queue.database import BUSY_TIMEOUT_S, check_schema, connect, migrate, snapshot, transaction
from gleaner.control.queue.errors import Invalid, QueueBusy, SchemaMismatch
from gleaner.control.queue.schema import METADATA

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


def _definitions(engine: Engine) -> set[str]:
    """Return every table, constraint and index as the database itself words it, without the order of constraints."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            made = connection.execute(
                text("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' AND sql <> ''")
            )
            lines = [line.replace('"', "").strip().rstrip(",") for (sql,) in made for line in sql.splitlines()]
            return set(filter(None, lines))  # a table that a migration made anew has its name in quotes
        checks = connection.execute(
            text(
                "SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE connamespace = 'public'::regnamespace"
            )
        )
        indexes = connection.execute(text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"))
        columns = connection.execute(
            text(
                "SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '"
                " || coalesce(character_maximum_length::text, '') FROM information_schema.columns"
                " WHERE table_schema = 'public'"
            )
        )
        options = connection.execute(text("SELECT relname || reloptions::text FROM pg_class WHERE reloptions <> '{}'"))
        found = {row[0] for result in (checks, indexes, columns, options) for row in result}
        return {line for line in found if "alembic_version" not in line}


def test_what_the_migrations_make_is_what_the_code_declares(queue_engine: Engine) -> None:
    with queue_engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), METADATA) == []


def test_constraints_and_partial_indexes_are_migrated_word_by_word_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    declared = create_engine(f"sqlite:///{tmp_path / 'declared.db'}")
    METADATA.create_all(declared)
    assert _definitions(connect(sqlite_url)) == _definitions(declared)


@pytest.mark.postgres
def test_constraints_and_partial_indexes_are_migrated_word_by_word_on_postgresql(
    postgres_url: str, empty_postgres_url: str
) -> None:
    declared = create_engine(empty_postgres_url)
    METADATA.create_all(declared)
    assert _definitions(connect(postgres_url)) == _definitions(declared)


def test_migrating_twice_changes_nothing(queue_engine: Engine) -> None:
    before = _definitions(queue_engine)
    migrate(queue_engine)
    assert _definitions(queue_engine) == before
    check_schema(queue_engine)


def _empty(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if kind == "sqlite":
        return connect(f"sqlite:///{tmp_path / 'empty.db'}")
    return connect(request.getfixturevalue("empty_postgres_url"))


@pytest.mark.parametrize("kind", BOTH)
def test_a_database_without_tables_says_what_to_run(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    engine = _empty(kind, request, tmp_path)
    with pytest.raises(SchemaMismatch, match="no tables yet: run `glean control migrate`"):
        check_schema(engine)
    with pytest.raises(SchemaMismatch, match="run `glean control migrate`"), snapshot(engine) as db:
        queries.status(db)


def test_an_older_database_says_what_to_run(queue_engine: Engine) -> None:
    with queue_engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(SchemaMismatch, match="run `glean control migrate`"):
        check_schema(queue_engine)


def test_a_newer_database_is_neither_used_nor_migrated_and_stays_as_it_is(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    harness.job()
    with queue_engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = _definitions(queue_engine), harness.everything()
    for refused in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match=r"a newer Gleaner \(tables 9999\): .* `glean control restore") as said:
            refused(queue_engine)
        assert "\n" not in str(said.value)
    assert (_definitions(queue_engine), harness.everything()) == before


@pytest.mark.parametrize("revision", ["0001", "0021"])
def test_a_database_of_an_earlier_gleaner_is_refused_in_one_line_and_left_as_it_is(
    queue_engine: Engine, revision: str
) -> None:
    with queue_engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    for refused in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match=r"of an earlier Gleaner, .*begin here with an empty database$"):
            refused(queue_engine)
    with queue_engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == revision


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
def test_a_row_locked_by_another_program_is_one_clear_line(postgres_url: str) -> None:
    engine = connect(postgres_url)
    harness = QueueHarness(engine)
    job = harness.job()
    with transaction(engine) as other, pytest.raises(QueueBusy) as busy, transaction(engine) as db:
        other.execute(text("SELECT * FROM job FOR UPDATE"))
        db.execute(text("SET lock_timeout = '50ms'"))
        jobs.cancel(db, job, now_s=1.0)
    assert str(busy.value) == "the queue's database is locked by another program: try again"
    harness.cancel(job)


@pytest.mark.postgres
def test_a_statement_that_takes_longer_than_a_leaders_patience_is_one_clear_line(postgres_url: str) -> None:
    engine = connect(postgres_url)
    with snapshot(engine) as db:
        assert db.execute(text("SHOW statement_timeout")).scalar() == f"{BUSY_TIMEOUT_S:.0f}s"
    with pytest.raises(QueueBusy, match="statement timeout") as busy, transaction(engine) as db:
        db.execute(text("SET LOCAL statement_timeout = '50ms'"))
        db.execute(text("SELECT pg_sleep(5)"))
    assert "\n" not in str(busy.value)


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


@pytest.mark.slow
def test_an_installed_wheel_brings_its_migrations(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    program = (
        "from gleaner.control.queue import database as engine\n"
        f"database = engine.connect('sqlite:///{tmp_path}/queue.db')\n"
        "engine.migrate(database)\n"
        "engine.check_schema(database)\n"
        "print(engine.__file__)\n"
    )
    path = os.pathsep.join([str(tmp_path / "installed"), *site.getsitepackages()])
    # -S: without the editable installation that these tests run from.
    made = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert made.stdout.startswith(str(tmp_path / "installed"))


@pytest.mark.postgres
def test_a_server_that_is_away_is_one_clear_line(postgres_server: Server) -> None:
    engine = connect(f"postgresql+psycopg://u:secret@/x?host={postgres_server.folder}/nowhere")
    with pytest.raises(QueueBusy, match="does not work now") as busy, snapshot(engine) as db:
        queries.status(db)
    assert "\n" not in str(busy.value)
    assert "secret" not in str(busy.value)


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
    harness.do(drains.record_progress, replace(harness.look(drains.one, number), said="caf\udce9 \0 é"))
    assert harness.look(drains.one, number).said == "caf? \N{REPLACEMENT CHARACTER} é"


def test_a_name_that_no_database_takes_is_refused_in_one_line(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    with pytest.raises(Invalid, match=r"cannot hold a value of this: .*surrogate"):
        harness.do(drains.ask, task=DrainTask.DRAIN, nodes=("n1",), by="caf\udce9", now_s=1.0)
    if queue_engine.dialect.name == "postgresql":
        with pytest.raises(Invalid, match=r"cannot hold a value of this: .*NUL"):
            harness.do(drains.ask, task=DrainTask.DRAIN, nodes=("n1",), by="\0", now_s=1.0)
    assert harness.look(drains.open_ones) == ()
