"""The right to change a job, the record of who changed it, and the life of tokens."""

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import func, select
from tests.api.api_harness import ApiHarness, Caller, detail

from gleaner.control.api.audit import UNKNOWN_A_MINUTE
from gleaner.control.daemon.storage_gc import forget_tokens
from gleaner.control.policy.quotas import Limit, Quantity, QuotaRules
from gleaner.control.queue import agents, jobs, retention, tokens
from gleaner.control.queue.database import transaction
from gleaner.control.queue.tables import TOKEN
from gleaner.control.settings import AuditSettings

DAY_S = 24 * 3600.0


def made(harness: ApiHarness, role: str, name: str, group: str | None = None, **more: Any) -> Caller:
    answer = harness.admin.post("/v1/tokens", {"role": role, "name": name, "group": group} | more)
    assert answer.status_code == 201, answer.text
    return Caller(harness.client, {"Authorization": f"Bearer {answer.json()['token']}"}, name)


def changes(job: int) -> list[tuple[str, object]]:
    verbs: list[tuple[str, object]] = [(f"/v1/jobs/{job}/{verb}", None) for verb in ("hold", "release", "cancel")]
    return [*verbs, (f"/v1/jobs/{job}/migrate", {})]


@pytest.mark.slow
def test_a_job_is_changed_by_its_submitter_the_groups_managers_and_admins_only(harness: ApiHarness) -> None:
    job = harness.user.submit()
    bob = harness.caller("user", "bob", "atlas")
    for path, body in changes(job):
        line = detail(bob.post(path, body), 403)
        assert line == (
            f"job {job} was submitted by alice: only alice, a manager of group atlas or an admin may change it"
        )
    detail(bob.patch(f"/v1/jobs/{job}", {"priority": 5}), 403)
    assert bob.get(f"/v1/jobs/{job}").json()["job"]["submitter"] == "alice", "seeing is for the whole group"
    manager = made(harness, "user", "mary", "atlas", manager=True)
    stranger = made(harness, "user", "carl", "cms", manager=True)
    for caller in (manager, harness.user, harness.admin):
        assert caller.post(f"/v1/jobs/{job}/hold").status_code == 200
        assert caller.post(f"/v1/jobs/{job}/release").status_code == 200
    assert "another group" in detail(stranger.post(f"/v1/jobs/{job}/hold"), 403)


def test_a_campaign_is_changed_by_its_submitter_the_groups_managers_and_admins_only(harness: ApiHarness) -> None:
    harness.user.submit(indices=[0, 1])
    bob, manager = harness.caller("user", "bob", "atlas"), made(harness, "user", "mary", "atlas", manager=True)
    for verb in ("hold", "release", "cancel"):
        assert "only alice" in detail(bob.post(f"/v1/campaigns/1/{verb}"), 403)
    assert "only alice" in detail(bob.patch("/v1/campaigns/1", {"priority": 5}), 403)
    assert bob.get("/v1/campaigns/1").json()["new"] == 2
    assert manager.post("/v1/campaigns/1/cancel").json()["cancelled"] == 2


@pytest.mark.slow
def test_every_change_names_its_actor_in_the_jobs_events(harness: ApiHarness) -> None:
    harness.user.submit(indices=[0])
    manager = made(harness, "user", "mary", "atlas", manager=True)
    manager.post("/v1/jobs/1/hold")
    manager.post("/v1/jobs/1/release")
    harness.user.patch("/v1/jobs/1", {"priority": 3})
    harness.admin.post("/v1/campaigns/1/hold")
    manager.post("/v1/campaigns/1/release")
    manager.post("/v1/jobs/1/cancel")
    events = harness.user.get("/v1/jobs/1").json()["events"]
    assert [(each["what"], each["detail"]) for each in events] == [
        ("submit", "by alice"),
        ("hold", "by mary"),
        ("release", "by mary"),
        ("priority", "from 0 to 3, by alice"),
        ("hold", "by root"),
        ("release", "by mary"),
        ("cancel", "by mary"),
    ]
    harness.user.submit(indices=[0, 1])
    manager.post("/v1/campaigns/2/cancel")
    assert harness.user.get("/v1/jobs/2").json()["events"][-1]["detail"] == "by mary"


def test_a_token_that_has_expired_is_refused_with_one_line_that_says_so(harness: ApiHarness) -> None:
    bob = made(harness, "user", "bob", "atlas", days=2)
    assert bob.get("/v1/status").status_code == 200
    harness.now_s += 2 * DAY_S - 1
    assert bob.get("/v1/status").status_code == 200
    harness.now_s += 1  # it is remembered still, and counts no more
    assert "this token expired at " in detail(bob.get("/v1/status"), 401)


