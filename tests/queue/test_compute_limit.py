"""A job may compute only for so long, over all its slices."""

import pytest
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.agent.messages import (
    ReturnReason,
)
from gleaner.control.queue import node_health
from gleaner.control.states import Outcome, State

REACHED = "compute limit 1 h reached"


def _left_s(harness: QueueHarness, agent: str) -> float:
    work = harness.claim_one(agent)
    assert work.spec.compute_limit_s == 3600
    assert work.compute_left_s is not None
    return work.compute_left_s


def test_a_claim_says_what_earlier_slices_have_left(harness: QueueHarness) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    assert _left_s(harness, agent) == 3600
    harness.record_save(job, 1, spent=computed(1000.5))
    assert _left_s(harness, agent) == 2599.5
    harness.record_save(job, 2, spent=computed(3000))
    assert _left_s(harness, agent) == 0
    detail = harness.detail(job)
    assert (detail.spec.compute_limit_s, detail.counted_s) == (3600, 4000.5)


def test_each_job_of_a_claim_has_its_own_and_a_job_without_a_limit_has_none(harness: QueueHarness) -> None:
    agent = harness.agent("a")
    jobs = harness.submit(indices=(0, 1), compute_limit_s=3600).jobs
    plain = harness.job()
    for work in harness.claim(agent):
        harness.record_save(work.job, work.attempt, spent=computed(100.0 * work.job))
    limits = {work.job: work.compute_left_s for work in harness.claim(agent)}
    assert limits[plain] is None
    assert limits == {plain: None} | {job: 3600 - 100.0 * job for job in jobs}
    assert harness.detail(plain).spec.compute_limit_s is None


def test_of_a_lost_attempt_counts_what_it_had_computed_at_its_last_checkpoint(harness: QueueHarness) -> None:
    job = harness.job(compute_limit_s=3600)
    for name in ("a", "b", "c"):
        harness.agent(name)
    harness.claim_one("a")
    harness.record_checkpoint(job, 1, spent=computed(600))
    harness.record_checkpoint(job, 1, number=2, spent=computed(1200))
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
    harness.record_checkpoint(job, 1, spent=computed(600))
    harness.record_return(job, 1, why, spent=computed(900))
    assert harness.detail(job).attempts[0].compute_s == 900
    assert _left_s(harness, agent) == 3000


def test_what_a_failed_try_has_computed_counts_although_the_job_starts_over(harness: QueueHarness) -> None:
    job, agent = harness.job(compute_limit_s=3600), harness.agent("a")
    harness.claim_one(agent)
    harness.record_completion(job, 1, exit_code=1, spent=computed(500))
    harness.now_s += 20
    assert _left_s(harness, agent) == 3100


def test_a_job_that_has_reached_its_limit_has_failed_for_good_and_says_so(harness: QueueHarness) -> None:
    """No retry is used: the next try would meet the limit at once. Nor is the node to blame, however soon it was."""
    job = harness.job(compute_limit_s=3600, retries=5)
    for name in ("a", "b"):
        harness.agent(name)
    harness.record_save(job, harness.claim_one("a").attempt, spent=computed(3599))
    attempt = harness.claim_one("a").attempt
    for _ in range(2):  # the answer to the first may have been lost
        harness.record_completion(
            job, attempt, exit_code=152, reason=REACHED, may_retry=False, at_limit=True, spent=computed(1)
        )
    detail = harness.detail(job)
    assert (detail.job.state, detail.job.outcome, detail.failures) == (State.COMPLETE, Outcome.FAILED, 0)
    assert (detail.failed_because, detail.attempts[-1].detail, detail.events[-1].detail) == (REACHED,) * 3
    assert harness.named(job) == frozenset()
    assert harness.look(node_health.distrusted_nodes) == {}
