"""The queue after an older copy of it was put back."""

import pytest
from sqlalchemy import select
from tests.queue.queue_harness import FACTS, QueueHarness, digest

from gleaner.agent.messages import NodeFacts, Returned, ReturnReason
from gleaner.control.queue import attempt_reports, recovery
from gleaner.control.queue.errors import Conflict, NotYours
from gleaner.control.queue.recovery import Found, Recovered
from gleaner.control.queue.tables import ATTEMPT, WEB_SESSION
from gleaner.control.states import Outcome, State

AWAY_S = 3600.0


def recover(harness: QueueHarness, *found: Found, stored: tuple[int, ...] = ()) -> Recovered:
    """Put the queue back as it is, an hour later."""
    harness.now_s += AWAY_S
    stored_jobs = dict.fromkeys(stored, 1) | {one.job: one.attempt for one in found}
    return harness.do(recovery.recover, found, stored_jobs=stored_jobs, now_s=harness.now_s)


def saved(job: int, attempt: int, number: int = 1) -> Found:
    node = NodeFacts.model_validate(FACTS | {"node": "node9"})
    return Found(job, attempt, number, digest(number), 1000, node=node)


def result(job: int, attempt: int, exit_code: int = 0) -> Found:
    return Found(job, attempt, None, digest(99), 5, exit_code=exit_code)


def test_a_job_goes_on_from_the_newest_checkpoint_that_the_storage_has(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a1")
    harness.record_save(job, harness.claim_one("a1").attempt)

    done = recover(harness, saved(job, 3, 1), saved(job, 4, 1), saved(job, 4, 2), saved(job, 2, 7))

    assert (done.ended, done.went_on, done.unfinished) == (0, 1, 1)
    assert harness.begins_from(harness.agent("a2")) == (4, 2)


def test_a_checkpoint_that_was_found_goes_only_to_nodes_that_fit_it(harness: QueueHarness) -> None:
    job = harness.job()
    recover(harness, saved(job, 1))

    assert not harness.claim(harness.agent("other", architecture="arm64"))
    assert harness.claim(harness.agent("alike"))


def test_the_next_attempt_is_the_one_after_the_highest_that_the_copy_or_the_storage_shows(
    harness: QueueHarness,
) -> None:
    untouched, ran, seen = harness.job(), harness.job(), harness.job()
    harness.hold(untouched)
    harness.agent("a1")
    assert {work.job for work in harness.claim("a1", most=2)} == {ran, seen}

    recover(harness, saved(seen, 7))

    harness.release(untouched)
    attempts = {work.job: work.attempt for work in harness.claim(harness.agent("a2"))}
    assert attempts == {untouched: 1, ran: 2, seen: 8}


def test_a_result_that_was_found_ends_the_job(harness: QueueHarness) -> None:
    job = harness.job()
    done = recover(harness, saved(job, 2), result(job, 3))
    assert (done.ended, done.unfinished) == (1, 0)
    row = harness.row(job)
    assert (row.state, row.outcome, row.exit_code) == (State.COMPLETE, Outcome.SUCCEEDED, 0)


def test_the_result_of_the_attempt_that_ran_counts_as_its_own(harness: QueueHarness) -> None:
    job = harness.job()
    work = harness.claim_one(harness.agent("a1"))
    assert recover(harness, result(job, work.attempt)).ended == 1
    agents = harness.look(lambda db: db.execute(select(ATTEMPT.c.agent)).scalars().all())
    assert agents == ["a1"]


def test_a_failure_that_was_found_ends_nothing_and_its_number_is_not_given_again(harness: QueueHarness) -> None:
    """It may have been tried again since, which nothing shows."""
    job = harness.job()
    assert recover(harness, result(job, 2, exit_code=1)).ended == 0
    assert harness.row(job).state is State.NEW
    assert harness.claim_one(harness.agent("a1")).attempt == 3, "attempt 2 is taken in the storage"


def test_what_an_attempt_left_that_had_ended_before_the_backup_does_not_count(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a1")
    harness.record_save(job, harness.claim_one("a1").attempt)
    recover(harness, saved(job, 1, 5))
    assert harness.begins_from(harness.agent("a2")) == (1, 1)


def test_a_result_that_did_not_count_keeps_no_newer_checkpoint_from_counting(harness: QueueHarness) -> None:
    job = harness.job()
    harness.record_save(job, harness.claim_one(harness.agent("a1")).attempt)
    assert recover(harness, result(job, 1), saved(job, 2, 3)).went_on == 1
    assert harness.begins_from(harness.agent("a2")) == (2, 3)


def test_an_archive_that_the_queue_refuses_keeps_no_job_from_being_put_back(harness: QueueHarness) -> None:
    """Number 2 is known and broken in the storage, so that only number 1 is found there."""
    harness.agent("a1")
    first, second = harness.job(), harness.job()
    attempts = {work.job: work.attempt for work in harness.claim("a1", most=2)}
    harness.record_checkpoint(first, attempts[first], number=2)
    harness.hold(first, "by alice")

    done = recover(harness, saved(first, attempts[first], 1), saved(second, attempts[second], 1))

    assert (done.went_on, done.unfinished) == (1, 2)
    assert harness.row(first).held
    harness.release(first)
    known = {work.job: work.checkpoint for work in harness.claim(harness.agent("a2"))}
    assert {job: None if one is None else one.number for job, one in known.items()} == {first: 2, second: 1}


def test_a_held_job_stays_held_and_loses_nothing(harness: QueueHarness) -> None:
    job = harness.job()
    harness.hold(job, "by alice")
    recover(harness, saved(job, 2))
    row = harness.row(job)
    assert (row.state, row.held) == (State.SAVED, True)


def test_an_agent_of_before_has_no_attempt_any_more(harness: QueueHarness) -> None:
    job = harness.job()
    work = harness.claim_one(harness.agent("a1"))
    recover(harness)
    with pytest.raises(Conflict):
        harness.record_save(job, work.attempt)
    assert [str(order) for order in harness.record_heartbeat("a1", (job, work.attempt)).orders] == ["drop"]


def test_an_agent_that_claimed_after_the_backup_reports_for_nobody_elses_attempt(
    harness: QueueHarness,
) -> None:
    job = harness.job()
    harness.agent("a1")  # it runs attempt 1, of which the backup knows nothing
    recover(harness)
    assert harness.claim("a1") == (), "not before its next heartbeat, which tells it to drop what it runs"
    assert harness.claim_one(harness.agent("a2")).attempt == 1
    assert [str(order) for order in harness.record_heartbeat("a1", (job, 1)).orders] == ["drop"]
    with pytest.raises(NotYours):
        harness.do(
            attempt_reports.record_report,
            job,
            1,
            Returned(why=ReturnReason.UNSTARTED),
            agent="a1",
            most_log_bytes=1,
            now_s=harness.now_s,
        )


def test_the_next_job_has_a_number_that_the_storage_does_not_know(harness: QueueHarness) -> None:
    harness.submit(indices=(0, 1))
    assert recover(harness, stored=(1, 2, 40, 41)).unknown == 2
    assert harness.submit(indices=(0,)).jobs == (42,)


def test_a_session_of_the_web_page_ends(harness: QueueHarness) -> None:
    session = {"hash": "h", "token": "", "role": "user", "name": "alice", "manager": False, "expires_s": 9e9}
    harness.do(lambda db: db.execute(WEB_SESSION.insert(), session))
    recover(harness)
    assert harness.look(lambda db: db.execute(select(WEB_SESSION)).all()) == []
