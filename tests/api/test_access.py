"""The rights of each role over HTTP."""

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from tests.api.api_harness import SLICE, ApiHarness, detail

from gleaner.control.api.app import described
from gleaner.control.daemon.own_checks import own_checks
from gleaner.control.queue import leader, tokens
from gleaner.control.queue.database import transaction
from gleaner.control.settings import ClusterSettings, GroupSettings, MungeRule, MungeSettings


def _operations(harness: ApiHarness) -> Iterator[tuple[str, str]]:
    for path, operations in described(harness.client.app)["paths"].items():  # type: ignore[arg-type]
        for method in operations:
            yield method.upper(), re.sub(r"\{.*?\}", "1", path)


@pytest.mark.slow
def test_nothing_but_health_answers_without_a_token(harness: ApiHarness) -> None:
    assert len(list(_operations(harness))) > 20
    for method, path in [*_operations(harness), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nowhere")]:
        answer = harness.client.request(method, path, content=b"[not json")
        if path == "/health":
            assert answer.status_code == 200
        else:
            assert "token" in detail(answer, 401), path
            assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic YTpi", "Bearer " + "x" * 5000, "Bearer \xff\xfe"]
)
def test_a_wrong_token_is_no_token(harness: ApiHarness, header: str) -> None:
    answer = harness.client.get("/v1/status", headers={"Authorization": header.encode("latin-1")})
    detail(answer, 401)


@pytest.mark.slow
def test_every_call_says_whom_it_is_for(harness: ApiHarness) -> None:
    """The gate asks only for some token; an agent's opens nothing but agents' calls, a user's none of those."""
    agent = harness.agent()
    for method, path in _operations(harness):
        of_agents = method == "POST" and (path.startswith("/v1/agents/") or "/attempts/" in path)
        for_all = path == "/health"
        wrong = (harness.user, harness.admin) if of_agents else () if for_all else (agent,)
        for caller in wrong:
            detail(harness.client.request(method, path, headers=caller.headers), 403)


def test_health_tells_no_secrets(harness: ApiHarness) -> None:
    answer = harness.client.get("/health")
    assert answer.json()["started_s"] == harness.state.started_s > 0
    assert answer.json() | {"version": "", "now_s": 0, "started_s": 0} == {
        "status": "ok", "leader": True, "has_leader": True, "version": "", "queue": "ok", "storage": "ok",
        "failing": [], "step_ages_s": {},
        "step_every_s": {}, "started_s": 0,
        "last_poll_age_s": None,
        "storage_id": "", "storage_inode": 0, "storage_changed_s": 0.0, "now_s": 0,
        "agent_program": "glean-agent", "agent_logs": "/var/lib/gleaner/work",
        "round_length_s": 3600.0, "least_slice_s": 600.0,
    }  # fmt: skip


def test_health_tells_nodes_which_program_they_must_have(harness: ApiHarness) -> None:
    cluster = ClusterSettings(backend="slurm", agent_command=("/opt/site/glean-agent", "--more"))
    harness.change(cluster=cluster)
    assert harness.client.get("/health").json()["agent_program"] == "/opt/site/glean-agent"
    with pytest.raises(ValueError, match="at least 1 item"):
        ClusterSettings(agent_command=())


def leads(harness: ApiHarness) -> tuple[bool, bool]:
    """Return from `/health` if this control program leads, and if any does."""
    said = harness.client.get("/health").json()
    return said["leader"], said["has_leader"]


@pytest.mark.slow
def test_a_user_sees_and_changes_only_the_own_groups_jobs_logs_and_results(harness: ApiHarness) -> None:
    job = harness.user.submit()
    stranger = harness.caller("user", "carol", "cms")
    for answer in [
        stranger.get(f"/v1/jobs/{job}"),
        stranger.get(f"/v1/jobs/{job}/log"),
        stranger.get(f"/v1/jobs/{job}/output"),
        stranger.get(f"/v1/jobs/{job}/result"),
        stranger.post(f"/v1/jobs/{job}/hold"),
        stranger.post(f"/v1/jobs/{job}/release"),
        stranger.post(f"/v1/jobs/{job}/cancel"),
        stranger.post(f"/v1/jobs/{job}/rerun"),
        stranger.patch(f"/v1/jobs/{job}", {"priority": 5}),
    ]:
        assert "another group" in detail(answer, 403)
    assert stranger.get("/v1/jobs").json() == {"jobs": [], "total": 0}
    assert stranger.get("/v1/status").json()["new"] == 0
    assert harness.user.get("/v1/status").json()["new"] == 1
    assert harness.admin.get("/v1/status").json()["new"] == 1
    assert "atlas" not in detail(stranger.get("/v1/jobs", group="atlas"), 403)


