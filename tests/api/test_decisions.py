"""Decisions over the API: made by real claims, seen by those whom they concern, and wholly told."""

from typing import Any

import pytest
from tests.api.api_harness import ApiHarness, Caller, detail

from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.replay import REPLAYS
from gleaner.control.queue import decisions
from gleaner.control.queue.database import transaction
from gleaner.control.settings import GroupSettings


@pytest.fixture
def other(harness: ApiHarness) -> Caller:
    return harness.caller("user", "bob", "cms")


def slurm_decision(harness: ApiHarness, subject: str, **groups: str) -> int:
    told: dict[str, Any] = {"policy": "entitlements", "given": {"a": 1}, "answer": {"b": 2}, "acted": False}
    with transaction(harness.state.engine) as db:
        return decisions.record(
            db, kind=DecisionKind.VICTIM, subjects={subject: groups.get(subject)}, now_s=harness.now_s, **told
        )


def about(caller: Caller, subject: str) -> list[dict[str, Any]]:
    answer = caller.get("/v1/decisions", subject=subject)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def test_a_claim_between_groups_is_told_to_the_group_that_started_and_to_admins(
    harness: ApiHarness, other: Caller
) -> None:
    agent = harness.agent()
    first, second = harness.user.submit(), other.submit()
    assert [job["job"] for job in agent.claim(most=2)] == [first, second]
    (found,) = about(harness.user, f"job {first}")
    assert (found["kind"], found["policy"], found["acted"]) == ("start", "fairshare", True)
    assert REPLAYS["fairshare"](found["given"]) == found["answer"]
    assert about(harness.admin, f"job {first}") == [found]
    assert about(other, f"job {first}") == []
    assert harness.user.get(f"/v1/decisions/{found['id']}").json() == found
    said = detail(other.get(f"/v1/decisions/{found['id']}"), 403)
    assert said == f"decision {found['id']} is about jobs of other groups"


def test_entitlements_from_the_settings_decide_who_starts(harness: ApiHarness, other: Caller) -> None:
    groups = GroupSettings(entitled={"cms": 100})
    harness.change(groups=groups)
    agent = harness.agent()
    harness.user.submit()
    job = other.submit()
    assert [each["job"] for each in agent.claim(most=1)] == [job]


def test_what_slurm_jobs_are_about_is_seen_by_the_group_that_was_recorded(harness: ApiHarness) -> None:
    known = slurm_decision(harness, "slurm 4711", **{"slurm 4711": "atlas"})
    unknown = slurm_decision(harness, "slurm 4712")
    assert [each["id"] for each in about(harness.user, "slurm 4711")] == [known]
    assert about(harness.user, "slurm 4712") == []
    assert [each["id"] for each in about(harness.admin, "slurm 4712")] == [unknown]
    detail(harness.user.get(f"/v1/decisions/{unknown}"), 403)


def test_a_job_that_a_decision_names_and_nobody_knows_is_seen_by_admins_only(harness: ApiHarness) -> None:
    number = slurm_decision(harness, "job 99")
    detail(harness.user.get(f"/v1/decisions/{number}"), 403)
    assert harness.admin.get(f"/v1/decisions/{number}").json()["answer"] == {"b": 2}


def test_bad_questions_are_one_clear_line(harness: ApiHarness) -> None:
    assert "there is no decision 7" in detail(harness.user.get("/v1/decisions/7"), 404)
    assert detail(harness.user.get("/v1/decisions", subject="node 7"), 422).startswith("subject: string should match")
    detail(harness.agent().get("/v1/decisions", subject="job 7"), 403)
