"""Emptying nodes on an admin's word, on made nodes: what is done to whom, and that nothing is left half done."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import literal, select, update
from tests.draining.made_nodes import AGENTS_IN, NO_STEWARD, OTHERS_IN, Died, MadeNodes
from tests.draining.yard import GRACE_S, Yard

from gleaner.agent.protocol import Ask, Why
from gleaner.control.cluster.gateway import GatewayRefused
from gleaner.control.cluster.on_nodes import OnNodes
from gleaner.control.keeper import Keeper
from gleaner.control.policy.draining import Spanning
from gleaner.control.policy.job_class import JobClass
from gleaner.control.queue import drains, governed, leader, moves
from gleaner.control.queue.drain_tables import DRAIN, DrainPhase, DrainTask
from gleaner.control.queue.engine import transaction
from gleaner.control.queue.errors import Refused


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def busy(yard: Yard) -> None:
    """One of each kind on n1, nobody in the way."""
    yard.agent("10", "n1", jobs=4)
    yard.nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    yard.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE)


def test_a_node_is_marked_first_then_everything_there_is_told_to_leave_and_goes_to_the_top(yard: Yard) -> None:
    busy(yard)
    drain = yard.drain("n1")
    assert yard.nodes.acts == [
        ("drain", "n1"), ("send home", "10"), ("save", "11"), ("requeue", "12"), ("release", "11"), ("release", "12"),
    ]  # fmt: skip
    assert (drain.phase, yard.nodes.at_top, yard.nodes.marked) == (DrainPhase.EMPTY, {"11", "12"}, {"n1"})
    assert [(job.job, job.at_first, job.left) for job in drain.jobs] == [("10", 4, 0), ("11", 1, 0), ("12", 1, 0)]


def test_an_agent_that_leaves_claims_nothing_more_and_is_gone_in_its_grace(yard: Yard) -> None:
    yard.agent("10", "n1")
    yard.nodes.stubborn.add("10")
    yard.drain("n1", rounds=1)
    yard.scene.job()
    assert yard.scene.claim("gleaner-10") == ()
    assert yard.nodes.ends_by_s["10"] == 1000 + GRACE_S


def test_an_agent_that_ends_soon_anyway_is_not_given_more_time(yard: Yard) -> None:
    yard.agent("10", "n1")
    yard.nodes.run("10", "n1", partition=AGENTS_IN, until_s=1010.0)
    yard.drain("n1", rounds=1)
    assert yard.nodes.ends_by_s["10"] < 1010, "nobody but an operator can raise an end"


def test_where_governing_governs_it_lets_jobs_start_again_itself(tmp_path: Path) -> None:
    yard = Yard(tmp_path, {"mode": "on"})
    busy(yard)
    number = yard.ask("n1")
    yard.done(number, rounds=1)
    assert set(yard.scene.look(governed.all_of_them)) == {"11", "12"}, "it counts them as leaving"
    assert yard.done(number).phase is DrainPhase.EMPTY
    assert not any(act[0] == "release" for act in yard.nodes.acts)


def test_what_its_owner_has_not_declared_is_never_touched_and_waited_for(yard: Yard) -> None:
    yard.nodes.run("20", "n1")
    yard.nodes.run("21", "n1", partition=OTHERS_IN, kind=JobClass.CHECKPOINTABLE)
    number = yard.ask("n1")
    drain = yard.done(number)
    assert drain.phase is DrainPhase.EMPTYING
    assert [job.deed for job in drain.jobs] == ["wait", "wait"]
    yard.nodes.jobs.clear()
    assert yard.done(number).phase is DrainPhase.EMPTY
    assert yard.nodes.acts == [("drain", "n1")]


def test_others_are_not_waited_for_where_the_admin_says_so(yard: Yard) -> None:
    yard.nodes.run("20", "n1")
    busy(yard)
    assert yard.drain("n1", leaves_others=True).phase is DrainPhase.EMPTY
    assert set(yard.nodes.jobs) == {"20"}


def test_a_node_in_use_by_jobs_that_we_are_not_shown_is_not_empty(yard: Yard) -> None:
    yard.nodes.unseen.add("n1")
    drain = yard.drain("n1")
    assert (drain.phase, drain.said) == (DrainPhase.EMPTYING, "in use, by jobs that we are not shown")


@pytest.mark.parametrize("reason", ["failed save", "node saves nothing", "interactive", "spans"])
def test_what_cannot_be_saved_stops_it_and_the_nodes_are_set_back(yard: Yard, reason: str) -> None:
    said = ""
    match reason:
        case "failed save":
            (job,) = yard.agent("10", "n1", jobs=1)
            yard.scene.given_back(job, 1, Why.SAVE_FAILED, "no space")
            yard.scene.claim("gleaner-10")
            said = f"agent 10: job {job} cannot be saved (the last time, it could not be)"
        case "node saves nothing":
            (job,) = yard.agent("10", "n1", jobs=1)
            yard.scene.register("gleaner-10", node="n1", criu="", runtime="none")
            said = f"agent 10: job {job} cannot be saved (its node saves nothing)"
        case "interactive":
            yard.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE, can_requeue=False)
            said = "alice's job 12: it cannot be requeued: it is interactive, or was submitted with --no-requeue"
        case _:
            yard.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
            said = "alice's job 13 also runs on n3 (see --spanning)"
    drain = yard.drain("n1", "n2")
    assert (drain.phase, drain.said) == (DrainPhase.REFUSED, said)
    assert yard.nodes.acts == [("drain", "n1", "n2"), ("resume", "n1", "n2")]
    assert yard.nodes.reasons == {}


def test_a_job_that_spans_nodes_goes_or_is_waited_for_as_the_admin_says(yard: Yard) -> None:
    yard.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
    waits = yard.ask("n1", spanning=Spanning.WAIT)
    assert yard.done(waits).phase is DrainPhase.EMPTYING
    yard.resume("n1")
    assert yard.drain("n1", spanning=Spanning.REQUEUE).phase is DrainPhase.EMPTY


def test_a_job_on_drained_nodes_only_does_not_span(yard: Yard) -> None:
    yard.nodes.run("13", "n1", "n2", kind=JobClass.PREEMPTIBLE)
    assert yard.drain("n1", "n2").phase is DrainPhase.EMPTY


def test_a_dry_run_says_what_would_be_done_and_does_nothing(yard: Yard) -> None:
    busy(yard)
    yard.nodes.run("13", "n1", "n3", kind=JobClass.CHECKPOINTABLE)
    drain = yard.drain("n1", task=DrainTask.DRY_RUN)
    assert (drain.phase, drain.said) == (DrainPhase.LOOKED, "alice's job 13 also runs on n3 (see --spanning)")
    assert [job.deed for job in drain.jobs] == ["send home", "save", "requeue", "wait"]
    assert yard.nodes.acts == []


@pytest.mark.parametrize("node", ["n1", "n9"])
def test_a_node_that_was_drained_before_or_that_nobody_knows_is_refused_and_left_alone(yard: Yard, node: str) -> None:
    yard.nodes.drain_by_hand("n1")
    drain = yard.drain("n2", node)
    assert drain.phase is DrainPhase.REFUSED
    assert drain.said == {"n1": "n1 is drained already (new memory)", "n9": "the scheduler knows no node n9"}[node]
    assert yard.nodes.acts == []


def test_only_a_node_that_carries_our_mark_is_set_back(yard: Yard) -> None:
    assert yard.drain("n1").phase is DrainPhase.EMPTY
    yard.nodes.drain_by_hand("n2")
    refused = yard.resume("n1", "n2", "n3")
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, "not drained by us: n2 (new memory), n3 (not drained)")
    assert yard.resume("n1").phase is DrainPhase.RESUMED
    assert yard.nodes.reasons == {"n2": "new memory"}
    assert yard.scene.look(drains.nodes_drained) == {}


def test_a_node_may_be_set_back_while_it_is_emptied(yard: Yard) -> None:
    yard.nodes.run("20", "n1")
    number = yard.ask("n1", "n2")
    yard.done(number)
    yard.resume("n2")
    assert (yard.seen(number).nodes, yard.seen(number).phase) == (("n1",), DrainPhase.EMPTYING)
    yard.resume("n1")
    assert (yard.seen(number).phase, yard.seen(number).said) == (DrainPhase.RESUMED, "set back by root")


def test_a_drain_ends_when_somebody_else_has_set_a_node_back(yard: Yard) -> None:
    yard.nodes.run("20", "n1")
    number = yard.ask("n1")
    yard.done(number)
    yard.nodes.reasons.clear()
    drain = yard.done(number)
    assert (drain.phase, drain.said) == (DrainPhase.STOPPED, "somebody else has set n1 back")


def test_a_node_that_others_have_set_back_can_be_drained_again(yard: Yard) -> None:
    first = yard.drain("n1")
    yard.nodes.reasons.clear()
    second = yard.drain("n1")
    assert second.phase is DrainPhase.EMPTY
    assert yard.seen(first.id).phase is DrainPhase.RESUMED
    assert yard.scene.look(drains.nodes_drained)["n1"].id == second.id


def test_one_node_is_drained_once_at_a_time(yard: Yard) -> None:
    number = yard.ask("n1", "n2")
    with pytest.raises(Refused, match=rf"n2: being drained already, by root \(drain {number}\)"):
        yard.ask("n2", "n3")
    yard.ask("n3")


def test_what_did_not_go_in_its_grace_is_told_once_more_and_that_is_said(yard: Yard) -> None:
    yard.nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    yard.nodes.stubborn.add("11")
    number = yard.ask("n1")
    yard.done(number, rounds=int(GRACE_S // 2))
    assert yard.nodes.acts.count(("save", "11")) == 1
    told = yard.done(number, rounds=1)
    assert yard.nodes.acts.count(("save", "11")) == 2
    assert told.said == "job 11 was told to leave and has not gone within 60 s; told once more"
    yard.nodes.stubborn.clear()
    assert yard.done(number).phase is DrainPhase.EMPTY


def test_a_deed_that_nobody_knows_is_never_taken_for_another(yard: Yard) -> None:
    """As a newer Gleaner may have written it."""
    yard.nodes.run("12", "n1", kind=JobClass.PREEMPTIBLE)
    yard.nodes.stubborn.add("12")
    number = yard.ask("n1")
    yard.done(number, rounds=1)
    with transaction(yard.scene.engine) as db:
        (told,) = db.execute(select(DRAIN.c.jobs)).scalar_one()
        db.execute(update(DRAIN).values(jobs=[told | {"deed": "pause", "told_s": None}]))
    with pytest.raises(ValueError, match="pause"):
        yard.done(number)
    assert yard.nodes.acts == [("drain", "n1"), ("requeue", "12")], "it was told before that"


def test_what_is_being_ended_is_not_told_to_leave(yard: Yard) -> None:
    yard.nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    yard.nodes.ends_now("11")
    yard.drain("n1")
    assert yard.nodes.acts == [("drain", "n1")]


def test_a_scheduler_that_is_away_is_waited_for(yard: Yard) -> None:
    busy(yard)
    yard.nodes.is_away = True
    number = yard.ask("n1")
    waits = yard.done(number)
    assert (waits.phase, waits.said) == (DrainPhase.ASKED, "Slurm does not answer")
    yard.nodes.is_away = False
    done = yard.done(number)
    assert (done.phase, done.said) == (DrainPhase.EMPTY, "")


def test_a_drain_without_a_steward_is_withdrawn_for_good(yard: Yard) -> None:
    """Also if it is installed a week later."""
    busy(yard)
    yard.nodes.steward = "away"
    number = yard.ask("n1")
    waits = yard.done(number)
    assert (waits.phase, waits.said) == (DrainPhase.MARKING, NO_STEWARD)
    assert yard.resume("n1").phase is DrainPhase.RESUMED
    assert (yard.seen(number).phase, yard.seen(number).said) == (DrainPhase.REFUSED, "withdrawn by root")
    assert yard.scene.look(drains.emptied_now) == frozenset(), "agents may go there again"
    yard.nodes.steward = "answers"
    yard.now_s += 7 * 24 * 3600
    yard.done(number)
    assert yard.nodes.acts == [], "nothing was marked, so nothing is set back, and nothing is done later"
    assert yard.drain("n1").phase is DrainPhase.EMPTY


def test_a_drain_is_withdrawn_although_the_steward_comes_back_just_then(yard: Yard) -> None:
    busy(yard)
    yard.nodes.steward = "away"
    number = yard.ask("n1", "n2")
    yard.done(number)
    yard.nodes.steward = "answers"
    assert yard.resume("n1").phase is DrainPhase.RESUMED
    assert yard.seen(number).nodes == ("n2",)
    assert yard.nodes.acts == [("drain", "n2")], "the node that was not taken back is drained"


def test_a_drain_of_which_nothing_was_done_yet_is_withdrawn_too(yard: Yard) -> None:
    yard.nodes.is_away = True
    number = yard.ask("n1")
    yard.done(number)
    resumed = yard.ask("n1", task=DrainTask.RESUME)
    yard.nodes.is_away = False
    assert yard.done(resumed).phase is DrainPhase.RESUMED
    assert (yard.seen(number).phase, yard.nodes.acts) == (DrainPhase.REFUSED, [])


def test_what_was_marked_although_nobody_said_so_is_set_back_when_the_steward_is_there(yard: Yard) -> None:
    busy(yard)
    yard.nodes.steward = "mute"
    number = yard.ask("n1", "n2")
    yard.done(number, rounds=1)
    assert yard.nodes.marked == {"n1", "n2"}
    yard.nodes.steward = "away"
    resumed = yard.resume("n1", "n2")
    assert (resumed.phase, resumed.said) == (DrainPhase.SETTING_BACK, NO_STEWARD)
    yard.nodes.steward = "answers"
    assert yard.done(resumed.id).phase is DrainPhase.RESUMED
    assert yard.seen(number).phase is DrainPhase.REFUSED
    assert yard.nodes.acts == [("drain", "n1", "n2"), ("resume", "n1", "n2")], "nobody was told to leave"


def test_a_withdrawal_that_is_refused_withdraws_nothing(yard: Yard) -> None:
    yard.nodes.drain_by_hand("n2")
    yard.nodes.steward = "away"
    number = yard.ask("n1")
    yard.done(number)
    refused = yard.resume("n1", "n2")
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, "not drained by us: n2 (new memory)")
    assert yard.seen(number).phase is DrainPhase.MARKING


def test_who_takes_a_drain_back_does_not_take_back_what_is_asked_for_afterwards(yard: Yard) -> None:
    yard.nodes.steward = "mute"
    yard.done(yard.ask("n1"), rounds=1)
    yard.nodes.steward = "away"
    yard.done(yard.ask("n2"), rounds=1)
    resumed = yard.ask("n1", "n2", task=DrainTask.RESUME)
    yard.done(resumed, rounds=1)
    later = yard.ask("n2")
    yard.done(later, rounds=1)
    yard.nodes.steward = "answers"
    assert yard.done(later).phase is DrainPhase.EMPTY
    assert (yard.seen(resumed).phase, yard.nodes.marked) == (DrainPhase.RESUMED, {"n2"})


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("dies_at", range(6))
def test_a_control_that_is_killed_at_any_act_goes_on_where_it_was(
    tmp_path: Path, dies_at: int, *, dies_after: bool
) -> None:
    yard = Yard(tmp_path, nodes=MadeNodes(dies_at=dies_at, dies_after=dies_after))
    busy(yard)
    number = yard.ask("n1")
    with pytest.raises(Died):
        yard.done(number)
    yard.restart()
    assert yard.done(number).phase is DrainPhase.EMPTY
    assert yard.nodes.marked == {"n1"}
    assert yard.nodes.at_top == {"11", "12"}


@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("dies_at", [0, 1])
def test_a_refusal_is_finished_by_whoever_comes_next(tmp_path: Path, dies_at: int, *, dies_after: bool) -> None:
    yard = Yard(tmp_path, nodes=MadeNodes(dies_at=dies_at, dies_after=dies_after))
    yard.nodes.run("13", "n1", "n3", kind=JobClass.PREEMPTIBLE)
    number = yard.ask("n1", "n2")
    with pytest.raises(Died):
        yard.done(number)
    yard.restart()
    drain = yard.done(number)
    assert (drain.phase, drain.said) == (DrainPhase.REFUSED, "alice's job 13 also runs on n3 (see --spanning)")
    assert yard.nodes.reasons == {}


@pytest.mark.parametrize("dies_after", [False, True])
def test_setting_back_is_finished_too(tmp_path: Path, *, dies_after: bool) -> None:
    yard = Yard(tmp_path, nodes=MadeNodes(dies_at=1, dies_after=dies_after))
    yard.drain("n1")
    number = yard.ask("n1", task=DrainTask.RESUME)
    with pytest.raises(Died):
        yard.done(number)
    yard.restart()
    assert yard.done(number).phase is DrainPhase.RESUMED
    assert yard.nodes.reasons == {}


def test_nothing_is_planned_for_nodes_that_are_being_emptied(yard: Yard) -> None:
    yard.nodes.run("20", "n1")
    yard.drain("n1")
    assert yard.scene.look(drains.emptied_now) == {"n1"}
    yard.resume("n1")
    assert yard.scene.look(drains.emptied_now) == frozenset()


def test_an_agent_that_has_nothing_left_to_lose_is_sent_home_too(yard: Yard) -> None:
    yard.nodes.run("10", "n1", partition=AGENTS_IN)
    assert yard.drain("n1").phase is DrainPhase.EMPTY
    assert ("send home", "10") in yard.nodes.acts


def test_a_program_that_does_not_lead_does_nothing(yard: Yard) -> None:
    yard.site.leads_until_s = 0
    assert yard.drain("n1").phase is DrainPhase.ASKED
    assert yard.nodes.acts == []


def test_saved_jobs_of_a_drained_agent_go_on_elsewhere_before_new_ones(yard: Yard) -> None:
    jobs = yard.agent("10", "n1", jobs=2)
    yard.drain("n1", rounds=1)
    yard.scene.job()
    for job in jobs:
        yard.scene.saved(job, 1)
    yard.scene.agent("elsewhere", node="n2")
    claimed = yard.scene.do(moves.claim, "elsewhere", Ask(cpus=2, memory_mib=2000, most=2), now_s=yard.now_s)
    assert [each.job for each in claimed.jobs] == jobs


@pytest.mark.parametrize("task", [DrainTask.DRAIN, DrainTask.DRY_RUN])
def test_a_drain_of_a_node_that_slurm_does_not_know_is_refused_at_once(yard: Yard, task: DrainTask) -> None:
    refused = yard.drain("n1", "nodeX", task=task, rounds=1)
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, "the scheduler knows no node nodeX")
    assert yard.scene.look(drains.emptied_now) == frozenset(), "agents may go to n1"
    assert yard.nodes.acts == []


def test_a_resume_of_a_node_that_slurm_does_not_know_is_refused_at_once(yard: Yard) -> None:
    refused = yard.done(yard.ask("nodeX", task=DrainTask.RESUME), rounds=1)
    said = "not drained by us: nodeX (the scheduler does not know it)"
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, said)


def test_a_look_that_slurm_refuses_ends_a_drain_and_one_that_is_not_answered_does_not(yard: Yard) -> None:
    look = yard.nodes.look

    def refuses(nodes: Sequence[str]) -> OnNodes:
        raise GatewayRefused("Slurm refuses: squeue says 'Invalid node name n1'")

    yard.nodes.is_away = True
    number = yard.ask("n1")
    assert yard.done(number).phase is DrainPhase.ASKED
    yard.nodes.look = refuses  # type: ignore[method-assign]
    refused = yard.done(number, rounds=1)
    said = "Slurm refuses: squeue says 'Invalid node name n1'"
    assert (refused.phase, refused.said) == (DrainPhase.REFUSED, said)
    yard.nodes.look, yard.nodes.is_away = look, False  # type: ignore[method-assign]
    assert yard.drain("n1").phase is DrainPhase.EMPTY


def test_what_was_only_asked_for_is_withdrawn_whatever_slurm_says(yard: Yard) -> None:
    yard.nodes.is_away = True
    number = yard.ask("n1")
    yard.done(number)
    resumed = yard.done(yard.ask("n1", task=DrainTask.RESUME), rounds=1)
    assert resumed.phase is DrainPhase.RESUMED
    assert (yard.seen(number).phase, yard.seen(number).said) == (DrainPhase.REFUSED, "withdrawn by root")
    yard.nodes.is_away = False
    yard.done(number)
    assert yard.nodes.acts == []


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_node_that_leaves_slurm_while_it_is_drained_stops_nothing_and_is_named(yard: Yard, *, is_empty: bool) -> None:
    yard.nodes.run("20", "n2")
    number = yard.ask("n1", "n2")
    yard.done(number)
    if is_empty:
        yard.nodes.jobs.clear()
        yard.done(number)
    yard.nodes.names = ("n2", "n3")
    seen = yard.done(number)
    if not is_empty:
        assert (seen.phase, seen.said) == (DrainPhase.EMPTYING, "n1: Slurm does not know it any more")
        yard.nodes.jobs.clear()
        seen = yard.done(number)
        assert seen.said == "n1: Slurm does not know it any more"
    assert seen.phase is DrainPhase.EMPTY
    del yard.nodes.reasons["n1"]
    assert yard.resume("n1", "n2").phase is DrainPhase.RESUMED
    assert yard.scene.look(drains.nodes_drained) == {}
    assert yard.drain("n3").phase is DrainPhase.EMPTY


def test_a_node_that_leaves_slurm_while_it_is_marked_is_a_refusal_and_the_others_are_set_back(yard: Yard) -> None:
    yard.nodes.steward = "away"
    number = yard.ask("n1", "n2")
    yard.done(number)
    yard.nodes.names = ("n2", "n3")
    yard.nodes.steward = "answers"
    seen = yard.done(number)
    assert (seen.phase, seen.said) == (DrainPhase.REFUSED, "Slurm knows no node n1")
    assert yard.nodes.marked == set()


def test_a_leader_that_was_succeeded_tells_no_job_to_leave(yard: Yard) -> None:
    busy(yard)
    yard.site.steady_clock = lambda: 0.0
    Keeper(yard.site, "old:1:1:elsewhere").tick(0)
    number = yard.ask("n1")
    with transaction(yard.scene.engine) as db:
        assert leader.try_lead(db, "new:1:1:elsewhere", now=literal(4e9), term_s=30) is not None
    assert yard.done(number).phase is DrainPhase.ASKED
    assert yard.nodes.acts == []
    assert not yard.site.is_leader
