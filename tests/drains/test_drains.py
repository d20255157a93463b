"""Emptying nodes on an admin's word, on made nodes: what is done to whom, and that nothing is left half done."""

from pathlib import Path

import pytest
from sqlalchemy import literal
from tests.drains.drains_harness import GRACE_S, DrainsHarness
from tests.slurm.fake_cluster import AGENTS_IN, NO_SLURM_ADMIN, OTHERS_IN, Died, FakeCluster

from gleaner.agent.messages import ReturnReason
from gleaner.control.daemon.leader import Leadership
from gleaner.control.models.drains import DrainPhase, DrainTask
from gleaner.control.policy.draining import Spanning
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.queue import decisions, drains, leader
from gleaner.control.queue.database import transaction


@pytest.fixture
def harness(tmp_path: Path) -> DrainsHarness:
    return DrainsHarness(tmp_path)


def busy(harness: DrainsHarness) -> None:
    """One of each kind on n1, nobody in the way."""
    harness.agent("10", "n1", jobs=4)
    harness.nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    harness.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE)


def test_a_node_is_marked_first_then_everything_there_is_told_to_leave_and_goes_to_the_top(
    harness: DrainsHarness,
) -> None:
    busy(harness)
    drain = harness.drain("n1")
    assert harness.nodes.acts == [
        ("drain", "n1"), ("vacate", "10"), ("signal", "11"), ("requeue", "12"), ("release", "11"), ("release", "12"),
    ]  # fmt: skip
    assert (drain.phase, harness.nodes.at_top, harness.nodes.marked) == (DrainPhase.EMPTY, {"11", "12"}, {"n1"})
    assert [(job.job, job.at_first, job.left) for job in drain.jobs] == [("10", 4, 0), ("11", 1, 0), ("12", 1, 0)]


def test_an_agent_that_leaves_claims_nothing_more_and_is_gone_in_its_grace(harness: DrainsHarness) -> None:
    harness.agent("10", "n1")
    harness.nodes.stubborn.add("10")
    harness.drain("n1", rounds=1)
    harness.queue.job()
    assert harness.queue.claim("gleaner-10") == ()
    assert harness.nodes.ends_by_s["10"] == 1000 + GRACE_S


def test_an_agent_that_ends_soon_anyway_is_not_given_more_time(harness: DrainsHarness) -> None:
    harness.agent("10", "n1")
    harness.nodes.run("10", "n1", partition=AGENTS_IN, until_s=1010.0)
    harness.drain("n1", rounds=1)
    assert harness.nodes.ends_by_s["10"] < 1010, "nobody but an operator can raise an end"


def test_where_entitlements_are_on_it_lets_jobs_start_again_itself(tmp_path: Path) -> None:
    harness = DrainsHarness(tmp_path, {"mode": "on"})
    busy(harness)
    number = harness.ask("n1")
    harness.done(number, rounds=1)
    assert set(harness.queue.look(decisions.actions)) == {"11", "12"}, "it counts them as leaving"
    assert harness.done(number).phase is DrainPhase.EMPTY
    assert not any(act[0] == "release" for act in harness.nodes.acts)


def test_what_its_owner_has_not_declared_is_never_touched_and_waited_for(harness: DrainsHarness) -> None:
    harness.nodes.run("20", "n1")
    harness.nodes.run("21", "n1", partition=OTHERS_IN, kind=JobClass.CHECKPOINTABLE)
    harness.nodes.run("22+0", "n1", kind=JobClass.CHECKPOINTABLE)  # the Slurm admin service takes no such name
    number = harness.ask("n1")
    drain = harness.done(number)
    assert (drain.phase, [job.deed for job in drain.jobs]) == (DrainPhase.EMPTYING, ["wait"] * 3)
    harness.nodes.jobs.clear()
    assert harness.done(number).phase is DrainPhase.EMPTY
    assert harness.nodes.acts == [("drain", "n1")]


def test_others_are_not_waited_for_where_the_admin_says_so(harness: DrainsHarness) -> None:
    harness.nodes.run("20", "n1")
    busy(harness)
    assert harness.drain("n1", leaves_others=True).phase is DrainPhase.EMPTY
    assert {job.id for job in harness.nodes.jobs.values() if job.nodes} == {"20"}


