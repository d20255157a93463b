"""Draining and moving over the API: who may, what is refused at once, and how it is shown."""

import pytest
from tests.api.api_harness import ApiHarness, detail
from tests.slurm.records import node, seen

from gleaner.control.models.base import replaced
from gleaner.control.models.drains import DrainPhase
from gleaner.control.queue import drains
from gleaner.control.queue.database import transaction


def test_only_an_admin_drains_and_resumes_and_sees_drains(harness: ApiHarness) -> None:
    number = harness.admin.post("/v1/nodes/drain", {"nodes": ["n1"]}).json()["id"]
    for answer in (
        harness.user.post("/v1/nodes/drain", {"nodes": ["n2"]}),
        harness.user.post("/v1/nodes/drain", {"nodes": ["n2"], "dry_run": True}),
        harness.user.post("/v1/nodes/resume", {"nodes": ["n1"]}),
        harness.user.get("/v1/drains"),
        harness.user.get(f"/v1/drains/{number}"),
    ):
        assert "needs an admin's token" in detail(answer, 403)
    assert len(harness.admin.get("/v1/drains").json()) == 1


def test_what_is_asked_is_stored_at_once_and_done_later(harness: ApiHarness) -> None:
    asked = harness.admin.post("/v1/nodes/drain", {"nodes": ["n[1-2]", "n2,login"], "spanning": "wait"})
    assert asked.status_code == 202
    row = asked.json()
    assert (row["phase"], row["nodes"], row["by"]) == ("asked", ["n1", "n2", "login"], "root")
    assert harness.admin.get(f"/v1/drains/{row['id']}").json() == row
    assert "being drained already, by root" in detail(harness.admin.post("/v1/nodes/drain", {"nodes": ["n2"]}), 409)
    assert harness.admin.post("/v1/nodes/drain", {"nodes": ["n2"], "dry_run": True}).status_code == 202


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (["--all"], "'--all' names no nodes"),
        (["n[1-x]"], "names no nodes"),
        (["n1,n[1-2,7-6]"], "7-6 names no nodes; write 6-7"),
        (["n[1-100][1-100]"], "these are 10000 nodes; at most 1000"),
    ],
)
def test_what_names_no_nodes_is_refused_in_one_line(harness: ApiHarness, nodes: list[str], why: str) -> None:
    assert why in detail(harness.admin.post("/v1/nodes/drain", {"nodes": nodes}), 422)


def test_nodes_show_who_has_drained_them_while_slurm_says_that_they_are(harness: ApiHarness) -> None:
    number = harness.admin.post("/v1/nodes/drain", {"nodes": ["n1"]}).json()["id"]
    with transaction(harness.state.engine) as db:
        drains.record_progress(db, replaced(drains.one(db, number), phase=DrainPhase.EMPTYING))

    def shown(state: str) -> str:
        harness.state.cluster = seen(harness.now_s, node("n1", state=state))
        return str(harness.user.get("/v1/nodes").json()["nodes"][0]["drained"])

    assert shown("draining") == "by root"
    assert shown("idle") == "", "somebody else has set it back"
