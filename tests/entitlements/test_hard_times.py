"""Entitlements where little can be had: agents on every node, an hour's saves spent, no node that can be used."""

from tests.entitlements.entitlements_harness import EntitlementsHarness

from gleaner.control.policy.entitlements_view import JobClass


def acts_on(harness: EntitlementsHarness, job: str) -> list[str]:
    return [act for act, about in harness.cluster.acts if about == job]


def test_one_agent_and_no_more_is_vacated_for_a_job_above_its_owners_entitlement(
    harness: EntitlementsHarness,
) -> None:
    harness.cluster.patience_s = 45
    for number in (1, 2, 3):
        harness.cluster.agent(f"a{number}", f"node{number}")
    for job in ("x", "y"):
        harness.cluster.enter(job, "others", 3, JobClass.CHECKPOINTABLE)
    harness.rounds(14)
    assert harness.runs == {"x", "y"}
    assert [act for act, _ in harness.cluster.acts if act == "vacate"] == ["vacate"]
    assert acts_on(harness, "x") == acts_on(harness, "y") == ["release"], "neither was held again while the agent went"


def test_a_claim_that_needs_more_saves_than_an_hour_allows_has_them_in_several(harness: EntitlementsHarness) -> None:
    harness.restart(saves_per_hour_at_most=2)
    for number in range(18):
        harness.cluster.enter(f"x{number}", "others", 1, JobClass.CHECKPOINTABLE)
    harness.rounds(2)
    harness.cluster.pass_time(4000)
    harness.cluster.enter("p", "physics", 5)
    for hour in (1, 2, 3):
        harness.rounds(6)
        assert len([act for act, _ in harness.cluster.acts if act == "signal"]) == min(5, 2 * hour)
        harness.cluster.pass_time(3700)
    harness.rounds(2)
    assert "p" in harness.runs and len(harness.runs) == 14, "nobody else had what those left who went first"