def test_a_node_in_use_by_jobs_that_we_are_not_shown_is_not_empty(harness: DrainsHarness) -> None:
    harness.nodes.unseen.add("n1")
    drain = harness.drain("n1")
    assert (drain.phase, drain.said) == (DrainPhase.EMPTYING, "in use, by jobs that we are not shown")


@pytest.mark.parametrize("reason", ["failed save", "node saves nothing", "interactive", "spans"])
def test_what_cannot_be_saved_stops_it_and_the_nodes_are_set_back(harness: DrainsHarness, reason: str) -> None:
    said = ""
    match reason:
        case "failed save":
            (job,) = harness.agent("10", "n1", jobs=1)
            harness.queue.record_return(job, 1, ReturnReason.SAVE_FAILED, "no space")
            harness.queue.claim("gleaner-10")
            said = f"agent 10: job {job} cannot be saved (the last time, it could not be)"
        case "node saves nothing":
            (job,) = harness.agent("10", "n1", jobs=1)
            harness.queue.register("gleaner-10", node="n1", criu="", runtime="none")
            said = f"agent 10: job {job} cannot be saved (its node saves nothing)"
        case "interactive":
            harness.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE, can_requeue=False)
            said = "alice's job 12: it cannot be requeued: it is interactive, or was submitted with --no-requeue"
        case _:
            harness.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
            said = "alice's job 13 also runs on n3 (see --spanning)"
    drain = harness.drain("n1", "n2")
    assert (drain.phase, drain.said) == (DrainPhase.REFUSED, said)
    assert harness.nodes.acts == [("drain", "n1", "n2"), ("resume", "n1", "n2")]
    assert harness.nodes.reasons == {}


def test_a_job_that_spans_nodes_goes_or_is_waited_for_as_the_admin_says(harness: DrainsHarness) -> None:
    harness.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
    waits = harness.ask("n1", spanning=Spanning.WAIT)
    assert harness.done(waits).phase is DrainPhase.EMPTYING
    harness.resume("n1")
    assert harness.drain("n1", spanning=Spanning.REQUEUE).phase is DrainPhase.EMPTY


def test_a_dry_run_says_what_would_be_done_and_does_nothing(harness: DrainsHarness) -> None:
    busy(harness)
    harness.nodes.run("13", "n1", "n3", kind=JobClass.CHECKPOINTABLE)
    drain = harness.drain("n1", task=DrainTask.DRY_RUN)
    assert (drain.phase, drain.said) == (DrainPhase.LOOKED, "alice's job 13 also runs on n3 (see --spanning)")
    assert [job.deed for job in drain.jobs] == ["vacate", "save", "requeue", "wait"]
    assert harness.nodes.acts == []


@pytest.mark.parametrize("task", [DrainTask.DRY_RUN, DrainTask.DRAIN])
def test_a_job_that_cannot_be_read_is_in_the_way_of_a_dry_run_and_of_a_drain(
    harness: DrainsHarness, task: DrainTask
) -> None:
    harness.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE)
    harness.nodes.unreadable.add("12")
    drain = harness.drain("n1", task=task, leaves_others=True)
    ended = {DrainTask.DRY_RUN: DrainPhase.LOOKED, DrainTask.DRAIN: DrainPhase.REFUSED}[task]
    assert (drain.phase, drain.said, harness.nodes.reasons) == (ended, "12 cannot be read", {})


@pytest.mark.parametrize("task", [DrainTask.DRY_RUN, DrainTask.DRAIN])
def test_a_node_that_cannot_be_read_is_not_drained(harness: DrainsHarness, task: DrainTask) -> None:
    harness.nodes.unreadable.add("n1")
    drain = harness.drain("n1", task=task)
    assert (drain.phase, drain.said, harness.nodes.acts) == (DrainPhase.REFUSED, "n1 cannot be read", [])


