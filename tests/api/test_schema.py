"""The OpenAPI document is true: schemathesis sends what it allows and what it forbids to the real app.

Every status that comes back is documented and every body has its documented shape; nothing that the document
forbids is taken, nothing that it allows is refused as bad input, no call works without a token.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.api.house import Caller, House
from tests.databases import new_sqlite

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.api.app import create_app, described
from gleaner.control.cluster.gateway import ClusterView, Node
from gleaner.control.queue.engine import connect
from gleaner.control.settings import Settings
from gleaner.control.site import Site

pytestmark = pytest.mark.slow

AGENT = "agent-1"
NOWHERE = "sqlite:////tmp/never-opened.db"
HUGE = Node("huge", cpus=4096, memory_mib=16 * 2**20, idle=True)
"""So that no job that the document allows is larger than any node."""
BEYOND_A_SCHEMA = {
    "POST /v1/tokens",  # a user's token needs a group, an admin's does not
    "POST /v1/jobs/{job}/attempts/{attempt}/checkpointed",  # a generation's number only goes up
    "POST /v1/jobs/{job}/attempts/{attempt}/saved",  # the generation's attempt is the one in the path
}
"""A schema cannot say what makes these bad input."""

# schemathesis makes one test an operation when the module is collected; the database comes with the fixture.
site = Site(Settings(), connect(NOWHERE), FolderStorage(Path("/nowhere")), leads_until_s=math.inf)
app = create_app(site)
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


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[dict[str, Caller]]:
    """Return one caller for each role. The queue holds jobs in every state, and one live agent.

    Each operation has a queue of its own: another may report an output that is nowhere, and to fetch that is an error.
    """
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    site.engine, site.storage = connect(new_sqlite(tmp_path)), storage
    house = House(site, storage)
    site.cluster = ClusterView(house.now_s, (HUGE,), ())
    agent = house.agent()
    assert agent.name == AGENT
    jobs = [house.user.submit() for _ in range(5)]
    agent.claim(most=4)
    agent.saved(jobs[1], 1, house.publish_generation(jobs[1], 1))
    agent.completed(jobs[2], 1, house.publish_output(jobs[2], 1))
    house.user.post(f"/v1/jobs/{jobs[3]}/hold")
    house.user.submit(indices=[0, 1])
    yield {"user": house.user, "admin": house.admin, "agent": agent}
    house.close()
    site.engine.dispose()


@schema.parametrize()
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_document_is_true(case: schemathesis.Case, callers: dict[str, Caller]) -> None:
    excluded = [positive_data_acceptance] if case.operation.label in BEYOND_A_SCHEMA else []
    case.call_and_validate(headers=callers[_role(case)].headers, excluded_checks=excluded)


def _role(case: schemathesis.Case) -> str:
    tags = set(case.operation.tags or [])
    if "attempts" in tags or ("agents" in tags and case.operation.method == "post"):
        return "agent"
    return "admin" if tags & {"metrics", "tokens"} else "user"
