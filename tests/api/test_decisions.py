"""Decisions over the API: made by real claims, seen by those whom they concern, and wholly told."""

from typing import Any

import pytest
from tests.api.house import Caller, House, detail

from gleaner.control.policy.replaying import REPLAYS
from gleaner.control.queue import decisions
from gleaner.control.queue.decision_tables import DecisionKind
from gleaner.control.queue.engine import transaction
from gleaner.control.settings import GroupSettings
from gleaner.control.tally import Tally


@pytest.fixture
def other(house: House) -> Caller:
    return house.caller("user", "bob", "cms")


def slurm_decision(house: House, subject: str, **groups: str) -> int:
    told: dict[str, Any] = {"policy": "governing", "given": {"a": 1}, "answer": {"b": 2}, "acted": False}
    with transaction(house.site.engine) as db:
        return decisions.record(
            db, kind=DecisionKind.VICTIM, subjects=[subject], now_s=house.now_s, groups=groups or None, **told
        )


def about(caller: Caller, subject: str) -> list[dict[str, Any]]:
    answer = caller.get("/v1/decisions", subject=subject)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def test_a_claim_between_groups_is_told_to_the_group_that_started_and_to_admins(house: House, other: Caller) -> None:
    agent = house.agent()
    first, second = house.user.submit(), other.submit()
    assert [job["job"] for job in agent.claim(most=2)] == [first, second]
    (found,) = about(house.user, f"job {first}")
    assert (found["kind"], found["policy"], found["acted"]) == ("start", "fairshare", True)
    assert REPLAYS["fairshare"](found["given"]) == found["answer"]
    assert about(house.admin, f"job {first}") == [found]
    assert about(other, f"job {first}") == []
    assert house.user.get(f"/v1/decisions/{found['id']}").json() == found
    said = detail(other.get(f"/v1/decisions/{found['id']}"), 403)
    assert said == f"decision {found['id']} is about jobs of other groups"


def test_a_report_gives_back_at_once_what_the_job_held(house: House, other: Caller) -> None:
    agent = house.agent()
    mine = [house.user.submit(spec={"cpus": 4}) for _ in range(4)]
    theirs = [other.submit(spec={"cpus": 4}) for _ in range(4)]
    assert {job["job"] for job in agent.claim(most=2)} == {mine[0], theirs[0]}
    for turn in range(1, 4):  # what was read of the holdings is good for a second, and no second passes here
        agent.completed(theirs[turn - 1], 1)
        assert [job["job"] for job in agent.claim(most=1)] == [theirs[turn]]


def test_entitlements_from_the_settings_decide_who_starts(house: House, other: Caller) -> None:
    groups = GroupSettings(entitled={"cms": 100})
    house.site.settings = house.site.settings.model_copy(update={"groups": groups})
    agent = house.agent()
    house.user.submit()
    job = other.submit()
    assert [each["job"] for each in agent.claim(most=1)] == [job]


def test_what_slurm_jobs_are_about_is_seen_by_the_group_that_was_recorded(house: House) -> None:
    known = slurm_decision(house, "slurm 4711", **{"slurm 4711": "atlas"})
    unknown = slurm_decision(house, "slurm 4712")
    assert [each["id"] for each in about(house.user, "slurm 4711")] == [known]
    assert about(house.user, "slurm 4712") == []
    assert [each["id"] for each in about(house.admin, "slurm 4712")] == [unknown]
    detail(house.user.get(f"/v1/decisions/{unknown}"), 403)


def test_a_job_that_a_decision_names_and_nobody_knows_is_seen_by_admins_only(house: House) -> None:
    number = slurm_decision(house, "job 99")
    detail(house.user.get(f"/v1/decisions/{number}"), 403)
    assert house.admin.get(f"/v1/decisions/{number}").json()["answer"] == {"b": 2}


def test_bad_questions_are_one_clear_line(house: House) -> None:
    assert "there is no decision 7" in detail(house.user.get("/v1/decisions/7"), 404)
    assert detail(house.user.get("/v1/decisions", subject="node 7"), 422).startswith("subject: string should match")
    detail(house.agent().get("/v1/decisions", subject="job 7"), 403)


def test_claims_whose_decisions_are_not_recorded_are_counted(house: House, other: Caller) -> None:
    house.site.tally = Tally(lambda: 0.0)
    while house.site.tally.may_record():
        pass
    agent = house.agent()
    job = house.user.submit()
    other.submit()
    assert len(agent.claim(most=2)) == 2
    assert about(house.admin, f"job {job}") == []
    assert "gleaner_decisions_unrecorded 2.0" in house.admin.get("/metrics").text