@pytest.mark.parametrize("name", ["n1", "12"])
def test_a_node_is_not_called_empty_while_it_or_a_job_there_cannot_be_read(harness: DrainsHarness, name: str) -> None:
    harness.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE)
    harness.nodes.stubborn.add("12")
    number = harness.ask("n1", leaves_others=True)
    harness.done(number)
    harness.nodes.unreadable.add(name)
    waits = harness.done(number)
    assert (waits.phase, waits.said) == (DrainPhase.EMPTYING, f"{name} cannot be read")
    harness.nodes.unreadable.clear()
    harness.nodes.stubborn.clear()
    assert harness.done(number).phase is DrainPhase.EMPTY
    assert harness.nodes.at_top == {"12"}


def test_a_node_that_was_drained_before_is_refused_and_left_alone(harness: DrainsHarness) -> None:
    harness.nodes.drain_by_hand("n1")
    drain = harness.drain("n2", "n1")
    assert (drain.phase, drain.said) == (DrainPhase.REFUSED, "n1 is drained already (new memory)")
    assert harness.nodes.acts == []


def test_only_a_node_that_carries_our_mark_is_set_back(harness: DrainsHarness) -> None:
    assert harness.drain("n1").phase is DrainPhase.EMPTY
    harness.nodes.drain_by_hand("n2")
    refused = harness.resume("n1", "n2", "n3")
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, "not drained by us: n2 (new memory), n3 (not drained)")
    assert harness.resume("n1").phase is DrainPhase.RESUMED
    assert harness.nodes.reasons == {"n2": "new memory"}
    assert harness.queue.look(drains.drain_by_node) == {}


def test_a_node_may_be_set_back_while_it_is_emptied(harness: DrainsHarness) -> None:
    harness.nodes.run("20", "n1")
    number = harness.ask("n1", "n2")
    harness.done(number)
    harness.resume("n2")
    assert (harness.seen(number).nodes, harness.seen(number).phase) == (("n1",), DrainPhase.EMPTYING)
    harness.resume("n1")
    assert (harness.seen(number).phase, harness.seen(number).said) == (DrainPhase.RESUMED, "set back by root")


def test_a_drain_ends_when_somebody_else_has_set_a_node_back(harness: DrainsHarness) -> None:
    harness.nodes.run("20", "n1")
    number = harness.ask("n1")
    harness.done(number)
    harness.nodes.reasons.clear()
    drain = harness.done(number)
    assert (drain.phase, drain.said) == (DrainPhase.STOPPED, "somebody else has set n1 back")


