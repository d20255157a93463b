"""Many agents at once, over real connections."""

import math
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest
from tests.api.api_harness import SLICE, Agent, ApiHarness, served

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
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
