"""Control's answer when its database is locked, old, empty or away: one line, 503, and nothing is lost."""

import math
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.api.api_harness import ApiHarness, detail

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.own_checks import own_checks
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, Settings


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///{folder}/empty.db", "glean control migrate"),
        ("postgresql+psycopg://gleaner:secret@127.0.0.1:1/gleaner", "does not work now"),
        ("postgresql+psycopg://gleaner:secret@/gleaner?host=/nowhere", "does not work now"),
    ],
)
def test_a_database_that_is_empty_or_away_is_one_line_without_its_password(tmp_path: Path, url: str, said: str) -> None:
    url = url.format(folder=tmp_path)
    settings = Settings(queue=QueueSettings(url=url))
    state = ControlState(settings, connect(url), FolderStorage(tmp_path), leads_until_s=math.inf)
    client = TestClient(create_app(state))
    answer = client.get("/v1/jobs", headers={"Authorization": "Bearer something"})
    assert said in detail(answer, 503)
    assert answer.headers["Retry-After"]
    own_checks(state)[0].run_once(state, 1.0)
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "failing")
    assert said in health.json()["queue"]
    assert "secret" not in answer.text + health.text


def test_a_step_of_control_that_fails_by_a_bug_is_seen_by_everybody_who_looks_and_in_the_metrics(
    harness: ApiHarness,
) -> None:
    for reason in ("a bug", "another", "another"):
        harness.state.faults.note("drains", reason)
    health = harness.client.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["failing"]) == (200, "failing", ["drains"])
    assert "another" not in health.text, "it needs no token"
    assert 'gleaner_step_failures{step="drains"} 3.0' in harness.admin.get("/metrics").text
    harness.state.faults.forget("drains")
    harness.state.faults.worked_s["drains"] = harness.state.steady_clock() - 70
    harness.state.faults.every_s["drains"] = 2.0
    health = harness.client.get("/health")
    assert 70 <= health.json()["step_ages_s"]["drains"] < 1000
    assert health.json()["step_every_s"] == {"drains": 2.0}
    assert 'gleaner_step_age_seconds{step="drains"}' in harness.admin.get("/metrics").text
    assert harness.client.get("/health").json()["status"] == "ok"