def test_what_did_not_go_in_its_grace_is_told_once_more_and_that_is_said(harness: DrainsHarness) -> None:
    harness.nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    harness.nodes.stubborn.add("11")
    number = harness.ask("n1")
    harness.done(number, rounds=int(GRACE_S // 2))
    assert harness.nodes.acts.count(("signal", "11")) == 1
    told = harness.done(number, rounds=1)
    assert harness.nodes.acts.count(("signal", "11")) == 2
    assert told.said == "job 11 was told to leave and has not gone within 60 s; told once more"
    harness.nodes.stubborn.clear()
    assert harness.done(number).phase is DrainPhase.EMPTY


def test_a_scheduler_that_is_away_is_waited_for(harness: DrainsHarness) -> None:
    busy(harness)
    harness.nodes.is_away = True
    number = harness.ask("n1")
    waits = harness.done(number)
    assert (waits.phase, waits.said) == (
        DrainPhase.ASKED,
        "Slurm does not answer: squeue says 'Unable to contact slurm controller'",
    )
    harness.nodes.is_away = False
    done = harness.done(number)
    assert (done.phase, done.said) == (DrainPhase.EMPTY, "")


def test_a_drain_without_a_slurm_admin_is_withdrawn_for_good(harness: DrainsHarness) -> None:
    """Also if it is installed a week later."""
    busy(harness)
    harness.nodes.slurm_admin = "away"
    number = harness.ask("n1")
    waits = harness.done(number)
    assert (waits.phase, waits.said) == (DrainPhase.MARKING, NO_SLURM_ADMIN)
    assert harness.resume("n1").phase is DrainPhase.RESUMED
    assert (harness.seen(number).phase, harness.seen(number).said) == (DrainPhase.REFUSED, "withdrawn by root")
    assert harness.queue.look(drains.nodes_being_emptied) == frozenset(), "agents may go there again"
    harness.nodes.slurm_admin = "answers"
    harness.now_s += 7 * 24 * 3600
    harness.done(number)
    assert harness.nodes.acts == [], "nothing was marked, so nothing is set back, and nothing is done later"
    assert harness.drain("n1").phase is DrainPhase.EMPTY


def test_what_was_marked_although_nobody_said_so_is_set_back_when_the_slurm_admin_is_there(
    harness: DrainsHarness,
) -> None:
    busy(harness)
    harness.nodes.slurm_admin = "mute"
    number = harness.ask("n1", "n2")
    harness.done(number, rounds=1)
    assert harness.nodes.marked == {"n1", "n2"}
    harness.nodes.slurm_admin = "away"
    resumed = harness.resume("n1", "n2")
    assert (resumed.phase, resumed.said) == (DrainPhase.SETTING_BACK, NO_SLURM_ADMIN)
    harness.nodes.slurm_admin = "answers"
    assert harness.done(resumed.id).phase is DrainPhase.RESUMED
    assert harness.seen(number).phase is DrainPhase.REFUSED
    assert harness.nodes.acts == [("drain", "n1", "n2"), ("resume", "n1", "n2")], "nobody was told to leave"


def dying(at: int, *, after: bool) -> FakeCluster:
    return FakeCluster(dies_after=at) if after else FakeCluster(dies_before=at)


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("dies_at", range(6))
def test_a_control_that_is_killed_at_any_act_goes_on_where_it_was(
    tmp_path: Path, dies_at: int, *, dies_after: bool
) -> None:
    harness = DrainsHarness(tmp_path, nodes=dying(dies_at, after=dies_after))
    busy(harness)
    number = harness.ask("n1")
    with pytest.raises(Died):
        harness.done(number)
    harness.restart()
    assert harness.done(number).phase is DrainPhase.EMPTY
    assert harness.nodes.marked == {"n1"}
    assert harness.nodes.at_top == {"11", "12"}


@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("dies_at", [0, 1])
def test_a_refusal_is_finished_by_whoever_comes_next(tmp_path: Path, dies_at: int, *, dies_after: bool) -> None:
    harness = DrainsHarness(tmp_path, nodes=dying(dies_at, after=dies_after))
    harness.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
    number = harness.ask("n1", "n2")
    with pytest.raises(Died):
        harness.done(number)
    harness.restart()
    drain = harness.done(number)
    assert (drain.phase, drain.said) == (DrainPhase.REFUSED, "alice's job 13 also runs on n3 (see --spanning)")
    assert harness.nodes.reasons == {}


@pytest.mark.parametrize("dies_after", [False, True])
def test_setting_back_is_finished_too(tmp_path: Path, *, dies_after: bool) -> None:
    harness = DrainsHarness(tmp_path, nodes=dying(1, after=dies_after))
    harness.drain("n1")
    number = harness.ask("n1", task=DrainTask.RESUME)
    with pytest.raises(Died):
        harness.done(number)
    harness.restart()
    assert harness.done(number).phase is DrainPhase.RESUMED
    assert harness.nodes.reasons == {}


@pytest.mark.parametrize("task", [DrainTask.DRAIN, DrainTask.DRY_RUN])
def test_a_drain_of_a_node_that_slurm_does_not_know_is_refused_at_once(harness: DrainsHarness, task: DrainTask) -> None:
    refused = harness.drain("n1", "nodeX", task=task, rounds=1)
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, "the scheduler knows no node nodeX")
    assert harness.queue.look(drains.nodes_being_emptied) == frozenset(), "agents may go to n1"
    assert harness.nodes.acts == []


def test_a_leader_that_was_succeeded_tells_no_job_to_leave(harness: DrainsHarness) -> None:
    busy(harness)
    harness.state.steady_clock = lambda: 0.0
    Leadership(harness.state, "old:1:1:elsewhere").tick(0)
    number = harness.ask("n1")
    with transaction(harness.queue.engine) as db:
        assert leader.try_lead(db, "new:1:1:elsewhere", now=literal(4e9), term_s=30) is not None
    assert harness.done(number).phase is DrainPhase.ASKED
    assert harness.nodes.acts == []
    assert not harness.state.is_leader
