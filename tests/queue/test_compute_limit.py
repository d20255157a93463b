"""A job may compute only for so long, over all its slices."""

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import (
    Checkpoint,
    Checkpointed,
    Completed,
    Returned,
    ReturnReason,
    Saved,
    Slice,
)
from gleaner.control.queue import attempt_reports, node_health
from gleaner.control.queue.errors import Refused
from gleaner.control.states import Outcome, State

REACHED = "compute limit 1 h reached"


def _spent(computed_s: float) -> Slice:
    return Slice(started_s=1.0, compute_s=computed_s)


def _save(harness: QueueHarness, job: int, attempt: int, computed_s: float) -> None:
    harness.record_save(job, attempt, spent=_spent(computed_s))


def _checkpoint(harness: QueueHarness, job: int, attempt: int, computed_s: float, *, number: int = 1) -> None:
    made = Checkpoint(attempt=attempt, number=number, digest=f"sha256:{number:064x}", size_bytes=1, log_lines=0)
    report = Checkpointed(checkpoint=made, slice=_spent(computed_s))
    harness.do(attempt_reports.record_checkpoint, job, attempt, report, now_s=harness.now_s)


def _left_s(harness: QueueHarness, agent: str) -> float:
    work = harness.claim_one(agent)
    assert work.spec.compute_limit_s == 3600
    assert work.compute_left_s is not None
    return work.compute_left_s


def test_a_claim_says_what_earlier_slices_have_left(harness: QueueHarness) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    assert _left_s(harness, agent) == 3600
    _save(harness, job, 1, 1000.5)
    assert _left_s(harness, agent) == 2599.5
    _save(harness, job, 2, 3000)
    assert _left_s(harness, agent) == 0
    detail = harness.detail(job)
    assert (detail.spec.compute_limit_s, detail.counted_s) == (3600, 4000.5)


def test_each_job_of_a_claim_has_its_own_and_a_job_without_a_limit_has_none(harness: QueueHarness) -> None:
    agent = harness.agent("a")
    jobs = harness.submit(indices=(0, 1), compute_limit_s=3600).jobs
    plain = harness.job()
    for work in harness.claim(agent):
        _save(harness, work.job, work.attempt, 100.0 * work.job)
    limits = {work.job: work.compute_left_s for work in harness.claim(agent)}
    assert limits[plain] is None
    assert limits == {plain: None} | {job: 3600 - 100.0 * job for job in jobs}
    assert harness.detail(plain).spec.compute_limit_s is None


def test_of_a_lost_attempt_counts_what_it_had_computed_at_its_last_checkpoint(harness: QueueHarness) -> None:
    job = harness.job(compute_limit_s=3600)
    for name in ("a", "b", "c"):
        harness.agent(name)
    harness.claim_one("a")
    _checkpoint(harness, job, 1, 600)
    _checkpoint(harness, job, 1, 1200, number=2)
    harness.silence()
    harness.record_heartbeat("b")
    assert _left_s(harness, "b") == 2400
    harness.silence()
    harness.record_heartbeat("c")
    assert _left_s(harness, "c") == 2400


@pytest.mark.parametrize("why", [ReturnReason.TOO_LATE, ReturnReason.SAVE_FAILED, ReturnReason.NODE_FAULT])
def test_of_a_returned_attempt_counts_no_more_than_that(harness: QueueHarness, why: ReturnReason) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    harness.claim_one(agent)
    _checkpoint(harness, job, 1, 600)
    harness.do(attempt_reports.record_return, job, 1, Returned(why=why, slice=_spent(900)), now_s=harness.now_s)
    assert harness.detail(job).attempts[0].compute_s == 900
    assert _left_s(harness, agent) == 3000


def test_a_save_that_comes_after_all_counts(harness: QueueHarness) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    harness.claim_one(agent)
    late = Returned(why=ReturnReason.TOO_LATE, slice=_spent(900))
    harness.do(attempt_reports.record_return, job, 1, late, now_s=harness.now_s)
    made = Checkpoint(attempt=1, number=1, digest=f"sha256:{1:064x}", size_bytes=1, log_lines=0)
    report = Saved(checkpoint=made, slice=_spent(900))
    harness.do(attempt_reports.record_save, job, 1, report, now_s=harness.now_s)
    assert _left_s(harness, agent) == 2700


def test_what_a_failed_try_has_computed_counts_although_the_job_starts_over(harness: QueueHarness) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    harness.claim_one(agent)
    harness.do(
        attempt_reports.record_completion, job, 1, Completed(exit_code=1, slice=_spent(500)), now_s=harness.now_s
    )
    harness.now_s += 20
    assert _left_s(harness, agent) == 3100


def test_a_job_that_has_reached_its_limit_has_failed_for_good_and_says_so(harness: QueueHarness) -> None:
    """No retry is used: the next try would meet the limit at once. Nor is the node to blame, however soon it was."""
    job = harness.job(compute_limit_s=3600, retries=5)
    for name in ("a", "b"):
        harness.agent(name)
    _save(harness, job, harness.claim_one("a").attempt, 3599)
    attempt = harness.claim_one("a").attempt
    report = Completed(exit_code=152, reason=REACHED, slice=_spent(1), may_retry=False)
    for _ in range(2):  # the answer to the first may have been lost
        harness.do(attempt_reports.record_completion, job, attempt, report, now_s=harness.now_s)
    detail = harness.detail(job)
    assert (detail.job.state, detail.job.outcome, detail.failures) == (State.COMPLETE, Outcome.FAILED, 0)
    assert (detail.failed_because, detail.attempts[-1].detail, detail.events[-1].detail) == (REACHED,) * 3
    assert harness.named(job) == frozenset()
    assert harness.look(node_health.unhealthy, harness.now_s) == {}


def test_a_report_of_a_limit_is_refused_when_the_job_is_already_elsewhere(harness: QueueHarness) -> None:
    job = harness.job(compute_limit_s=3600)
    for name in ("a", "b"):
        harness.agent(name)
    harness.claim_one("a")
    harness.silence()
    harness.record_heartbeat("b")
    harness.claim_one("b")
    report = Completed(exit_code=152, reason=REACHED, slice=_spent(1), may_retry=False)
    before = harness.everything()
    with pytest.raises(Refused):
        harness.do(attempt_reports.record_completion, job, 1, report, now_s=harness.now_s)
    assert harness.everything() == before


def test_why_a_job_has_failed_is_said_of_failed_jobs_only(harness: QueueHarness) -> None:
    agent = harness.agent("a")
    failed, good = harness.job(retries=0), harness.job()
    for job, exit_code in ((failed, 3), (good, 0)):
        report = Completed(exit_code=exit_code, slice=_spent(100))
        harness.do(attempt_reports.record_completion, job, harness.claim_one(agent).attempt, report, now_s=2000)
    assert harness.detail(failed).failed_because == "exit code 3"
    assert harness.detail(good).failed_because is None
