"""A job may say what is kept of its folder."""

from tests.queue.queue_harness import QueueHarness

KEEP = {"keep": ("run-{index}.root", "hist/**")}


def test_a_pattern_that_fitted_nothing_is_said_of_the_result_that_counts(harness: QueueHarness) -> None:
    job, agent = harness.job(outputs=KEEP, retries=1), harness.agent("a")
    attempt = harness.claim_one(agent).attempt
    harness.record_completion(job, attempt, exit_code=1, output=True, unmatched=("run-{index}.root",))
    assert harness.detail(job).unmatched == ()
    harness.now_s += 3600
    work = harness.claim_one(agent)
    for _ in range(2):  # a repeated report says it once
        harness.record_completion(job, work.attempt, output=True, unmatched=("hist/**",))
    detail = harness.detail(job)
    assert (detail.job.outcome, detail.unmatched) == ("succeeded", ("hist/**",))
