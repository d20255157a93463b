"""Jobs that more room alone would not start, or not yet: what they cost others, and what they count for."""

from tests.entitlements.entitlements_harness import EntitlementsHarness, chemistry_over_its_share

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.slurm.snapshot import is_held_for_us

FIXED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.CHECKPOINTABLE


def test_what_was_released_for_idle_room_is_put_on_top_when_it_is_owed(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("b1", "biology", 3, SAVED)
    harness.rounds(2)
    harness.cluster.enter("b2", "biology", 3, SAVED)
    harness.cluster.waits_for_more = {"b2"}
    harness.rounds(2)
    assert harness.cluster.jobs["b2"].priority == 1
    harness.cluster.end("b1")
    for job in ("c1", "c2", "c3"):
        harness.cluster.enter(job, "chemistry", 6, SAVED)
    harness.rounds(2)
    harness.cluster.pass_time(4000)
    harness.cluster.waits_for_more = set()
    harness.rounds(4)
    assert "b2" in harness.runs
    assert [act for act, job in harness.cluster.acts if job == "b2"] == ["release", "hold", "release"]
    assert len([act for act, _ in harness.cluster.acts if act == "signal"]) == 1


def test_of_an_array_that_runs_one_task_at_a_time_only_one_has_room_made_for_it(harness: EntitlementsHarness) -> None:
    chemistry_over_its_share(harness)
    for task in range(1, 7):
        harness.cluster.enter(f"9_{task}", "physics", 3)
    harness.cluster.waits_for_more = {f"9_{task}" for task in range(2, 7)}
    harness.rounds(20)
    assert harness.runs == {"9_1", "c1", "c2"}
    assert [act for act in harness.cluster.acts if act[0] in {"signal", "vacate"}] == [("vacate", "a3")]


def test_jobs_that_their_owner_holds_after_their_release_count_until_it_lets_them_go(
    harness: EntitlementsHarness,
) -> None:
    for number in range(5):
        harness.cluster.enter(f"p{number}", "physics", 3)
        harness.look()
        if not harness.cluster.jobs[f"p{number}"].is_held:
            harness.cluster.change(f"p{number}", priority=0)
    harness.rounds(3)
    for job in list(harness.cluster.jobs.values()):
        if job.is_held and not is_held_for_us(job):
            harness.cluster.change(job.id, priority=1)
    harness.cluster.pass_time(1)
    assert harness.cluster.held_by("physics") == 9
    assert harness.state.entitlements.problem == ""


def test_a_job_whose_begin_time_has_not_come_is_not_released_before(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("p", "physics", 3)
    harness.cluster.change("p", begins_s=harness.cluster.now_s + 60)
    harness.rounds(3)
    assert (harness.decided("p"), harness.cluster.acts) == ((), [])
    harness.cluster.pass_time(60)
    harness.rounds(2)
    assert harness.runs == {"p"}
