"""Many callers at once."""

import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx import Response
from tests.api.api_harness import SLICE, Agent, ApiHarness, Caller, detail, served

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.queue import retention
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, Settings

AGENTS = 20
JOBS = 100


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_many_agents_at_once_run_every_job_exactly_once(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    storage = FolderStorage(tmp_path)
    state = ControlState(Settings(queue=QueueSettings(url=url)), connect(url), storage, leads_until_s=math.inf)
    harness = ApiHarness(state, storage)
    harness.user.submit(indices=list(range(JOBS)))
    agents = [harness.agent(f"n{number}") for number in range(AGENTS)]
    claimed: Counter[int] = Counter()
    statuses: Counter[int] = Counter()

    def work(base_url: httpx.URL, agent: Agent) -> None:
        with httpx.Client(base_url=base_url, headers=agent.headers, timeout=60, verify=False) as client:
            while True:
                answer = client.post(f"/v1/agents/{agent.name}/claim", json={"cpus": 2, "memory_mib": 4096, "most": 2})
                statuses[answer.status_code] += 1
                jobs = answer.json()["jobs"]
                if not jobs:
                    return
                for job in jobs:
                    claimed[job["job"]] += 1
                    path = f"/v1/jobs/{job['job']}/attempts/{job['attempt']}/completed"
                    statuses[client.post(path, json={"exit_code": 0, "slice": SLICE}).status_code] += 1

    with served(create_app(state)) as client:
        threads = [threading.Thread(target=work, args=(client.base_url, agent)) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(claimed.values()) == {1}
    assert len(claimed) == JOBS
    assert set(statuses) == {200, 204}
    assert harness.user.get("/v1/status").json()["succeeded"] == JOBS
    harness.close()
    state.engine.dispose()


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_the_same_submission_with_the_same_key_has_one_answer_for_a_day(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    storage = FolderStorage(tmp_path)
    harness = ApiHarness(ControlState(Settings(), connect(url), storage, leads_until_s=math.inf), storage)
    body: dict[str, Any] = {"job": {"name": "pi", "image": "gleaner/pi"}, "indices": [2, 0]}

    def submitted(caller: Caller, key: str = "8e03978e-40d5-43dd-bc93", **changed: object) -> Response:
        headers = caller.headers | {"Idempotency-Key": key}
        answer: Response = caller.client.post("/v1/jobs", json=body | changed, headers=headers)
        return answer

    too_long = {"job": body["job"] | {"needs_at_least_s": 10**6}}
    assert submitted(harness.user, **too_long).status_code == 422  # what is refused takes no key
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(submitted, [harness.user] * 4))
    assert [answer.status_code for answer in answers] == [201] * 4
    assert [answer.json() for answer in answers] == [answers[0].json()] * 4
    assert sorted(answers[0].json()["jobs"]) == [1, 2]
    assert detail(submitted(harness.user, hold=True), 409) == (
        "this Idempotency-Key came with another submission: send a new key"
    )
    assert "Idempotency-Key" in detail(submitted(harness.user, key="short"), 422)
    for caller, key in ((harness.caller("user", "bob", "atlas"), {}), (harness.user, {"key": "another-key-of-alice"})):
        assert submitted(caller, **key).json()["campaign"] > 1
    remove_old_rows = partial(retention.remove_old_rows, harness.state.engine, harness.state.writing)
    remove_old_rows(Settings(), harness.now_s + 86_000)
    assert submitted(harness.user).json() == answers[0].json()
    remove_old_rows(Settings(), harness.now_s + 87_000)
    assert submitted(harness.user).json()["campaign"] > 1
    harness.close()
    harness.state.engine.dispose()