def test_a_campaign_belongs_to_its_group(harness: ApiHarness) -> None:
    harness.user.submit(indices=[0, 1])
    stranger = harness.caller("user", "carol", "cms")
    for verb in ["hold", "release", "cancel", "rerun"]:
        assert "another group" in detail(stranger.post(f"/v1/campaigns/1/{verb}"), 403)
    for path in ["/v1/campaigns/1", "/v1/campaigns/1/results"]:
        assert "another group" in detail(stranger.get(path), 403)
    assert harness.user.get("/v1/campaigns/1").json()["new"] == 2


def test_a_job_is_for_a_group_that_there_is(harness: ApiHarness) -> None:
    """Those that have tokens or stand in the settings; a mistyped one would wait for nobody."""
    spec = {"name": "pi", "image": "gleaner/pi"}
    said = detail(harness.admin.post("/v1/jobs", {"job": spec, "group": "atals"}), 422)
    assert said == (
        "group: there is no group atals; there are atlas. "
        "`glean token create --role user --name NAME --group atals` makes it, or [groups] in control's settings"
    )
    assert "no group atals" in detail(harness.admin.get("/v1/jobs", group="atals"), 422)
    assert harness.admin.get("/v1/jobs").json()["total"] == 0
    harness.admin.submit(group="atlas")
    harness.caller("user", "bob", "atals")
    harness.admin.submit(group="atals")
    named = GroupSettings(entitled={"cms": 10.0}, multiplier={"lhcb": 2.0})
    harness.change(groups=named)
    assert [harness.admin.submit(group=group) for group in ("cms", "lhcb")]
    harness.state.slurm_shares = {"physics": 50.0}
    harness.admin.submit(group="physics")
    vouched = MungeSettings(allow=(MungeRule(unix_group="users", group="theory"), MungeRule(user="eve", role="admin")))
    harness.change(munge=vouched)
    harness.admin.submit(group="theory")
    assert "there are atals, atlas" in detail(harness.admin.post("/v1/jobs", {"job": spec, "group": "nosuch"}), 422)


def test_while_there_is_no_group_at_all_the_first_admin_may_name_any(harness: ApiHarness) -> None:
    with transaction(harness.state.engine) as db:
        tokens.revoke(db, role="user", name="alice", now_s=harness.now_s)
    harness.admin.submit(group="trial")


def test_only_an_admin_names_another_group(harness: ApiHarness) -> None:
    spec = {"name": "pi", "image": "gleaner/pi"}
    assert "atlas only" in detail(harness.user.post("/v1/jobs", {"job": spec, "group": "cms"}), 403)
    assert "name the one" in detail(harness.admin.post("/v1/jobs", {"job": spec}), 422)
    harness.caller("user", "bob", "cms")
    job = harness.admin.submit(group="cms")
    assert harness.admin.get(f"/v1/jobs/{job}").json()["job"]["group"] == "cms"


def test_an_agents_token_allows_only_that_agent(harness: ApiHarness) -> None:
    one, other = harness.agent(), harness.agent()
    assert "another agent" in detail(one.post(f"/v1/agents/{other.name}/claim", {"cpus": 1, "memory_mib": 512}), 403)
    assert "another agent" in detail(one.post("/v1/agents/nobody/beat", {}), 403)


