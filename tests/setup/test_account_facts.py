"""Facts are read as the service account: what it may open, write and start, and what the probes print."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert
from tests.api.munge_daemon import munge_daemon
from tests.setup import healthy as h
from tests.setup.healthy import script

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_root import storage_number
from gleaner.control.queue import secret_key
from gleaner.control.queue.database import connect, migrate
from gleaner.control.queue.tables import SECRET
from gleaner.control.setup import account_facts, machine_facts
from gleaner.control.setup.facts import (
    Output,
    SecretKeyFacts,
    StorageFacts,
    Unread,
)
from gleaner.control.setup.key_probe import probe as try_key
from gleaner.control.setup.queue_probe import probe
from gleaner.control.setup.storage_probe import key_notes, try_writes
from gleaner.control.setup.storage_probe import probe as try_storage

PATIENCE_S = 120.0
NOBODY = 65534


def test_a_socket_that_the_account_may_not_open_is_named_by_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    path.touch()
    uid = os.geteuid()
    assert account_facts.docker_socket(f"unix://{path}", uid, PATIENCE_S) == ""
    path.chmod(0o400)
    found = account_facts.docker_socket(f"unix://{path}", uid if uid else NOBODY, PATIENCE_S)
    assert isinstance(found, str)
    assert found.endswith("mode 400")
    for url, why in ((f"unix://{tmp_path}/none", "No such file"), ("tcp://head:2375", "no socket of this machine")):
        none = account_facts.docker_socket(url, uid, PATIENCE_S)
        assert isinstance(none, Unread)
        assert why in none.why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another account")
@pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed")
def test_munge_is_tried_as_the_service_account() -> None:
    with munge_daemon() as daemon:
        assert account_facts.munge(daemon.socket, NOBODY, PATIENCE_S) == str(NOBODY)
        assert account_facts.munge(daemon.socket, 0, PATIENCE_S) == "0"
        daemon.folder.chmod(0o750)
        assert account_facts.munge(daemon.socket, 0, PATIENCE_S) == "0"
        found = account_facts.munge(daemon.socket, NOBODY, PATIENCE_S)
        assert isinstance(found, Unread)
        assert found.why == f'munge refuses nobody: Failed to access "{daemon.socket}": Permission denied'
        assert found.is_denied


def test_the_trial_of_the_storage_works_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    missing = account_facts.storage(folder, os.geteuid(), PATIENCE_S)
    assert isinstance(missing, Unread)
    assert missing.why.endswith("No such file or directory")
    FolderStorage(folder).prepare()
    before = sorted(str(path) for path in folder.rglob("*"))
    found = account_facts.storage(folder, os.geteuid(), PATIENCE_S)
    assert isinstance(found, StorageFacts)
    assert (found.is_set_up, found.trouble, found.mode) == (True, "", 0o700)
    number = storage_number(folder)
    assert (found.id, found.inode, found.changed_s) == (number.id, number.inode, number.changed_s)
    assert found.id != ""
    assert sorted(str(path) for path in folder.rglob("*")) == before
    FolderStorage(folder).prepare()
    assert storage_number(folder) == number
    shutil.copytree(folder, tmp_path / "copy")
    copy = storage_number(tmp_path / "copy")
    assert copy.id == number.id
    assert copy.inode != number.inode
    assert copy.changed_s > number.changed_s


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_owner_in_the_storage_is_seen(tmp_path: Path) -> None:
    FolderStorage(tmp_path / "storage").prepare()
    (tmp_path / "storage" / "lost+found").mkdir()
    for name in ("lost+found", "jobs"):
        (tmp_path / "storage" / name).mkdir(exist_ok=True)
        assert not try_storage(tmp_path / "storage").get("foreign")
        os.chown(tmp_path / "storage" / name, NOBODY, NOBODY)
    found = try_storage(tmp_path / "storage")
    assert (found["foreign"], found["foreign_uid"]) == ("jobs", NOBODY)


def test_the_nodes_notes_of_their_keys_are_read(tmp_path: Path) -> None:
    assert key_notes(tmp_path / "none") == {}
    for name, text in (("n1.user-jobs-key", "f1a9"), ("n2.user-jobs-key", "x" * 9999), ("n1.log", "no key")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (7.0, 7.0))
    (tmp_path / "n3.user-jobs-key").mkdir()
    (tmp_path / "n4.user-jobs-key").symlink_to(tmp_path / "n1.log")
    os.mkfifo(tmp_path / "n5.user-jobs-key")  # nobody waits for one who writes into it
    assert key_notes(tmp_path) == {"n1": ("f1a9", 7.0), "n2": ("x" * 64, 7.0)}


def test_a_storage_that_refuses_says_at_which_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert try_writes(tmp_path / "file") == "cannot make a folder: Not a directory"


def test_the_audit_file_is_tried_as_the_service_account() -> None:
    with tempfile.TemporaryDirectory() as place:  # other accounts do not reach pytest's folders
        Path(place).chmod(0o755)
        folder = Path(place) / "logs"
        file, account = folder / "audit", os.geteuid() or NOBODY
        assert account_facts.audit_file(None, account, PATIENCE_S) == ""
        assert account_facts.audit_file(file, account, PATIENCE_S) == f"there is no folder {folder}"
        folder.mkdir(0o500)
        found = str(account_facts.audit_file(file, account, PATIENCE_S))
        assert found.startswith(f"{folder} is ")
        assert found.endswith(", mode 500")
        folder.chmod(0o777)
        assert account_facts.audit_file(file, account, PATIENCE_S) == ""
        file.touch(0o400)
        assert f"{file} is " in str(account_facts.audit_file(file, account, PATIENCE_S))


HOLDS = (
    "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('BEGIN IMMEDIATE'); print(1, flush=True); input()"
)


def test_who_holds_the_queue_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    url, me = f"sqlite:///{path}", os.geteuid()
    assert "No such file" in str(account_facts.queue(url, me, PATIENCE_S))
    engine = connect(url)
    migrate(engine)
    engine.dispose()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    free = account_facts.queue(url, me, PATIENCE_S)
    assert not isinstance(free, Unread)
    assert (free.refused, free.holder) == ("", "")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    for mode in ("WAL", "DELETE"):
        with sqlite3.connect(path) as database:
            database.execute(f"PRAGMA journal_mode={mode}")
        database.close()
        words = (sys.executable, "-c", HOLDS, str(path))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            program.stdout.readline()
            found = probe(path, me, watch_s=0.02)
            assert (found["holder_pid"], found["is_holder_ours"]) == (program.pid, False)
            assert found["holder"].startswith("python")
            program.stdin.close()
        assert probe(path, me, watch_s=0.02)["holder_pid"] == 0
    path.chmod(0o400)
    if me != 0:
        assert probe(path, me, watch_s=0)["refused"] == str(path)


def found_key(path: Path, storage: Path) -> SecretKeyFacts:
    found = account_facts.secret_key(path, storage, None, PATIENCE_S)
    assert isinstance(found, SecretKeyFacts), found
    return found


@pytest.mark.slow
def test_the_key_for_secrets_is_read_as_the_service_account_reads_it(tmp_path: Path) -> None:
    key, storage = tmp_path / "secrets.key", tmp_path / "storage"
    storage.mkdir()
    assert found_key(key, storage).is_missing
    secret_key.make(key)
    mine = os.geteuid()
    assert found_key(key, storage) == SecretKeyFacts(mine, 0o600, False, False, "")
    key.chmod(0o640)
    assert (found_key(key, storage).mode, "chmod 600" in found_key(key, storage).trouble) == (0o640, True)
    key.chmod(0o600)
    key.write_text("n0t-a-key\n")
    trouble = found_key(key, storage).trouble
    assert trouble.startswith(f"{key} has no key for secrets")
    assert "n0t-a-key" not in trouble
    (storage / "link").symlink_to(key)
    (tmp_path / "link").symlink_to(storage / "secrets.key")
    secret_key.make(storage / "secrets.key")
    assert found_key(tmp_path / "link", storage).is_on_storage
    assert not found_key(storage / "link", storage).is_on_storage
    if mine == 0:
        os.chown(storage, 65534, 65534)
        assert "cannot be read: Permission denied" in found_key(key, storage).trouble


def test_the_key_must_open_the_stored_secrets(tmp_path: Path) -> None:
    key, database = tmp_path / "secrets.key", tmp_path / "queue.db"
    engine = connect(f"sqlite:///{database}")
    migrate(engine)
    secret_key.make(key)
    row = {"group": "atlas", "kind": "password", "setter": "eve", "set_s": 0.0}
    with engine.begin() as queue:
        for name in ("a", "b"):
            sealed = secret_key.read(key).encrypt(b"s3cret")
            queue.execute(insert(SECRET).values(name=name, url=f"https://x/{name}/", sealed=sealed, **row))
    assert try_key(key, tmp_path, database) | {"tried": 2, "unopened": 0} == try_key(key, tmp_path, database)
    older = key.read_text()
    key.unlink()
    secret_key.make(key)
    found = try_key(key, tmp_path, database)
    assert (found["tried"], found["unopened"], found["trouble"]) == (2, 2, "")
    key.write_text(f"{key.read_text()}{older}")
    assert try_key(key, tmp_path, database)["unopened"] == 0
    assert try_key(key, tmp_path, tmp_path / "none")["tried"] == 0
    engine.dispose()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo Usage: $1 in $PWD", Output(0, "Usage: --version in /\n")),
        ("echo no Python >&2; exit 2", Output(2, "", "no Python\n")),
    ],
)
def test_the_agent_program_is_started_as_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: Output
) -> None:
    path = script(tmp_path, "glean-agent", text)
    control = replace(h.CONTROL, health=h.HEALTH | {"agent_program": str(path)})
    monkeypatch.setattr(machine_facts, "control", lambda *_: control)
    mine = os.geteuid()
    assert account_facts.start_of_agent("https://head", None, mine, PATIENCE_S) == found
    if mine == 0:  # what root can run, the account cannot
        path.chmod(0o700)
        refused = account_facts.start_of_agent("https://head", None, NOBODY, PATIENCE_S)
        assert isinstance(refused, Output)
        assert "Permission denied" in refused.complaint


@pytest.mark.parametrize("program", ["/opt/site/agents", "", "/opt/old/glean-agent"])
def test_no_program_but_the_agents_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    other = script(tmp_path, "agents", f"touch {tmp_path}/started")
    name = str(other) if program == "/opt/site/agents" else program
    control = replace(h.CONTROL, health=h.HEALTH | {"agent_program": name})
    monkeypatch.setattr(machine_facts, "control", lambda *_: control)
    assert isinstance(account_facts.start_of_agent("https://head", None, os.geteuid(), PATIENCE_S), Unread)
    assert not (tmp_path / "started").exists()
