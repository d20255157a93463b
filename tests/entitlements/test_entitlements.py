"""The live loop of entitlements, on a made cluster and a real database."""

import pytest
from tests.entitlements.entitlements_harness import EntitlementsHarness, chemistry_over_its_share

from gleaner.control.daemon.leader import Leadership, this_program
from gleaner.control.daemon.main import control_loops
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.snapshot import Snapshot

FIXED, KILLED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE


def test_an_entitled_account_runs_within_one_grace_time_and_one_look(harness: EntitlementsHarness) -> None:
    chemistry_over_its_share(harness)
    harness.cluster.enter("p1", "physics", 6)
    began_s = harness.cluster.now_s
    while "p1" not in harness.runs:
        harness.rounds()
        assert harness.cluster.now_s - began_s <= 60 + 5
    assert ("vacate", "a3") in harness.cluster.acts
    assert harness.runs == {"c1", "c2", "p1"}, "an agent was there, so no job is preempted"


def test_no_more_is_preempted_than_is_asked_for_and_it_goes_on_later(harness: EntitlementsHarness) -> None:
    chemistry_over_its_share(harness)
    harness.cluster.enter("p1", "physics", 6)
    harness.rounds(4)
    harness.cluster.enter("p2", "physics", 3)
    harness.rounds(4)
    assert harness.runs >= {"p1", "p2"}
    assert len(harness.runs & {"c1", "c2"}) == 1
    told = {job for act, job in harness.cluster.acts if act == "signal"}
    assert len(told) == 1
    harness.cluster.end("p1")
    harness.rounds(3)
    assert harness.runs == {"c1", "c2", "p2"}


def test_a_preemptible_job_is_requeued_and_an_undeclared_one_never_touched(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("fixed", "chemistry", 5, FIXED)
    for number, cpus in enumerate((1, 6, 6)):
        harness.cluster.enter(f"k{number}", "chemistry", cpus, KILLED)
    harness.rounds(2)
    assert len(harness.runs) == 4
    harness.cluster.pass_time(4000)
    harness.cluster.enter("p", "physics", 9 - 3)
    harness.rounds(4)
    assert "p" in harness.runs and "fixed" in harness.runs
    assert {act for act, _ in harness.cluster.acts} == {"release", "requeue"}


def test_a_victim_that_does_not_go_is_left_alone_and_another_one_is_chosen(harness: EntitlementsHarness) -> None:
    for job in ("c1", "c2", "x"):
        harness.cluster.enter(job, "chemistry", 6, SAVED)
    harness.rounds(2)
    harness.cluster.pass_time(4000)
    harness.cluster.stubborn = {"c1", "x"}
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(40)
    assert "p" in harness.runs and harness.runs >= {"c1", "x"}
    told = [job for act, job in harness.cluster.acts if act == "signal"]
    assert len(told) == len(set(told)), "one that did not go was asked again at once"


def test_a_dry_run_decides_the_same_and_does_nothing(harness: EntitlementsHarness) -> None:
    chemistry_over_its_share(harness)
    before = list(harness.cluster.acts)
    harness.restart(mode="dry-run")
    harness.cluster.enter("p", "physics", 6)
    harness.cluster.heard_s = 0
    harness.rounds(5)
    assert harness.cluster.acts == before and harness.cluster.heard_s == 0
    (decision, *older) = harness.decided("p")
    assert not older, "nothing new was decided, so nothing new is stored"
    assert not decision.acted
    assert decision.kind == DecisionKind.VICTIM
    assert decision.answer["decisions"][0]["victims"] == ["a3"]


def test_nothing_is_enforced_before_the_cluster_was_found_fit_for_it(harness: EntitlementsHarness) -> None:
    harness.cluster.refuses = "[entitlements] entitled names physics, which is no account of Slurm's"
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(2)
    assert harness.state.entitlements.problem == harness.cluster.refuses
    assert not harness.cluster.acts and harness.cluster.heard_s == 0
    harness.cluster.refuses = ""
    harness.rounds(2)
    assert harness.runs == {"p"}


def test_nothing_is_preempted_for_a_job_that_was_cancelled_while_it_was_decided(harness: EntitlementsHarness) -> None:
    chemistry_over_its_share(harness)
    harness.cluster.enter("p", "physics", 6)
    seen = harness.cluster.read(harness.cluster.now_s)
    harness.cluster.end("p")
    harness.cluster.read = lambda now_s: seen  # type: ignore[method-assign]
    before = list(harness.cluster.acts)
    harness.look()
    assert harness.cluster.acts == before
    assert "there is no job p" in harness.state.entitlements.problem


def test_one_who_cannot_decide_does_not_say_that_it_is_alive(harness: EntitlementsHarness) -> None:
    """Jobs would be held for ever, since the dead man's switch trusts in what is said."""
    harness.rounds()
    last_s = harness.cluster.heard_s
    look = harness.cluster.read

    def fails(now_s: float) -> Snapshot:
        raise ClusterError("Slurm said '1K' where a number was expected")

    harness.cluster.read = fails  # type: ignore[method-assign]
    harness.rounds(3)
    assert harness.cluster.heard_s == last_s
    harness.cluster.read = look  # type: ignore[method-assign]
    harness.cluster.is_away = True
    harness.rounds()
    assert harness.cluster.heard_s > last_s, "while Slurm is away nothing is let go"


@pytest.mark.parametrize("holds_in", [("shared", "debug"), ()], ids=["one more", "none"])
def test_where_jobs_are_held_that_control_does_not_look_at_nothing_is_enforced(
    harness: EntitlementsHarness, holds_in: tuple[str, ...]
) -> None:
    """Also the other way round: nothing can be decided about what nobody holds."""
    harness.cluster.holds_in = holds_in
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(3)
    assert (harness.cluster.heard_s, harness.cluster.acts) == (0.0, [])
    assert "slurm-admin.conf" in harness.state.entitlements.problem
    assert "\n" not in harness.state.entitlements.problem
    harness.cluster.holds_in = ("shared",)
    harness.rounds(2)
    assert (harness.state.entitlements.problem, harness.runs) == ("", {"p"})


def test_provisioning_asks_slurm_nothing_of_its_own(harness: EntitlementsHarness) -> None:
    harness.restart(mode="dry-run")
    found = control_loops(harness.state, Leadership(harness.state, this_program()), harness.cluster)
    loops = {loop.name: loop for loop in found}
    for name in ("entitlements", "provisioning"):
        loops[name].run_once(harness.state, harness.cluster.now_s)
    assert harness.state.cluster is not None and harness.state.entitlements.problem == ""
    assert len(harness.cluster.read_s) == 1