def test_an_agent_reports_only_its_own_attempts(harness: ApiHarness) -> None:
    one, other = harness.agent("n1"), harness.agent("n2")
    job = harness.user.submit()
    claimed = one.claim()[0]
    assert "another agent" in detail(other.completed(job, claimed["attempt"]), 403)
    report = {"why": "unstarted", "slice": SLICE}
    assert "another agent" in detail(other.report(job, claimed["attempt"], "return", report), 403)
    assert "another agent" in detail(other.report(job, claimed["attempt"], "log", {"first": 0, "lines": ["x"]}), 403)
    published = harness.publish_checkpoint(job, claimed["attempt"])
    assert "another agent" in detail(other.checkpointed(job, claimed["attempt"], published, 1), 403)
    assert "another agent" in detail(other.saved(job, claimed["attempt"], published), 403)
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "Running"
    assert one.completed(job, claimed["attempt"]).status_code == 204


def test_only_an_admin_makes_tokens_and_reads_metrics(harness: ApiHarness) -> None:
    detail(harness.user.post("/v1/tokens", {"role": "user", "name": "bob", "group": "atlas"}), 403)
    detail(harness.user.get("/metrics"), 403)
    assert "needs the group" in detail(harness.admin.post("/v1/tokens", {"role": "user", "name": "bob"}), 422)
    detail(harness.admin.post("/v1/tokens", {"role": "agent", "name": "bob"}), 422)
    made = harness.admin.post("/v1/tokens", {"role": "user", "name": "bob", "group": "atlas"})
    assert made.status_code == 201
    bob = {"Authorization": f"Bearer {made.json()['token']}"}
    assert harness.client.get("/v1/status", headers=bob).status_code == 200
    with harness.state.engine.connect() as connection:
        stored = str(connection.execute(text("SELECT * FROM token")).all())
    assert made.json()["token"] not in stored


def test_a_program_that_does_not_lead_serves_reads_and_names_the_leader(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent()
    harness.state.leads_until_s = 0.0
    assert harness.user.get(f"/v1/jobs/{job}").status_code == 200
    assert detail(harness.user.post(f"/v1/jobs/{job}/hold"), 503).endswith("no control program leads now")
    assert leads(harness) == (False, False)
    with transaction(harness.state.engine) as db:
        leader.try_lead(db, "head2:8642", now=leader.NOW, term_s=60)
    for answer in [
        harness.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"}}),
        harness.user.patch(f"/v1/jobs/{job}", {"priority": 1}),
        harness.user.post(f"/v1/jobs/{job}/cancel"),
        harness.user.post(f"/v1/jobs/{job}/rerun"),
        harness.admin.post("/v1/tokens", {"role": "admin", "name": "x"}),
        agent.ask("claim", {"cpus": 1, "memory_mib": 512}),
        agent.ask("beat", {}),
    ]:
        assert detail(answer, 503).endswith("head2:8642 leads")
        assert answer.headers["Retry-After"]
    own_checks(harness.state)[0].run_once(harness.state, harness.now_s)
    assert leads(harness) == (False, True)
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "New"


def test_the_peoples_door_reads_always_and_writes_while_any_program_leads(harness: ApiHarness) -> None:
    harness.state.follows = True
    harness.state.leads_until_s = 0.0
    assert harness.user.get("/v1/jobs").status_code == 200
    assert detail(harness.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"}}), 503)
    assert "gleaner_leader 0.0" in harness.admin.get("/metrics").text
    with transaction(harness.state.engine) as db:
        leader.try_lead(db, "head2:8643", now=leader.NOW, term_s=60)
    assert "gleaner_leader 1.0" in harness.admin.get("/metrics").text
    harness.user.submit()
    with transaction(harness.state.engine) as db:
        leader.resign(db, "head2:8643")
    assert detail(harness.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"}}), 503)


def test_a_user_sees_which_agents_there_are_and_of_their_jobs_the_own_groups(harness: ApiHarness) -> None:
    job = harness.user.submit()
    other = harness.caller("user", "bob", "cms").submit()
    agent = harness.agent()
    assert [assignment["job"] for assignment in agent.claim(most=2)] == [job, other]
    assert harness.user.get("/v1/agents").json()[0]["jobs"] == [job]
    assert harness.admin.get("/v1/agents").json()[0]["jobs"] == [job, other]
