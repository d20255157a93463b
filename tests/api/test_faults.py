"""What control says when its database is locked, old, empty or away: one line, 503, and nothing is lost."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text
from tests.api.house import House, detail

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.queue.engine import connect
from gleaner.control.settings import QueueSettings, Settings
from gleaner.control.site import Site


@contextmanager
def _locked(house: House) -> Iterator[None]:
    """Another program holds SQLite's write lock."""
    other = sqlite3.connect(str(house.site.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def _impatient(url: str) -> Engine:
    """Connections that wait a tenth of a second, so that the test need not sit out the real wait."""
    engine = connect(url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=100").close())
    return engine


def test_a_locked_database_still_reads_and_says_so_when_writing(sqlite_url: str, tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    site = Site(Settings(queue=QueueSettings(url=sqlite_url)), _impatient(sqlite_url), storage, leads_until_s=math.inf)
    house = House(site, storage)
    job = house.user.submit()
    agent = house.agent()
    with _locked(house):
        for answer in [
            house.user.post(f"/v1/jobs/{job}/cancel"),
            agent.ask("claim", {"cpus": 1, "memory_mib": 512}),
            house.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"}}),
        ]:
            assert "locked" in detail(answer, 503)
            assert answer.headers["Retry-After"]
        assert house.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "New"
        assert house.client.get("/health").json()["queue"] == "ok"
    assert house.user.get("/v1/jobs").json()["total"] == 1
    assert agent.claim()[0]["job"] == job
    house.close()


def test_an_older_schema_says_what_to_run(house: House) -> None:
    with house.site.engine.begin() as connection:
        connection.execute(text("ALTER TABLE job RENAME TO job_of_old"))
    assert "glean control migrate" in detail(house.user.get("/v1/jobs"), 503)
    assert "glean control migrate" in detail(house.user.post("/v1/jobs/1/hold"), 503)


def test_an_empty_database_says_what_to_run_even_to_a_token(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    house = House.__new__(House)
    house.site = Site(
        Settings(queue=QueueSettings(url=url)), connect(url), FolderStorage(tmp_path), leads_until_s=math.inf
    )
    client = house.loud_client()
    answer = client.get("/v1/jobs", headers={"Authorization": "Bearer something"})
    assert "glean control migrate" in detail(answer, 503)
    health = client.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "failing"
    assert "glean control migrate" in health.json()["queue"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://gleaner:secret@127.0.0.1:1/gleaner",
        "postgresql+psycopg://gleaner:secret@/gleaner?host=/nowhere",
    ],
)
def test_a_database_that_is_away_is_one_line_without_its_password(tmp_path: Path, url: str) -> None:
    house = House.__new__(House)
    house.site = Site(
        Settings(queue=QueueSettings(url=url)), connect(url), FolderStorage(tmp_path), leads_until_s=math.inf
    )
    answer = house.loud_client().get("/v1/jobs", headers={"Authorization": "Bearer something"})
    assert "secret" not in detail(answer, 503)
    health = house.loud_client().get("/health")
    assert health.status_code == 503
    assert "secret" not in health.text


def test_a_bug_of_our_own_is_one_line_to_the_caller(house: House) -> None:
    def clock() -> float:
        raise ZeroDivisionError("in control itself")

    house.user.get("/v1/status")
    house.site.clock = clock
    answer = house.user.get("/v1/status")
    assert "its log says what" in detail(answer, 500)
    assert "ZeroDivision" not in answer.text
