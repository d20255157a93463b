"""Attempts whose save came too late for their agent's end, and what they cost."""

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import (
    Order,
    ReturnReason,
)
from gleaner.control.queue.errors import NotCurrent
from gleaner.control.queue.relocation import unsavable
from gleaner.control.states import State


def running_on(harness: QueueHarness, node: str) -> int:
    harness.agent(f"on-{node}", node=node)
    job = harness.job()
    harness.claim_one(f"on-{node}")
    return job


@pytest.mark.parametrize("why", [ReturnReason.TOO_LATE, ReturnReason.SAVE_FAILED, ReturnReason.STORAGE_FAULT])
def test_what_is_published_after_the_job_was_returned_counts_until_somebody_claims_it(
    harness: QueueHarness, why: ReturnReason
) -> None:
    job, other = running_on(harness, "n1"), running_on(harness, "n2")
    for each in (job, other):
        harness.record_return(each, 1, why)
        assert harness.detail(each).job.state is State.NEW
    harness.record_save(job, 1)
    assert harness.detail(job).job.state is State.SAVED
    (assignment,) = harness.claim("on-n1", most=1)
    if assignment.job == job:
        (assignment,) = harness.claim("on-n1", most=1)
    assert assignment.job == other
    with pytest.raises(NotCurrent):
        harness.record_save(other, 1)


def test_a_job_that_was_returned_is_not_revived_by_a_late_heartbeat(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    harness.record_return(job, 1, ReturnReason.TOO_LATE)
    assert harness.record_heartbeat("on-n1", (job, 1)).orders == (Order.DROP,)
    assert harness.detail(job).job.state is State.NEW


def test_slices_that_come_too_late_hold_no_job_and_keep_no_node_from_being_drained(harness: QueueHarness) -> None:
    """On a cluster whose saves are all late no node could else be drained, and every job would be held in the end."""
    job = running_on(harness, "n1")
    for attempt in range(1, 12):
        harness.record_return(job, attempt, ReturnReason.TOO_LATE)
        assert not harness.detail(job).job.held
        harness.claim_one("on-n1")
    assert harness.look(unsavable, "on-n1") == {}
