"""`/health` of both doors: a database that takes nothing and a storage that hangs are one line each, told at once."""

import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from tests.privileged.waiting import wait_until

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_root import STORAGE_ID
from gleaner.control.api.app import Door, create_app
from gleaner.control.control_state import LATE_S, ControlState
from gleaner.control.daemon.control_view import Follower, write_view
from gleaner.control.daemon.loops import Loop
from gleaner.control.daemon.own_checks import own_checks
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, Settings, StorageSettings


@pytest.fixture(params=[Door.AGENTS, Door.PEOPLE])
def door(request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path) -> Iterator[TestClient]:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    settings = Settings(queue=QueueSettings(url=sqlite_url), storage=StorageSettings(folder=tmp_path / "storage"))
    follows = request.param is Door.PEOPLE
    state = ControlState(settings, connect(sqlite_url), storage, follows=follows, leads_until_s=math.inf)
    state.steady_clock = lambda: 0.0
    with TestClient(create_app(state, [request.param])) as client:
        client.app_state["state"] = state
        yield client
    state.engine.dispose()


def health(door: TestClient) -> tuple[int, str, str]:
    answer = door.get("/health")
    said = answer.json()
    assert (said["status"] == "ok") == (answer.status_code == 200)
    return answer.status_code, said["queue"], said["storage"]


def test_a_database_that_takes_nothing_is_told(door: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    state: ControlState = door.app_state["state"]
    (database, _) = own_checks(state)
    database.run_once(state, 1.0)
    assert health(door) == (200, "ok", "ok")

    def read_only(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA query_only=ON")

    state.engine.dispose()
    event.listen(state.engine, "connect", read_only)
    database.run_once(state, 2.0)
    status, queue, storage = health(door)
    assert (status, storage) == (503, "ok")
    assert queue.endswith("does not work now: attempt to write a readonly database")
    monkeypatch.setattr("gleaner.control.daemon.own_checks.LEAST_FREE_BYTES", 2**62)
    event.remove(state.engine, "connect", read_only)
    state.engine.dispose()
    database.run_once(state, 3.0)
    status, queue, storage = health(door)
    assert (status, storage) == (503, "ok")
    assert queue.startswith("the disk of the queue's database is full: ")
    monkeypatch.undo()
    database.run_once(state, 4.0)
    assert health(door) == (200, "ok", "ok")


def test_a_storage_that_hangs_is_told_by_those_who_do_not_wait_for_it(door: TestClient) -> None:
    state: ControlState = door.app_state["state"]
    (_, storage) = own_checks(state)
    file = state.settings.storage.folder / STORAGE_ID
    number = file.read_bytes()
    file.unlink()
    os.mkfifo(file)  # to open it waits for somebody who writes
    thread = threading.Thread(target=storage.run_once, args=(state, 1.0), daemon=True)
    thread.start()
    wait_until(lambda: storage.name in state.loop_ages_s, "the check has begun")
    assert health(door) == (200, "ok", "ok")
    state.steady_clock = lambda: LATE_S["storage"] + 1
    assert health(door) == (503, "ok", "the storage has not answered for 16 s")
    file.write_bytes(number)
    thread.join()
    assert health(door) == (200, "ok", "ok")


def test_people_see_how_old_the_leaders_steps_are_beside_their_own(sqlite_url: str, tmp_path: Path) -> None:
    settings = Settings(queue=QueueSettings(url=sqlite_url))
    leads, follows = (
        ControlState(settings, connect(sqlite_url), FolderStorage(tmp_path), follows=follows, leads_until_s=math.inf)
        for follows in (False, True)
    )
    now_s = 100.0
    for state in (leads, follows):
        state.steady_clock = lambda: now_s
    view = Loop("view", 2.0, lambda now_s: write_view(leads, now_s))
    followed = Loop(follows.own_step("view"), 1.0, Follower(follows).follow, leader_only=False)
    view.run_once(leads, now_s)
    view.run_once(leads, now_s + 1)  # a view has what was known before it
    (database, _) = own_checks(follows)
    database.run_once(follows, now_s)
    followed.run_once(follows, now_s + 1)
    assert follows.loop_ages_s == {"view": 0.0, "web database": 0.0, "web view": 0.0}
    now_s = 400.0  # control is down
    followed.run_once(follows, now_s + 1)
    assert follows.loop_ages_s == {"view": 300.0, "web database": 300.0, "web view": 0.0}
    leads.faults.worked_s = {"leader": now_s}
    write_view(leads, now_s)
    followed.run_once(follows, now_s)
    assert follows.loop_ages_s == {"leader": 0.0, "web database": 300.0, "web view": 0.0}
    for state in (leads, follows):
        state.engine.dispose()
