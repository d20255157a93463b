"""Attempts that are lost with their agents, or come back: nothing is lost for good, and a loss costs no retry."""

import pytest
from tests.queue.queue_harness import LEASE_S, QueueHarness

from gleaner.agent.messages import Order, ReturnReason
from gleaner.control.queue import jobs, queries
from gleaner.control.states import Outcome, State


def test_a_silent_agent_loses_its_jobs_saved_if_a_checkpoint_is_whole_and_else_new(harness: QueueHarness) -> None:
    fresh, saved = harness.submit(indices=(1, 2)).jobs
    harness.claim(harness.agent("a"), most=2)
    harness.record_save(saved, 1)
    harness.claim(harness.agent("b"), most=1)
    harness.agent("c")
    harness.now_s += LEASE_S - 1
    harness.record_heartbeat("c")
    assert harness.expire() == []
    harness.now_s += 2
    assert harness.expire() == ["a", "b"]
    assert (harness.row(fresh).state, harness.row(saved).state) == (State.NEW, State.SAVED)
    assert harness.endings(fresh) == ["lost"]
    assert harness.endings(saved) == ["saved", "lost"]
    assert harness.detail(fresh).failures == harness.detail(saved).failures == 0
    assert harness.expire() == []


def test_a_silent_agent_that_beats_again_keeps_what_nobody_has_claimed(harness: QueueHarness) -> None:
    kept, taken = harness.submit(indices=(1, 2)).jobs
    harness.claim(harness.agent("a"))
    harness.silence()
    harness.do(jobs.set_priority, taken, 9, now_s=harness.now_s)
    assert harness.claim_one(harness.agent("b")).job == taken
    assert harness.record_heartbeat("a", (kept, 1), (taken, 1)).orders == (Order.GO_ON, Order.DROP)
    assert (harness.row(kept).state, harness.row(kept).node) == (State.RUNNING, "node-of-a")
    assert harness.endings(kept) == [None]
    harness.record_completion(kept, 1)
    assert harness.expire() == []


def test_an_agent_revives_only_its_own_attempts(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.silence()
    assert harness.record_heartbeat(harness.agent("b"), (job, 1)).orders == (Order.DROP,)
    assert harness.row(job).state is State.NEW


def test_a_claim_whose_answer_was_lost_returns_after_a_lease_without_any_cost(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.now_s += LEASE_S - 1
    harness.record_heartbeat("a")
    assert harness.row(job).state is State.RUNNING
    harness.now_s += 1
    harness.record_heartbeat("a")
    assert (harness.row(job).state, harness.endings(job)) == (State.NEW, ["forgotten"])
    harness.record_completion(job, 1)  # the agent knew of it after all
    assert harness.row(job).outcome is Outcome.SUCCEEDED


def test_losses_on_three_different_nodes_in_a_row_hold_the_job(harness: QueueHarness) -> None:
    job = harness.job()
    for name in ("a", "b", "c"):
        assert not harness.row(job).held
        harness.claim(harness.agent(name))
        harness.silence()
    assert harness.row(job).held
    reason = "lost together with its agent on 3 different nodes in a row: node-of-a, node-of-b, node-of-c"
    assert harness.look(queries.hold_reason, job) == reason
    assert harness.claim(harness.agent("d")) == ()
    harness.release(job)
    harness.claim("d")
    harness.silence()
    assert not harness.row(job).held  # the count began anew
    assert harness.detail(job).failures == 0


def test_losses_on_one_node_are_the_nodes_and_not_the_jobs(harness: QueueHarness) -> None:
    job = harness.job()
    for name in ("a", "b", "c", "d"):
        harness.claim(harness.agent(name, node="bad"))
        harness.silence()
    assert not harness.row(job).held


@pytest.mark.parametrize("proof", ["saved", "checkpointed", "failed"])
def test_a_report_in_between_shows_that_the_job_is_sound(harness: QueueHarness, proof: str) -> None:
    job = harness.job()
    for number, name in enumerate(("a", "b", "c", "d", "e"), 1):
        harness.claim(harness.agent(name))
        if name == "c":
            if proof == "saved":
                harness.record_save(job, number)
                continue
            if proof == "failed":
                harness.record_completion(job, number, exit_code=1)
                continue
            harness.record_checkpoint(job, number)
        harness.silence()
    assert not harness.row(job).held


def test_an_attempt_returned_unstarted_neither_counts_as_a_loss_nor_clears_the_count(harness: QueueHarness) -> None:
    job = harness.job()
    for number, name in enumerate(("a", "b", "between", "c"), 1):
        harness.claim(harness.agent(name))
        if name == "between":
            harness.record_return(job, number, ReturnReason.UNSTARTED)
        else:
            harness.silence()
    assert harness.row(job).held


def test_a_job_claimed_in_the_moment_of_silence_is_lost_at_the_next_look(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    with harness.engine.begin() as connection:  # what a claim that overlaps with `expire` leaves
        connection.exec_driver_sql("UPDATE agent SET phase = 'silent'")
    assert harness.expire() == ["a"]
    assert harness.row(job).state is State.NEW
