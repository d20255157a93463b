"""Periodic saves: what an attempt has published while it goes on counts as soon as the attempt is lost."""

import pytest
from tests.queue.queue_harness import QueueHarness, digest

from gleaner.agent.messages import ReturnReason
from gleaner.control.queue.errors import Invalid
from gleaner.control.states import State


def _running(harness: QueueHarness) -> int:
    job = harness.job()
    harness.claim_one(harness.agent("a"))
    return job


def test_a_lost_attempt_leaves_its_last_periodic_save(harness: QueueHarness) -> None:
    job = _running(harness)
    harness.record_checkpoint(job, 1, number=1, log_lines=10)
    harness.record_checkpoint(job, 1, number=2, log_lines=20)
    assert (harness.row(job).state, harness.row(job).attempt) == (State.RUNNING, 1)
    assert harness.record_heartbeat("a", (job, 1)).orders == ("go-on",)
    harness.silence()
    assert harness.row(job).state is State.SAVED
    made = harness.claim_one(harness.agent("b")).checkpoint
    assert made is not None
    assert (made.attempt, made.number, made.digest, made.log_lines) == (1, 2, digest(2), 20)
    lost, _ = harness.detail(job).attempts
    assert (lost.ending, lost.started_s, lost.compute_s, lost.save_s) == ("lost", 1.0, 30.0, 3.0), "so far"


def test_besides_the_last_two_the_newest_that_shares_no_file_with_the_last_stays_named(harness: QueueHarness) -> None:
    job = _running(harness)
    for number in range(1, 8):
        harness.record_checkpoint(job, 1, number=number, chain="1/1" if number < 4 else "1/4")
    assert harness.named(job) == {(1, 7), (1, 6), (1, 3)}
    harness.record_checkpoint(job, 1, number=8, chain="1/8")
    assert harness.named(job) == {(1, 8), (1, 7)}, "the one before shares no file with it"
    harness.record_save(job, 1, number=9, chain="1/8")
    assert harness.named(job) == {(1, 9), (1, 8), (1, 7)}
    harness.claim_one(harness.agent("b"))
    harness.record_checkpoint(job, 2, number=1, chain="1/8")
    assert harness.named(job) == {(2, 1), (1, 9), (1, 7)}


def test_a_checkpoint_that_is_not_newer_is_bad_input_and_changes_nothing(harness: QueueHarness) -> None:
    job = _running(harness)
    harness.record_checkpoint(job, 1, number=4)
    before = harness.everything()
    with pytest.raises(Invalid, match="checkpoint 1/3 is not newer than the attempt's last, number 4"):
        harness.record_checkpoint(job, 1, number=3)
    with pytest.raises(Invalid, match="checkpoint 1/3 is not newer"):
        harness.record_save(job, 1, number=3)
    with pytest.raises(Invalid, match="checkpoint 1/4 is not newer"):
        harness.record_checkpoint(job, 1, number=4, digest=digest(9))
    assert harness.everything() == before


def test_an_old_report_said_again_does_not_turn_the_job_back(harness: QueueHarness) -> None:
    job = _running(harness)
    assert harness.record_checkpoint(job, 1, number=1)
    harness.record_checkpoint(job, 1, number=2)
    before = harness.everything()
    assert not harness.record_checkpoint(job, 1, number=1)
    assert harness.everything() == before


def test_a_lost_attempts_late_report_counts_until_the_next_claim_and_it_may_come_back(harness: QueueHarness) -> None:
    job = _running(harness)
    harness.silence()
    assert harness.row(job).state is State.NEW
    harness.record_checkpoint(job, 1)
    assert harness.row(job).state is State.SAVED
    assert harness.record_heartbeat("a", (job, 1)).orders == ("go-on",)
    assert harness.row(job).state is State.RUNNING
    harness.record_checkpoint(job, 1, number=2)
    harness.record_save(job, 1, number=3)
    assert harness.named(job) == {(1, 3), (1, 2)}


def test_an_attempt_that_cannot_save_at_its_end_falls_back_on_its_periodic_save(harness: QueueHarness) -> None:
    job = _running(harness)
    harness.record_checkpoint(job, 1, number=3)
    harness.record_return(job, 1, ReturnReason.SAVE_FAILED, "disk full")
    assert harness.row(job).state is State.SAVED
    assert harness.detail(job).events[-1].detail == "goes on from checkpoint 1/3"


def test_the_last_periodic_save_may_be_the_one_that_the_attempt_ends_with(harness: QueueHarness) -> None:
    job = _running(harness)
    harness.record_checkpoint(job, 1)
    harness.record_save(job, 1)
    before = harness.everything()
    harness.record_save(job, 1)
    assert harness.everything() == before
    assert (harness.row(job).state, harness.endings(job)) == (State.SAVED, ["saved"])
