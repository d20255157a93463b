"""Who may do what."""

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from tests.api.house import SLICE, House, detail

from gleaner.control.api.app import described
from gleaner.control.queue import leader, tokens
from gleaner.control.queue.engine import transaction
from gleaner.control.settings import GroupSettings, MungeRule, MungeSettings


def _operations(house: House) -> Iterator[tuple[str, str]]:
    for path, operations in described(house.client.app)["paths"].items():  # type: ignore[arg-type]
        for method in operations:
            yield method.upper(), re.sub(r"\{.*?\}", "1", path)


@pytest.mark.slow
def test_nothing_but_health_answers_without_a_token(house: House) -> None:
    assert len(list(_operations(house))) > 20
    for method, path in [*_operations(house), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nowhere")]:
        answer = house.client.request(method, path, content=b"[not json")
        if path == "/health":
            assert answer.status_code == 200
        else:
            assert "token" in detail(answer, 401), path
            assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic YTpi", "Bearer " + "x" * 5000, "Bearer \xff\xfe"]
)
def test_a_wrong_token_is_no_token(house: House, header: str) -> None:
    answer = house.client.get("/v1/status", headers={"Authorization": header.encode("latin-1")})  # type: ignore[dict-item]
    detail(answer, 401)


@pytest.mark.slow
def test_every_call_says_whom_it_is_for(house: House) -> None:
    """The gate asks only for some token; an agent's opens nothing but agents' calls, a user's none of those."""
    agent = house.agent()
    for method, path in _operations(house):
        of_agents = method == "POST" and (path.startswith("/v1/agents/") or "/attempts/" in path)
        for_all = path == "/health"
        wrong = (house.user, house.admin) if of_agents else () if for_all else (agent,)
        for caller in wrong:
            detail(house.client.request(method, path, headers=caller.headers), 403)


def test_health_tells_no_secrets(house: House) -> None:
    answer = house.client.get("/health")
    assert answer.json() | {"version": ""} == {"status": "ok", "leader": True, "version": "", "queue": "ok"}


def test_a_user_sees_and_changes_only_the_own_groups_jobs(house: House) -> None:
    job = house.user.submit()
    stranger = house.caller("user", "carol", "cms")
    for answer in [
        stranger.get(f"/v1/jobs/{job}"),
        stranger.get(f"/v1/jobs/{job}/log"),
        stranger.get(f"/v1/jobs/{job}/output"),
        stranger.post(f"/v1/jobs/{job}/hold"),
        stranger.post(f"/v1/jobs/{job}/release"),
        stranger.post(f"/v1/jobs/{job}/cancel"),
        stranger.patch(f"/v1/jobs/{job}", {"priority": 5}),
    ]:
        assert "another group" in detail(answer, 403)
    assert stranger.get("/v1/jobs").json() == {"jobs": [], "total": 0}
    assert stranger.get("/v1/status").json()["new"] == 0
    assert house.user.get("/v1/status").json()["new"] == 1
    assert house.admin.get("/v1/status").json()["new"] == 1
    assert "atlas" not in detail(stranger.get("/v1/jobs", group="atlas"), 403)


def test_a_campaign_belongs_to_its_group(house: House) -> None:
    house.user.submit(indices=[0, 1])
    stranger = house.caller("user", "carol", "cms")
    for path in ["/v1/campaigns/1/hold", "/v1/campaigns/1/release", "/v1/campaigns/1/cancel"]:
        assert "another group" in detail(stranger.post(path), 403)
    assert "another group" in detail(stranger.get("/v1/campaigns/1"), 403)
    assert house.user.get("/v1/campaigns/1").json()["new"] == 2


def test_a_job_is_for_a_group_that_there_is(house: House) -> None:
    """Those that have tokens or stand in the settings; a mistyped one would wait for nobody."""
    spec = {"name": "pi", "image": "gleaner/pi"}
    said = detail(house.admin.post("/v1/jobs", {"job": spec, "group": "atals"}), 422)
    assert said == (
        "group: there is no group atals; there are atlas. "
        "`glean token create --role user --name NAME --group atals` makes it, or [groups] in control's settings"
    )
    assert house.admin.get("/v1/jobs").json()["total"] == 0
    house.admin.submit(group="atlas")
    house.caller("user", "bob", "atals")
    house.admin.submit(group="atals")
    named = GroupSettings(entitled={"cms": 10.0}, multiplier={"lhcb": 2.0})
    house.site.settings = house.site.settings.model_copy(update={"groups": named})
    assert [house.admin.submit(group=group) for group in ("cms", "lhcb")]
    house.site.slurm_shares = {"physics": 50.0}
    house.admin.submit(group="physics")
    vouched = MungeSettings(allow=(MungeRule(unix_group="users", group="theory"), MungeRule(user="eve", role="admin")))
    house.site.settings = house.site.settings.model_copy(update={"munge": vouched})
    house.admin.submit(group="theory")
    assert "there are atals, atlas" in detail(house.admin.post("/v1/jobs", {"job": spec, "group": "nosuch"}), 422)


def test_a_group_whose_last_token_was_revoked_is_none_any_more(house: House) -> None:
    house.caller("user", "bob", "cms")
    with transaction(house.site.engine) as db:
        tokens.revoke(db, role="user", name="bob", now_s=house.now_s)
    spec = {"name": "pi", "image": "gleaner/pi"}
    assert "no group cms" in detail(house.admin.post("/v1/jobs", {"job": spec, "group": "cms"}), 422)


