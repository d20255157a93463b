"""The exit codes after which a job is tried again, or has failed for good."""

from typing import Any

import pytest
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.control.states import Outcome, State

NODES = ("n1", "n2")


def _fail(harness: QueueHarness, exit_code: int, *, computed_s: float = 100.0, **more: Any) -> None:
    """Let the one job that waits fail so on one of two nodes."""
    (work,) = next(work for work in map(harness.claim, NODES) if work)
    harness.now_s += computed_s
    harness.record_completion(work.job, work.attempt, exit_code=exit_code, spent=computed(computed_s), **more)


def _job(harness: QueueHarness, **spec: object) -> int:
    for node in NODES:
        harness.agent(node, node=node)
    return harness.job(**({"retries": 5} | spec))


def test_a_code_that_is_never_tried_again_ends_the_job_at_once(harness: QueueHarness) -> None:
    job = _job(harness, never_retry_on=[2, 3])
    _fail(harness, 1)
    assert harness.row(job).state is State.NEW
    harness.now_s += 20
    _fail(harness, 3, reason="no steering file")
    detail = harness.detail(job)
    assert (detail.job.outcome, detail.job.exit_code, detail.failures) == (Outcome.FAILED, 3, 2)
    assert detail.events[-1].what == "fail"
    assert detail.events[-1].detail == (
        "exit code 3: no steering file; not tried again: never_retry_on names exit code 3"
    )


def test_a_code_that_has_a_meaning_never_stands_alone(harness: QueueHarness) -> None:
    job = _job(harness)
    _fail(harness, 139)
    detail = harness.detail(job)
    cause = "exit code 139: SIGSEGV, an access to memory that is not the program's"
    assert (detail.attempts[-1].detail, detail.last_failure) == (cause, cause)
    assert detail.events[-1].detail == f"{cause}; starts over, 4 retries left"


@pytest.mark.parametrize("exit_code", [142, 152, 153])
def test_of_a_job_that_was_ended_at_a_limit_the_limit_says_all(harness: QueueHarness, exit_code: int) -> None:
    job = _job(harness)
    _fail(harness, exit_code, reason="silent limit 30 min reached", at_limit=True)
    assert harness.detail(job).last_failure == "silent limit 30 min reached"


def test_with_a_list_of_codes_to_try_again_all_others_end_the_job(harness: QueueHarness) -> None:
    job = _job(harness, retry_on=[75])
    _fail(harness, 75)
    assert harness.row(job).state is State.NEW
    harness.now_s += 20
    _fail(harness, 1)
    detail = harness.detail(job)
    assert (detail.job.outcome, detail.job.exit_code) == (Outcome.FAILED, 1)
    assert detail.events[-1].detail == "exit code 1; not tried again: retry_on does not name exit code 1"