@pytest.mark.slow
def test_tokens_are_listed_without_secrets_ended_and_replaced(harness: ApiHarness) -> None:
    bob = made(harness, "user", "bob", "atlas", days=10)
    secret = bob.headers["Authorization"].removeprefix("Bearer ")
    listed = harness.admin.get("/v1/tokens")
    (mine,) = [each for each in listed.json() if each["name"] == "bob"]
    assert (mine["role"], mine["group"], mine["manager"], mine["revoked_s"]) == ("user", "atlas", False, None)
    assert mine["expires_s"] - mine["issued_s"] == 10 * DAY_S
    assert secret not in listed.text
    assert tokens.digest(secret) not in listed.text
    harness.now_s += DAY_S
    fresh = harness.admin.post(f"/v1/tokens/{mine['id']}/rotate").json()
    assert fresh["expires_s"] == harness.now_s + 10 * DAY_S
    assert fresh["token"] != secret
    harness.now_s += 6
    detail(bob.get("/v1/status"), 401)
    again = Caller(harness.client, {"Authorization": f"Bearer {fresh['token']}"}, "bob")
    assert again.get("/v1/status").status_code == 200
    assert "was revoked" in detail(harness.admin.post(f"/v1/tokens/{mine['id']}/rotate"), 409)
    for _ in range(2):
        assert harness.admin.post(f"/v1/tokens/{fresh['id']}/revoke").json()["revoked_s"] == harness.now_s
    harness.now_s += 6
    detail(again.get("/v1/status"), 401)
    assert "bob" not in harness.admin.get("/v1/tokens").text
    assert harness.admin.get("/v1/tokens", all=1).text.count('"bob"') == 2


def test_a_user_sees_and_replaces_only_the_own_tokens(harness: ApiHarness) -> None:
    bob = made(harness, "user", "bob", "atlas")
    (mine,) = bob.get("/v1/tokens").json()
    (other,) = harness.user.get("/v1/tokens").json()
    assert (mine["name"], other["name"]) == ("bob", "alice")
    for verb in ("revoke", "rotate"):
        assert "of yours" in detail(bob.post(f"/v1/tokens/{other['id']}/{verb}"), 404)
        detail(bob.post(f"/v1/tokens/{'0' * 12}/{verb}"), 404)
        detail(bob.post(f"/v1/tokens/nonsense/{verb}"), 422)
    fresh = bob.post("/v1/tokens/own/rotate").json()["token"]
    harness.now_s += 6
    detail(bob.get("/v1/status"), 401)
    assert harness.client.get("/v1/status", headers={"Authorization": f"Bearer {fresh}"}).status_code == 200
    detail(harness.agent().get("/v1/tokens"), 403)


@pytest.mark.slow
def test_a_weaker_token_is_not_made_into_a_stronger_one_of_the_same_owner(harness: ApiHarness) -> None:
    """One that was lent to a script, or was stolen, would else be worth all that its owner may do."""
    mary, strong = (made(harness, "user", "mary", "atlas", manager=manager) for manager in (False, True))
    weak = harness.admin.get("/v1/tokens").json()
    ids = {each["manager"]: each["id"] for each in weak if each["name"] == "mary"}
    line = detail(mary.post(f"/v1/tokens/{ids[True]}/rotate"), 403)
    assert line == f"token {ids[True]} belongs to a manager: rotate it with itself, or ask an admin"
    assert strong.get("/v1/status").status_code == 200, "a refusal changes nothing"
    short, (long_,) = made(harness, "user", "bob", "atlas", days=1), made_id(harness, "bob", days=30)
    assert short.get("/v1/status").status_code == 200
    assert "is valid for longer than the one that you send" in detail(short.post(f"/v1/tokens/{long_}/rotate"), 403)
    (endless,) = made_id(harness, "bob")
    assert "is valid for longer" in detail(short.post(f"/v1/tokens/{endless}/rotate"), 403)
    assert short.post("/v1/tokens/own/rotate").status_code == 201
    assert mary.post(f"/v1/tokens/{ids[True]}/revoke").status_code == 200, "whoever finds one stolen may end it"
    assert "was revoked" in detail(
        made(harness, "user", "mary", "atlas", manager=True).post(f"/v1/tokens/{ids[True]}/rotate"), 409
    )