def test_while_there_is_no_group_at_all_the_first_admin_may_name_any(house: House) -> None:
    with transaction(house.site.engine) as db:
        tokens.revoke(db, role="user", name="alice", now_s=house.now_s)
    house.admin.submit(group="trial")


def test_only_an_admin_names_another_group(house: House) -> None:
    spec = {"name": "pi", "image": "gleaner/pi"}
    assert "atlas only" in detail(house.user.post("/v1/jobs", {"job": spec, "group": "cms"}), 403)
    assert "name the one" in detail(house.admin.post("/v1/jobs", {"job": spec}), 422)
    house.caller("user", "bob", "cms")
    job = house.admin.submit(group="cms")
    assert house.admin.get(f"/v1/jobs/{job}").json()["job"]["group"] == "cms"


def test_an_agents_token_allows_only_that_agent(house: House) -> None:
    one, other = house.agent(), house.agent()
    job = house.user.submit()
    assert "another agent" in detail(one.post(f"/v1/agents/{other.name}/claim", {"cpus": 1, "memory_mib": 512}), 403)
    assert "another agent" in detail(one.post("/v1/agents/nobody/beat", {}), 403)
    for path in ["/v1/jobs", f"/v1/jobs/{job}", "/v1/agents", "/v1/nodes", "/v1/status", "/metrics"]:
        detail(one.get(path), 403)
    detail(one.post(f"/v1/jobs/{job}/cancel"), 403)
    detail(one.post("/v1/tokens", {"role": "admin", "name": "x"}), 403)


def test_an_agent_reports_only_its_own_attempts(house: House) -> None:
    one, other = house.agent("n1"), house.agent("n2")
    job = house.user.submit()
    claimed = one.claim()[0]
    assert "another agent" in detail(other.completed(job, claimed["attempt"]), 403)
    report = {"why": "unstarted", "slice": SLICE}
    assert "another agent" in detail(other.report(job, claimed["attempt"], "given-back", report), 403)
    assert "another agent" in detail(other.report(job, claimed["attempt"], "log", {"first": 0, "lines": ["x"]}), 403)
    assert house.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "Running"
    assert one.completed(job, claimed["attempt"]).status_code == 204


def test_users_and_admins_are_no_agents(house: House) -> None:
    agent = house.agent()
    for caller in (house.user, house.admin):
        body = {"cpus": 1, "memory_mib": 512}
        assert "agent's token" in detail(caller.post(f"/v1/agents/{agent.name}/claim", body), 403)
        detail(caller.post("/v1/jobs/1/attempts/1/given-back", {"why": "unstarted"}), 403)


def test_only_an_admin_makes_tokens_and_reads_metrics(house: House) -> None:
    detail(house.user.post("/v1/tokens", {"role": "user", "name": "bob", "group": "atlas"}), 403)
    detail(house.user.get("/metrics"), 403)
    assert "needs the group" in detail(house.admin.post("/v1/tokens", {"role": "user", "name": "bob"}), 422)
    detail(house.admin.post("/v1/tokens", {"role": "agent", "name": "bob"}), 422)
    made = house.admin.post("/v1/tokens", {"role": "user", "name": "bob", "group": "atlas"})
    assert made.status_code == 201
    bob = {"Authorization": f"Bearer {made.json()['token']}"}
    assert house.client.get("/v1/status", headers=bob).status_code == 200
    with house.site.engine.connect() as connection:
        stored = str(connection.execute(text("SELECT * FROM token")).all())
    assert made.json()["token"] not in stored


def test_a_revoked_token_ends_within_seconds(house: House) -> None:
    assert house.user.get("/v1/status").status_code == 200
    with transaction(house.site.engine) as db:
        tokens.revoke(db, role="user", name="alice", now_s=house.now_s)
    house.now_s += 6
    detail(house.user.get("/v1/status"), 401)


def test_the_openapi_document_needs_a_token_and_says_so_of_every_call(house: House) -> None:
    document = house.user.get("/openapi.json").json()
    assert document["security"] == [{"token": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert house.agent().get("/openapi.json").status_code == 200


def test_a_program_that_does_not_lead_serves_reads_and_names_the_leader(house: House) -> None:
    job = house.user.submit()
    agent = house.agent()
    house.site.leads_until_s = 0.0
    assert house.user.get(f"/v1/jobs/{job}").status_code == 200
    assert detail(house.user.post(f"/v1/jobs/{job}/hold"), 503).endswith("none leads yet")
    with transaction(house.site.engine) as db:
        leader.try_lead(db, "head2:8642", now=leader.NOW, term_s=60)
    for answer in [
        house.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"}}),
        house.user.patch(f"/v1/jobs/{job}", {"priority": 1}),
        house.user.post(f"/v1/jobs/{job}/cancel"),
        house.admin.post("/v1/tokens", {"role": "admin", "name": "x"}),
        agent.ask("claim", {"cpus": 1, "memory_mib": 512}),
        agent.ask("beat", {}),
    ]:
        assert detail(answer, 503).endswith("head2:8642 leads")
        assert answer.headers["Retry-After"]
    assert house.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "New"
