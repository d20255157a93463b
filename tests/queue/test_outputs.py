"""A job may say what is kept of its folder."""

from tests.queue.queue_harness import SPENT, QueueHarness, digest

from gleaner.agent.messages import Completed, Output
from gleaner.control.queue import attempt_reports

KEEP = {"keep": ("run-{index}.root", "hist/**")}


def complete(harness: QueueHarness, job: int, attempt: int, *unmatched: str, exit_code: int = 0) -> None:
    output = Output(digest=digest(9), size_bytes=5, unmatched=unmatched)
    report = Completed(exit_code=exit_code, output=output, slice=SPENT)
    harness.do(attempt_reports.record_completion, job, attempt, report, now_s=harness.now_s)


def test_an_agent_is_told_what_to_keep_with_the_jobs_index_filled_in(harness: QueueHarness) -> None:
    (job,) = harness.submit(indices=(7,), outputs=KEEP).jobs
    assert harness.claim_one(harness.agent("a")).spec.keep == ("run-7.root", "hist/**")
    said = harness.detail(job).spec.outputs
    assert said is not None
    assert said.keep == ("run-7.root", "hist/**")


def test_without_it_everything_is_kept(harness: QueueHarness) -> None:
    job = harness.job()
    assert harness.claim_one(harness.agent("a")).spec.keep == ()
    assert (harness.detail(job).spec.outputs, harness.detail(job).unmatched) == (None, ())


def test_a_pattern_that_fitted_nothing_is_said_of_the_result_that_counts(harness: QueueHarness) -> None:
    job, agent = harness.job(outputs=KEEP, retries=1), harness.agent("a")
    complete(harness, job, harness.claim_one(agent).attempt, "run-{index}.root", exit_code=1)
    assert harness.detail(job).unmatched == ()
    harness.now_s += 3600
    work = harness.claim_one(agent)
    for _ in range(2):  # a repeated report says it once
        complete(harness, job, work.attempt, "hist/**")
    detail = harness.detail(job)
    assert (detail.job.outcome, detail.unmatched) == ("succeeded", ("hist/**",))
