"""Jobs that somebody else than the steward let go or put back: they are governed on, by the mark that they carry."""

from dataclasses import replace

from tests.governing.office import Office, chemistry_over_its_share

from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room

FIXED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.CHECKPOINTABLE
SWITCH = "gleaner: released by the dead man's switch"


def test_what_was_requeued_by_somebody_else_has_others_give_way_for_it(office: Office) -> None:
    """As after the death of a node: Slurm puts the job back, and nobody holds it."""
    office.cluster.submit("p", "physics", 6)
    office.rounds(2)
    for job in ("c1", "c2", "c3"):
        office.cluster.submit(job, "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.requeued("p")
    office.cluster.jobs["c3"] = replace(office.cluster.jobs["c3"], held=False, said=SWITCH)
    office.cluster.waits_for_more = {"p"}
    office.cluster.pass_time(1)  # chemistry has the whole cluster
    office.cluster.waits_for_more = set()
    assert office.runs == {"c1", "c2", "c3"}
    office.rounds(6)
    assert "p" in office.runs
    assert len([act for act, _ in office.cluster.acts if act == "signal"]) == 1


def test_owners_who_requeue_their_jobs_stay_within_their_entitlement(office: Office) -> None:
    office.cluster.submit("b1", "biology", 3)
    office.rounds(2)
    office.cluster.requeued("b1")
    office.cluster.waits_for_more = {"b1"}
    office.cluster.submit("b2", "biology", 3)
    office.rounds(3)
    office.cluster.waits_for_more = set()
    office.rounds(2)
    assert office.cluster.held_by("biology") == 3


def test_what_a_job_was_marked_with_before_it_put_itself_back_does_not_matter(office: Office) -> None:
    """It was asked to save itself, and its script does not ask to be held."""
    chemistry_over_its_share(office)
    office.cluster.end("a3")
    office.cluster.submit("p1", "physics", 6)
    office.cluster.submit("p2", "physics", 3)
    office.rounds()
    (told,) = [job for act, job in office.cluster.acts if act == "signal"]
    office.cluster.requeued(told)
    office.cluster.waits_for_more = {told}
    office.rounds(3)
    assert ("hold", told) not in office.cluster.acts, "nothing is known of it while the scheduler lets it wait"
    office.cluster.waits_for_more = set()
    office.rounds()
    assert office.runs >= {"p1", "p2"} and told not in office.runs


def test_a_claim_that_is_not_on_top_any_more_is_put_there_again(office: Office) -> None:
    """The dead man's switch has given it its own priority back, or its owner has."""
    office.cluster.submit("p", "physics", 6)
    office.cluster.waits_for_more = {"p"}
    office.rounds(2)
    office.cluster.submit("q", "physics", 3)
    office.cluster.jobs["p"] = replace(office.cluster.jobs["p"], is_ready=True)
    for said, priority in (("gleaner: released on top", 7), (SWITCH, 2_000_000_001)):
        office.cluster.waits_for_more = set()
        office.cluster.jobs["p"] = replace(office.cluster.jobs["p"], said="gleaner: released on top", held=False)
        office.governor.a_round(office.cluster.now_s)
        office.cluster.jobs["p"] = replace(office.cluster.jobs["p"], said=said, priority=priority)
        before = len(office.cluster.acts)
        office.governor.a_round(office.cluster.now_s)
        assert [act for act, job in office.cluster.acts[before:] if job == "p"] == ["hold", "release"]
        assert office.cluster.jobs["p"].priority > 1_000_000_000
        before = len(office.cluster.acts)
        office.governor.a_round(office.cluster.now_s)
        assert len(office.cluster.acts) == before, "once is enough"


def test_what_the_switch_let_go_is_held_again_when_control_is_back(office: Office) -> None:
    office.cluster.submit("b", "biology", 4)
    office.rounds()
    office.cluster.jobs["b"] = replace(office.cluster.jobs["b"], held=False, priority=1, said=SWITCH)
    office.governor.a_round(office.cluster.now_s)
    office.cluster.pass_time(5)
    assert office.runs == set()
    assert office.cluster.jobs["b"].held and office.cluster.jobs["b"].said.startswith("gleaner: biology may have")


def test_what_its_owner_holds_after_the_switch_let_it_go_counts_until_it_lets_it_go(office: Office) -> None:
    office.cluster.submit("b1", "biology", 3)
    kept = replace(office.cluster.jobs["b1"], ours=False, said=SWITCH)
    office.cluster.jobs["b1"] = kept
    office.cluster.submit("b2", "biology", 3)
    office.rounds(3)
    assert office.runs == set()
    office.cluster.end("b1")
    office.rounds(2)
    assert office.runs == {"b2"}


def test_what_entered_while_nobody_governed_carries_no_mark_and_is_never_touched(office: Office) -> None:
    office.cluster.submit("b", "biology", 6)
    office.cluster.jobs["b"] = replace(office.cluster.jobs["b"], held=False, ours=False, said="", priority=1)
    office.cluster.waits_for_more = {"b"}
    office.rounds(2)
    office.cluster.waits_for_more = set()
    office.rounds(2)
    assert office.runs == {"b"}
    assert office.cluster.acts == []


def test_a_requeued_job_is_asked_for_in_one_piece_only_if_it_does_not_start_once_it_may(office: Office) -> None:
    """Slurm lets what it has requeued wait for two minutes; only then is it seen whether its tasks may be apart."""
    office.cluster.submit("x", "others", 4, SAVED)
    office.cluster.jobs["x"] = replace(office.cluster.jobs["x"], wish=Wish(4, Room(1, 100), apart=False))
    office.rounds(2)
    office.cluster.requeued("x")
    office.cluster.waits_for_more = {"x"}
    office.rounds(24)
    office.cluster.waits_for_more = set()
    pieces: list[int] = []
    for _ in range(7):
        office.governor.a_round(office.cluster.now_s)
        assert office.site.governing.view is not None
        pieces += [job.wish.pieces for job in office.site.governing.view.waiting]
        office.cluster.now_s += 5
    assert pieces == [4, 4, 4, 4, 4, 1, 1]
