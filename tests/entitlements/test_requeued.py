"""Jobs that somebody else than the Slurm admin service let go or put back: entitlements go on to hold for them, by the
mark that they carry.
"""

from tests.entitlements.entitlements_harness import EntitlementsHarness

from gleaner.control.policy.entitlements_view import JobClass

FIXED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.CHECKPOINTABLE
SWITCH = "gleaner: released by the dead man's switch"


def test_what_was_requeued_by_somebody_else_has_others_preempted_for_it(harness: EntitlementsHarness) -> None:
    """After the death of a node Slurm requeues the job, and nobody holds it."""
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(2)
    for job in ("c1", "c2", "c3"):
        harness.cluster.enter(job, "chemistry", 6, SAVED)
    harness.rounds(2)
    harness.cluster.pass_time(4000)
    harness.cluster.requeued("p")
    harness.cluster.change("c3", priority=1, admin_comment=SWITCH)
    harness.cluster.waits_for_more = {"p"}
    harness.cluster.pass_time(1)  # chemistry has the whole cluster
    harness.cluster.waits_for_more = set()
    assert harness.runs == {"c1", "c2", "c3"}
    harness.rounds(6)
    assert "p" in harness.runs
    assert len([act for act, _ in harness.cluster.acts if act == "signal"]) == 1


def test_owners_who_requeue_their_jobs_stay_within_their_entitlement(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("b1", "biology", 3)
    harness.rounds(2)
    harness.cluster.requeued("b1")
    harness.cluster.waits_for_more = {"b1"}
    harness.cluster.enter("b2", "biology", 3)
    harness.rounds(3)
    harness.cluster.waits_for_more = set()
    harness.rounds(2)
    assert harness.cluster.held_by("biology") == 3


def test_a_claim_that_is_not_on_top_any_more_is_put_there_again(harness: EntitlementsHarness) -> None:
    """The dead man's switch has given it its own priority back, or its owner has."""
    harness.cluster.enter("p", "physics", 6)
    harness.cluster.waits_for_more = {"p"}
    harness.rounds(2)
    harness.cluster.enter("q", "physics", 3)
    for said, priority in (("gleaner: released on top", 7), (SWITCH, 2_000_000_001)):
        harness.cluster.waits_for_more = set()
        harness.cluster.change("p", priority=2_000_000_001, admin_comment="gleaner: released on top")
        harness.look()
        harness.cluster.change("p", priority=priority, admin_comment=said)
        before = len(harness.cluster.acts)
        harness.look()
        assert [act for act, job in harness.cluster.acts[before:] if job == "p"] == ["hold", "release"]
        assert harness.cluster.jobs["p"].priority > 1_000_000_000
        before = len(harness.cluster.acts)
        harness.look()
        assert len(harness.cluster.acts) == before, "once is enough"


def test_what_the_switch_let_go_is_held_again_when_control_is_back(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("b", "biology", 4)
    harness.rounds()
    harness.cluster.change("b", priority=1, admin_comment=SWITCH)
    harness.look()
    harness.cluster.pass_time(5)
    assert harness.runs == set()
    assert harness.cluster.jobs["b"].is_held
    assert harness.cluster.jobs["b"].admin_comment.startswith("gleaner: biology may have")


def test_what_entered_while_nobody_enforced_entitlements_carries_no_mark_and_is_never_touched(
    harness: EntitlementsHarness,
) -> None:
    harness.cluster.enter("b", "biology", 6)
    harness.cluster.change("b", priority=1, admin_comment="")
    harness.cluster.waits_for_more = {"b"}
    harness.rounds(2)
    harness.cluster.waits_for_more = set()
    harness.rounds(2)
    assert harness.runs == {"b"}
    assert harness.cluster.acts == []
