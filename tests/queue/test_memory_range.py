"""A job that has met its memory limit goes on with more memory, without losing a retry."""

import pytest
from pydantic import ValidationError
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.agent.job_spec import JobSpec, SelfSave
from gleaner.agent.messages import Assignment
from gleaner.control.queue import node_health
from gleaner.control.states import Outcome, State


def _meet_limit(harness: QueueHarness, work: Assignment, *, exit_code: int = 137) -> None:
    reason = f"memory limit {work.memory_mib} MiB reached"
    harness.record_completion(
        work.job, work.attempt, exit_code=exit_code, reason=reason, out_of_memory=True, spent=computed(1.0)
    )


def test_it_continues_from_its_last_checkpoint_with_twice_the_memory_and_says_so(harness: QueueHarness) -> None:
    job, agent = harness.job(memory_mib=512, most_memory_mib=4096, retries=0), harness.agent("a")
    work = harness.claim_one(agent)
    harness.record_checkpoint(job, work.attempt)
    harness.record_checkpoint(job, work.attempt, number=3)
    _meet_limit(harness, work)
    detail = harness.detail(job)
    said = "memory limit 512 MiB reached; continues from checkpoint 1/3 with 1 GiB"
    assert (detail.job.state, detail.failures, detail.failed_because) == (State.SAVED, 0, None)
    assert (detail.last_failure, detail.attempts[0].detail, detail.events[-1].detail) == (said, said, said)
    assert (detail.job.memory_mib, detail.spec.most_memory_mib) == (1024, 4096)
    again = harness.claim_one(agent)
    assert (again.memory_mib, again.checkpoint and again.checkpoint.number) == (1024, 3)
    harness.record_save(job, again.attempt)
    assert harness.claim_one(agent).memory_mib == 1024, "a save keeps it"
    assert harness.detail(job).last_failure is None, "it has computed since"


@pytest.mark.parametrize("saves_itself", [None, SelfSave(**SelfSave().model_dump())])
def test_without_a_checkpoint_it_starts_from_the_beginning_at_once(
    harness: QueueHarness, saves_itself: SelfSave | None
) -> None:
    job = harness.job(memory_mib=512, most_memory_mib=700, saves_itself=saves_itself)
    agent = harness.agent("a")
    _meet_limit(harness, harness.claim_one(agent), exit_code=1)
    assert harness.detail(job).events[-1].detail == (
        "memory limit 512 MiB reached; starts from the beginning with 704 MiB"
    )
    work = harness.claim_one(agent)
    assert (work.memory_mib, work.checkpoint) == (704, None)
    harness.record_completion(job, work.attempt, exit_code=1)  # a failure of its own: it starts over after a pause
    harness.now_s += 3600
    assert harness.claim_one(agent).memory_mib == 704, "a retry keeps it"


@pytest.mark.parametrize("most_mib", [None, 512])
def test_with_the_most_that_it_may_have_it_has_failed_for_its_memory(
    harness: QueueHarness, most_mib: int | None
) -> None:
    job, agent = harness.job(memory_mib=512, most_memory_mib=most_mib, retries=1), harness.agent("a")
    for _ in range(2):
        _meet_limit(harness, harness.claim_one(agent))
        harness.now_s += 3600
    detail = harness.detail(job)
    assert (detail.job.outcome, detail.job.exit_code, detail.failures) == (Outcome.FAILED, 137, 2)
    assert detail.failed_because == "memory limit 512 MiB reached"
    assert [attempt.detail for attempt in detail.attempts] == ["memory limit 512 MiB reached"] * 2
    assert "memory limit 512 MiB reached; starts over, 0 retries left" in [event.detail for event in detail.events]


def test_neither_the_lists_of_exit_codes_nor_the_node_have_to_do_with_it(harness: QueueHarness) -> None:
    job, agent = harness.job(memory_mib=512, most_memory_mib=2048, never_retry_on=[137]), harness.agent("a")
    for _ in range(2):
        _meet_limit(harness, harness.claim_one(agent))
    assert harness.detail(job).job.memory_mib == 2048
    assert harness.look(node_health.distrusted_nodes) == {}
    _meet_limit(harness, harness.claim_one(agent))
    assert harness.detail(job).failed_because == (
        "memory limit 2048 MiB reached; not tried again: never_retry_on names exit code 137"
    )


def test_the_range_is_rounded_as_other_memory_is_and_may_not_end_before_it_begins(harness: QueueHarness) -> None:
    detail = harness.detail(harness.job(memory_mib=500, most_memory_mib=4000))
    assert (detail.job.memory_mib, detail.spec.most_memory_mib) == (512, 4096)
    with pytest.raises(ValidationError, match="the most memory is less than the least: 512 MiB, and at most 100 MiB"):
        JobSpec(name="a", image="a", memory_mib=512, most_memory_mib=100)
