"""A backup that was taken while control ran, put back on each kind of database, with a real storage."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect
from tests.queue.queue_harness import FACTS, QueueHarness

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import checkpoint_key, output_key
from gleaner.control.daemon import putting_back
from gleaner.control.queue import backup, leader
from gleaner.control.queue.backup import BackupFailed
from gleaner.control.queue.database import UNFINISHED, check_schema, connect, migrate
from gleaner.control.queue.errors import SchemaMismatch
from gleaner.control.queue.recovery import Recovered
from gleaner.control.states import State

AWAY_S = 1e6


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    return storage


@pytest.fixture
def harness(queue_engine: Engine) -> Iterator[QueueHarness]:
    harness = QueueHarness(queue_engine)
    yield harness
    with harness.engine.connect() as db:  # other tests use the same database
        db.exec_driver_sql(f"DROP TABLE IF EXISTS {UNFINISHED}")
        db.commit()


def leave(storage: FolderStorage, key: str, **facts: object) -> str:
    """Let an agent leave an archive."""
    with storage.draft(key) as draft:
        draft.add("folder.tar", [b"content"])
        return draft.publish(facts).digest


def restore(harness: QueueHarness, file: Path, *, replace: bool = True) -> Recovered:
    url = harness.engine.url.render_as_string(hide_password=False)
    done = putting_back.put_back(url, file, file.parent / "storage", replace=replace, now_s=harness.now_s + AWAY_S)
    harness.engine = connect(url)
    return done


def test_what_was_done_since_the_backup_is_found_on_the_storage(
    harness: QueueHarness, storage: FolderStorage, tmp_path: Path
) -> None:
    ended, goes_on, waits = harness.job(), harness.job(), harness.job()
    size_bytes = backup.back_up(harness.engine, tmp_path / "backup")
    assert size_bytes == (tmp_path / "backup").stat().st_size
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600

    since = harness.job()
    leave(storage, output_key(ended, 1), job=ended, exit_code=0)
    digest = leave(storage, checkpoint_key(goes_on, 2, 1), node=FACTS | {"node": "n1"}, chain="2/1", place=1)
    leave(storage, checkpoint_key(waits, 1, 1))
    (storage_file := next((tmp_path / "storage" / "jobs" / str(waits)).rglob("manifest.json"))).write_bytes(b"{}")
    assert storage_file.exists()
    leave(storage, checkpoint_key(since, 1, 1))

    done = restore(harness, tmp_path / "backup")

    assert (done.ended, done.went_on, done.unfinished, done.unknown) == (1, 1, 2, 1)
    check_schema(harness.engine)
    assert harness.row(ended).state is State.COMPLETE
    assert harness.row(waits).state is State.NEW
    work = {one.job: one for one in harness.claim(harness.agent("a1"))}
    assert set(work) == {goes_on, waits}
    checkpoint = work[goes_on].checkpoint
    assert checkpoint is not None
    assert (checkpoint.attempt, checkpoint.number, checkpoint.digest, checkpoint.chain) == (2, 1, digest, None)


def test_control_does_not_start_on_a_backup_that_is_not_safe_yet(
    harness: QueueHarness, storage: FolderStorage, tmp_path: Path
) -> None:
    harness.job()
    backup.back_up(harness.engine, tmp_path / "backup")
    place = harness.engine.url.database
    with pytest.raises(ZeroDivisionError), backup.put_back(harness.engine, tmp_path / "backup", replace=True) as new:
        with pytest.raises(SchemaMismatch, match="run `glean control restore` again"):
            check_schema(new)
        raise ZeroDivisionError  # the program is killed here
    if harness.engine.dialect.name == "sqlite":
        assert place is not None
        assert [each.name for each in Path(place).parent.glob(".queue*")] == []
        check_schema(harness.engine)  # the database that was there is still there
    restore(harness, tmp_path / "backup", replace=harness.engine.dialect.name == "sqlite")
    check_schema(harness.engine)


def test_what_is_put_back_belongs_to_who_had_it(sqlite_url: str, storage: FolderStorage, tmp_path: Path) -> None:
    harness = QueueHarness(connect(sqlite_url))
    backup.back_up(harness.engine, tmp_path / "backup")
    place = Path(str(harness.engine.url.database))
    if os.geteuid() == 0:
        os.chown(place, 4321, 4322)
    before = place.stat()
    restore(harness, tmp_path / "backup")
    after = place.stat()
    assert (after.st_uid, after.st_gid, after.st_mode & 0o777) == (before.st_uid, before.st_gid, 0o600)


def test_a_backup_replaces_no_file(harness: QueueHarness, tmp_path: Path) -> None:
    (tmp_path / "backup").write_text("another backup")
    with pytest.raises(BackupFailed, match="backup is there already: name another file"):
        backup.back_up(harness.engine, tmp_path / "backup")
    assert [each.name for each in tmp_path.glob("*backup*")] == ["backup"]


def test_a_database_with_jobs_is_replaced_only_on_demand(
    harness: QueueHarness, storage: FolderStorage, tmp_path: Path
) -> None:
    backup.back_up(harness.engine, tmp_path / "backup")
    harness.job()
    before = harness.everything()
    with pytest.raises(BackupFailed, match="--replace"):
        restore(harness, tmp_path / "backup", replace=False)
    assert harness.everything() == before


@pytest.mark.postgres
@pytest.mark.parametrize("tables", [("alembic_version",), ("job",), ("alembic_version", "measurements"), ()])
def test_tables_that_are_not_known_are_never_dropped(
    tables: tuple[str, ...], empty_postgres_url: str, tmp_path: Path
) -> None:
    """Those of another application; and the one that a newer Gleaner has added, or somebody, to all of ours."""
    (tmp_path / "backup").write_bytes(b"PGDMP")
    engine = connect(empty_postgres_url)
    if not tables:
        migrate(engine)
    with engine.begin() as db:
        for table in tables or ("added_later",):
            db.exec_driver_sql(f"CREATE TABLE {table} (version_num TEXT)")
    before = set(inspect(engine).get_table_names())
    with (
        pytest.raises(BackupFailed, match=r"tables that this version does not know .* a database of its own"),
        backup.put_back(engine, tmp_path / "backup", replace=True),
    ):
        pass
    assert set(inspect(engine).get_table_names()) == before
    engine.dispose()


def test_nothing_is_put_back_while_control_runs(harness: QueueHarness, storage: FolderStorage, tmp_path: Path) -> None:
    backup.back_up(harness.engine, tmp_path / "backup")
    harness.do(leader.try_lead, "control on head", now=leader.NOW, term_s=60.0)
    with pytest.raises(BackupFailed, match=r"control runs \(control on head\): stop"):
        restore(harness, tmp_path / "backup")


def test_a_file_that_is_no_backup_is_refused(harness: QueueHarness, storage: FolderStorage, tmp_path: Path) -> None:
    for content in (b"", b"SQL", b"-- a script"):
        (tmp_path / "backup").write_bytes(content)
        with pytest.raises(BackupFailed, match="is no backup of a"):
            restore(harness, tmp_path / "backup")


def test_a_damaged_backup_changes_nothing(harness: QueueHarness, storage: FolderStorage, tmp_path: Path) -> None:
    job = harness.job()
    file = tmp_path / "backup"
    backup.back_up(harness.engine, file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(BackupFailed):
        restore(harness, file)
    assert harness.row(job).state is State.NEW


def test_what_agents_publish_while_a_backup_is_loaded_counts(
    harness: QueueHarness, storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = harness.job()
    backup.back_up(harness.engine, tmp_path / "backup")

    def migrate_late(engine: Engine) -> None:
        leave(storage, output_key(job, 1), job=job, exit_code=0)
        migrate(engine)

    monkeypatch.setattr(putting_back, "migrate", migrate_late)
    assert restore(harness, tmp_path / "backup").ended == 1
