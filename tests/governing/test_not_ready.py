"""Jobs that more room alone would not start, or not yet: what they cost others, and what they count for."""

from dataclasses import replace

from tests.governing.office import Office, chemistry_over_its_share

from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room

FIXED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.CHECKPOINTABLE


def test_what_was_released_for_idle_room_is_put_on_top_when_it_is_owed(office: Office) -> None:
    office.cluster.submit("b1", "biology", 3, SAVED)
    office.rounds(2)
    office.cluster.submit("b2", "biology", 3, SAVED)
    office.cluster.waits_for_more = {"b2"}
    office.rounds(2)
    assert office.cluster.jobs["b2"].priority == 1
    office.cluster.end("b1")
    for job in ("c1", "c2", "c3"):
        office.cluster.submit(job, "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.waits_for_more = set()
    office.rounds(4)
    assert "b2" in office.runs
    assert [act for act, job in office.cluster.acts if job == "b2"] == ["release", "hold", "release"]
    assert len([act for act, _ in office.cluster.acts if act == "signal"]) == 1


def test_of_an_array_that_runs_one_task_at_a_time_only_one_has_others_give_way(office: Office) -> None:
    chemistry_over_its_share(office)
    for task in range(1, 7):
        office.cluster.submit(f"9_{task}", "physics", 3)
    office.cluster.waits_for_more = {f"9_{task}" for task in range(2, 7)}
    office.rounds(20)
    assert office.runs == {"9_1", "c1", "c2"}
    assert [act for act in office.cluster.acts if act[0] in {"signal", "send home"}] == [("send home", "a3")]


def test_the_tasks_of_an_array_that_only_lack_room_all_get_what_is_owed(office: Office) -> None:
    chemistry_over_its_share(office)
    for task in range(1, 4):
        office.cluster.submit(f"9_{task}", "physics", 3)
    began_s = office.cluster.now_s
    while not office.runs >= {"9_1", "9_2", "9_3"}:
        office.rounds()
        assert office.cluster.now_s - began_s <= 60 + 2 * 5


def test_jobs_that_depend_on_others_never_bring_their_owner_above_its_entitlement(office: Office) -> None:
    for number in range(5):
        office.cluster.submit(f"p{number}", "physics", 3)
    office.cluster.waits_for_more = {f"p{number}" for number in range(5)}
    office.rounds(6)
    office.cluster.waits_for_more = set()
    office.cluster.pass_time(1)
    assert office.cluster.held_by("physics") == 9


def test_jobs_that_their_owner_holds_after_their_release_count_until_it_lets_them_go(office: Office) -> None:
    for number in range(5):
        office.cluster.submit(f"p{number}", "physics", 3)
        office.governor.a_round(office.cluster.now_s)
        if not (job := office.cluster.jobs[f"p{number}"]).held:
            office.cluster.jobs[job.id] = replace(job, held=True, ours=False, priority=0)
    office.rounds(3)
    for job in list(office.cluster.jobs.values()):
        if not job.ours:
            office.cluster.jobs[job.id] = replace(job, held=False, ours=True, priority=1)
    office.cluster.pass_time(1)
    assert office.cluster.held_by("physics") == 9
    assert office.site.governing.problem == ""


def test_a_job_is_not_asked_for_in_one_piece_while_those_that_make_room_for_it_are_leaving(office: Office) -> None:
    """Two CPUs each of two nodes are on their way; one node alone could give four as well."""
    office.cluster.patience_s = 45
    for job, owner, cpus, kind in (
        ("p1", "physics", 4, FIXED), ("x1", "others", 2, SAVED), ("c", "chemistry", 4, FIXED),
        ("x2", "others", 2, SAVED), ("x3", "others", 4, SAVED), ("b", "biology", 2, FIXED),
    ):  # fmt: skip
        office.cluster.submit(job, owner, cpus, kind)
        office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.submit("p2", "physics", 4)
    four = Wish(4, Room(1, 100), apart=False)
    office.cluster.jobs["p2"] = replace(office.cluster.jobs["p2"], wish=four)
    office.rounds(12)
    assert "p2" in office.runs
    assert {job for act, job in office.cluster.acts if act == "signal"} == {"x1", "x2"}