def made_id(harness: ApiHarness, name: str, **more: Any) -> set[str]:
    """The id of a new token of this user."""
    before = {each["id"] for each in harness.admin.get("/v1/tokens").json()}
    made(harness, "user", name, "atlas", **more)
    return {each["id"] for each in harness.admin.get("/v1/tokens").json()} - before


@pytest.mark.slow
def test_a_metrics_token_reads_the_metrics_and_nothing_else(harness: ApiHarness) -> None:
    prometheus = made(harness, "metrics", "prometheus")
    assert prometheus.get("/metrics").status_code == 200
    agent = harness.agent()
    paths = ["/v1/status", "/v1/jobs", "/v1/tokens", "/v1/nodes", "/v1/agents", "/v1/owners", "/openapi.json"]
    for path in paths:
        detail(prometheus.get(path), 403)
    for path, body in [*changes(1), (f"/v1/agents/{agent.name}/beat", {}), ("/v1/jobs", {"job": {}})]:
        detail(prometheus.post(path, body), 403)
    assert harness.nobody.get("/metrics").status_code == 401
    assert "can be that of a group's manager" in detail(
        harness.admin.post("/v1/tokens", {"role": "metrics", "name": "x", "manager": True}), 422
    )


def remove_old_tokens(harness: ApiHarness) -> None:
    state = harness.state
    retention.remove_old_rows(state.engine, state.writing, state.settings, harness.now_s)
    folder = state.settings.storage.folder / "agents"
    (folder / "some-agent").mkdir(parents=True, exist_ok=True)
    forget_tokens(state, folder, harness.now_s)


@pytest.mark.slow
def test_an_agents_token_ends_an_hour_after_its_farewell_and_is_removed(harness: ApiHarness) -> None:
    agent = harness.agent()
    assert agent.ask("farewell", {"ended_s": harness.now_s}).status_code == 204
    harness.now_s += tokens.LATE_REPORTS_S - 1
    assert agent.ask("farewell", {"ended_s": harness.now_s}).status_code == 204, "said again, it is late and heard"
    harness.now_s += 1
    assert "expired" in detail(agent.ask("beat", {}), 401)
    harness.now_s += tokens.LATE_REPORTS_S + 1
    remove_old_tokens(harness)
    with harness.state.engine.connect() as db:
        assert db.execute(select(func.count()).where(TOKEN.c.role == "agent")).scalar_one() == 0
    assert harness.user.get("/v1/status").status_code == 200, "people's tokens stay"


def test_the_token_of_an_agent_that_never_said_farewell_ends_as_well(harness: ApiHarness) -> None:
    agent = harness.agent()
    harness.now_s += 3600 + tokens.AGENT_OVERTIME_S
    assert "expired" in detail(agent.ask("beat", {}), 401)
    with transaction(harness.state.engine) as db:
        agents.expire(db, agent.name, now_s=harness.now_s, losses_until_held=3)
        assert agents.close_silent(db, agent.name, now_s=harness.now_s, losses_until_held=3)
    harness.now_s += 2 * tokens.LATE_REPORTS_S
    remove_old_tokens(harness)
    with harness.state.engine.connect() as db:
        assert db.execute(select(func.count()).where(TOKEN.c.role == "agent")).scalar_one() == 0


# --- the audit log


@pytest.fixture
def audited(harness: ApiHarness, tmp_path: Path) -> ApiHarness:
    """The same control with an audit log of its own, in `audit.jsonl`."""
    return harness.reopened(audit=AuditSettings(file=tmp_path / "audit.jsonl"))


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_audit_log_has_one_line_for_each_write_refused_ones_included(audited: ApiHarness, tmp_path: Path) -> None:
    alice = audited.user
    alice.submit(indices=[4, 5])
    bob = audited.caller("user", "bob", "atlas")
    detail(bob.post("/v1/jobs/1/cancel"), 403)
    detail(bob.post("/v1/jobs", {"job": {"name": "pi"}}), 422)
    detail(bob.post("/v1/jobs/99/hold"), 404)
    alice.patch("/v1/jobs/2", {"priority": 1})
    alice.get("/v1/jobs")
    answer = audited.admin.post("/v1/tokens", {"role": "user", "name": "eve", "group": "cms"}).json()
    agent = audited.agent()
    agent.claim()
    detail(agent.ask("claim", {"cpus": -1, "memory_mib": 1}), 422)
    detail(audited.nobody.post("/v1/jobs/1/cancel"), 401)
    found = lines(tmp_path)
    assert [(each["who"], each["what"], each["about"], each["status"]) for each in found] == [
        ("alice", "submit", ["group atlas, jobs 1 to 2"], 201),
        ("bob", "cancel", ["job 1"], 403),
        ("bob", "submit", [], 422),
        ("bob", "hold", ["job 99"], 404),
        ("alice", "change", ["job 2"], 200),
        ("root", "issue", [f"user eve, token {answer['id']}"], 201),
        (agent.name, "claim", [f"name {agent.name}"], 422),
        (None, "none", [], 401),
    ]
    assert all(each["from"].startswith("testclient:") and each["at"].startswith("2027-") for each in found)
    assert found[1]["group"] == "atlas"
    assert found[1]["by"].startswith("token ")
    text = (tmp_path / "audit.jsonl").read_text()
    for caller in (alice, bob, audited.admin, agent):
        assert caller.headers["Authorization"].removeprefix("Bearer ") not in text
    assert answer["token"] not in text


