"""The OpenAPI document is true: schemathesis sends what it allows and what it forbids to the real app.

Every status that comes back is documented and every body has its documented shape; nothing that the document
forbids is taken, nothing that it allows is refused as bad input, no call works without a token. What was taken can be
shown.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.api.api_harness import ApiHarness, Caller
from tests.databases import new_sqlite
from tests.effort import IS_WHOLE
from tests.slurm.records import node, seen

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.app import create_app, described
from gleaner.control.control_state import ControlState
from gleaner.control.queue import secret_key
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, RoundSettings, Settings

pytestmark = [pytest.mark.slow, pytest.mark.schema]

AGENT = "agent-1"
NOWHERE = "sqlite:////tmp/never-opened.db"
HUGE = node("huge", cpus=4096, memory_mib=16 * 2**20 + 64)
"""So that no job that the document allows is larger than any node."""
BEYOND_A_SCHEMA = {
    "POST /v1/inputs",  # it was sent
    "POST /v1/images",  # it was sent
    "POST /v1/secrets",  # the value has the form that the URL's scheme asks for
    "POST /v1/tokens",  # a user's token needs a group, an admin's does not
    "POST /v1/jobs/{job}/attempts/{attempt}/checkpointed",  # a checkpoint's number only goes up
    "POST /v1/jobs/{job}/attempts/{attempt}/saved",  # the checkpoint's attempt is the one in the path
}
"""A schema cannot say what makes these bad input."""

SHOWN = ("/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/log", "/v1/status", "/v1/agents", "/v1/nodes", "/v1/tokens", "/metrics")

# schemathesis makes one test an operation when the module is collected; the database comes with the fixture.
LONG = RoundSettings(length_s=400_000_000)
"""So that no job that the document allows needs more time than any agent has."""
state = ControlState(Settings(rounds=LONG), connect(NOWHERE), FolderStorage(Path("/nowhere")), leads_until_s=math.inf)
app = create_app(state)
schema = schemathesis.openapi.from_dict(
    described(app),
    config=SchemathesisConfig(
        projects=ProjectsConfig(
            default=ProjectConfig(
                parameters={"path.name": AGENT}, generation=GenerationConfig(database="none", deterministic=True)
            )
        )
    ),
)
schema.app = app
TOO_LARGE = "413"  # a list that is too long is often refused for its bytes
schema.config.checks.negative_data_rejection.expected_statuses.append(TOO_LARGE)


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[dict[str, Caller]]:
    """Return one caller for each role. The queue holds jobs in every state, and one live agent.

    Each operation has a queue of its own: another may report an output that is nowhere, and to fetch that is an error.
    """
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    state.engine, state.storage = connect(new_sqlite(tmp_path)), storage
    queue = QueueSettings(secret_key_file=tmp_path / "secrets.key")
    state.settings = state.settings.model_copy(update={"queue": queue})
    secret_key.make(tmp_path / "secrets.key")
    harness = ApiHarness(state, storage)
    state.cluster = seen(harness.now_s, HUGE)
    agent = harness.agent()
    assert agent.name == AGENT
    jobs = [harness.user.submit() for _ in range(5)]
    agent.claim(most=4)
    agent.saved(jobs[1], 1, harness.publish_checkpoint(jobs[1], 1))
    agent.completed(jobs[2], 1, harness.publish_output(jobs[2], 1))
    harness.user.post(f"/v1/jobs/{jobs[3]}/hold")
    harness.user.submit(indices=[0, 1])
    looks = harness.caller("admin", "looks", None)  # whose token no case revokes
    yield {"user": harness.user, "admin": harness.admin, "agent": agent, "looks": looks}
    harness.close()
    state.engine.dispose()


@schema.parametrize()
@settings(max_examples=30 if IS_WHOLE else 3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_the_document_is_true(case: schemathesis.Case, callers: dict[str, Caller]) -> None:
    is_beyond = case.operation.label in BEYOND_A_SCHEMA or _contradicts_itself(case.body)
    excluded: list[Any] = [positive_data_acceptance] if is_beyond else []
    answer = case.call_and_validate(headers=callers[_role(case)].headers, excluded_checks=excluded)
    if case.operation.method != "get" and answer.status_code < 300:
        for path in SHOWN:
            assert callers["looks"].get(path).status_code == 200, path


def _contradicts_itself(body: Any) -> bool:
    """Return True if a job is and is not tried again after a code, or has less memory at most than at first.

    No schema forbids that, nor folders to mount, which an admin must have allowed, nor two inputs of one name, nor
    parameters and braces that do not fit together.
    """
    job = body.get("job") if isinstance(body, dict) else None
    if not isinstance(job, dict):
        return False
    retried, never = (
        codes if isinstance(codes, list) else [] for codes in map(job.get, ("retry_on", "never_retry_on"))
    )
    most, inputs = job.get("most_memory_mib"), job.get("inputs")
    names = [one.get("name") for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    if body.keys() & {"parameters", "max_running", "try_first", "max_failures"}:
        return True
    environment, outputs = (
        part if isinstance(part, dict) else {} for part in (job.get("environment"), job.get("outputs"))
    )
    if set("{}") & set(str([job.get("command"), *environment.values(), *outputs.values()])):
        return True
    if job.get("mounts") or any(names.count(name) > 1 for name in names):
        return True
    return any(code in never for code in retried) or (most is not None and most <= job.get("memory_mib", 512))


def _role(case: schemathesis.Case) -> str:
    tags = set(case.operation.tags or [])
    if "attempts" in tags or ("agents" in tags and case.operation.method == "post"):
        return "agent"
    return "admin" if tags & {"metrics", "tokens"} else "user"
