"""A job may compute only for so long without writing anything, over all its slices."""

from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import Checkpoint, Completed, Saved, Slice
from gleaner.control.queue import attempt_reports
from gleaner.control.states import Outcome, State

REACHED = "silent limit 30 min reached: it has printed and written nothing for so long"


def test_a_claim_says_for_how_long_the_job_had_been_silent_when_it_was_saved(harness: QueueHarness) -> None:
    job, agent = harness.job(silent_limit_s=1800), harness.agent("a")
    work = harness.claim_one(agent)
    assert (work.spec.silent_limit_s, work.checkpoint) == (1800, None)
    made = Checkpoint(attempt=1, number=1, digest=f"sha256:{1:064x}", size_bytes=1, log_lines=0, silent_s=1200.5)
    report = Saved(checkpoint=made, slice=Slice(started_s=1.0))
    harness.do(attempt_reports.record_save, job, 1, report, now_s=harness.now_s)
    again = harness.claim_one(agent)
    assert again.checkpoint is not None
    assert (again.spec.silent_limit_s, again.checkpoint.silent_s) == (1800, 1200.5)
    assert harness.detail(job).spec.silent_limit_s == 1800


def test_a_claim_says_how_much_the_job_may_write(harness: QueueHarness) -> None:
    job, agent = harness.job(disk_mib=2048), harness.agent("a")
    assert (harness.claim_one(agent).spec.disk_mib, harness.detail(job).spec.disk_mib) == (2048, 2048)


def test_a_job_without_a_limit_has_none(harness: QueueHarness) -> None:
    job = harness.job()
    work = harness.claim_one(harness.agent("a"))
    assert (work.spec.silent_limit_s, work.spec.disk_mib) == (None, None)
    assert harness.detail(job).spec.silent_limit_s is None


def test_a_job_that_was_silent_for_too_long_has_failed_once_and_may_be_tried_again(harness: QueueHarness) -> None:
    job, agent = harness.job(silent_limit_s=1800, retries=1), harness.agent("a")
    for _ in range(2):
        work = harness.claim_one(agent)
        report = Completed(exit_code=142, reason=REACHED, slice=Slice(started_s=1.0, compute_s=2000))
        harness.do(attempt_reports.record_completion, job, work.attempt, report, now_s=harness.now_s)
        harness.now_s += 3600
    detail = harness.detail(job)
    assert (detail.job.state, detail.job.outcome, detail.failed_because) == (State.COMPLETE, Outcome.FAILED, REACHED)
    assert f"{REACHED}; starts over, 0 retries left" in [event.detail for event in detail.events]