def test_a_write_that_ends_in_a_bug_of_ours_has_its_line_too(
    audited: ApiHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = audited.user.submit()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(jobs, "hold", broken)
    told = detail(audited.user.post(f"/v1/jobs/{job}/hold"), 500)
    found = lines(tmp_path)
    assert [(each["what"], each["status"]) for each in found] == [("submit", 201), ("hold", 500)]
    assert told.endswith(f"its log shows what (request {found[1]['request']})")
    assert found[0]["request"] != found[1]["request"]


@pytest.mark.parametrize("given", ["proxy-7.a", "", "two words", "line\tline", "é", "x" * 65])
def test_a_request_keeps_the_id_that_a_proxy_has_given_if_it_is_a_plain_word(
    audited: ApiHarness, tmp_path: Path, given: str
) -> None:
    token = audited.user.headers
    answer = audited.client.post("/v1/jobs/9/hold", headers=token | {"X-Request-Id": given.encode()})
    its_id = answer.headers["X-Request-Id"]
    assert lines(tmp_path)[-1]["request"] == its_id
    assert its_id == given if given == "proxy-7.a" else re.fullmatch("[0-9a-f]{16}", its_id)


@pytest.mark.slow
def test_unknown_callers_cannot_fill_the_audit_log(audited: ApiHarness, tmp_path: Path) -> None:
    for number in range(UNKNOWN_A_MINUTE + 30):
        audited.client.post("/v1/jobs", headers={"Authorization": f"Bearer {number}"})
    assert len(lines(tmp_path)) == UNKNOWN_A_MINUTE
    audited.user.submit()
    audited.now_s += 60
    audited.client.post("/v1/jobs")
    *_, known, unknown = lines(tmp_path)
    assert (known["who"], known["status"], unknown["who"]) == ("alice", 201, None)


def test_an_audit_log_that_is_too_large_is_renamed_and_only_so_many_are_kept(
    harness: ApiHarness, tmp_path: Path
) -> None:
    from gleaner.control.api.audit import AuditFile

    file = AuditFile(AuditSettings(file=tmp_path / "audit.jsonl", largest_mib=1, keep=2))
    for number in range(50):
        file.write({"number": number, "x": "x" * 100_000})
    file.close()
    there = sorted(path.name for path in tmp_path.glob("audit.jsonl*"))
    assert there == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(path.stat().st_size <= 2**20 for path in tmp_path.glob("audit.jsonl*"))
    assert lines(tmp_path)[-1]["number"] == 49


def test_a_write_is_answered_though_the_audit_log_cannot_be_written(
    audited: ApiHarness, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit.jsonl").unlink()
    (tmp_path / "audit.jsonl").mkdir()
    cast(Any, audited.client.app).state.audit.file.close()
    assert audited.user.submit() == 1
    assert "the audit log cannot be written" in capfd.readouterr().err


def test_quotas_are_named_to_who_asks_why_a_job_waits_and_to_who_submits_what_can_never_start(
    harness: ApiHarness,
) -> None:
    harness.state.quotas = QuotaRules((Limit(Quantity.CORES, 3),))
    first, second = (harness.user.submit(spec={"cpus": 2}) for _ in range(2))
    assert "quotas" not in harness.user.get(f"/v1/jobs/{first}").json()["waits_because"]
    assert [each["job"] for each in harness.agent().claim(most=5)] == [first]
    assert harness.user.get(f"/v1/jobs/{second}").json()["waits_because"] == (
        "group atlas has 2 cores running and may have 3: it starts when enough of them are free ([quotas] cores)"
    )
    line = detail(harness.user.post("/v1/jobs", {"job": {"name": "pi", "image": "pi", "cpus": 4}}), 409)
    assert line.startswith("it needs 4 cores, and group atlas may have 3 running at once: it can never start;")
