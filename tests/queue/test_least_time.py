"""A job that needs some time at a stretch is given only to an agent that has that left."""

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.node_health import LONGEST_ELSEWHERE_S
from gleaner.control.queue import queries, relocation


def _claimed(harness: QueueHarness, agent: str, left_s: float | None) -> list[int]:
    return [work.job for work in harness.claim(agent, left_s=left_s)]


def test_an_agent_with_too_little_left_is_given_other_jobs_only(harness: QueueHarness) -> None:
    picky, plain = harness.job(needs_at_least_s=1200), harness.job()
    agent = harness.agent("a")
    assert _claimed(harness, agent, 1199.9) == [plain]
    assert _claimed(harness, agent, 1199.9) == []
    assert _claimed(harness, agent, 1200) == [picky]


def test_the_end_decides_where_an_agent_does_not_say_what_it_has_left(harness: QueueHarness) -> None:
    job = harness.job(needs_at_least_s=1200)
    harness.agent("late", end_s=harness.now_s + 1199)
    harness.agent("early", end_s=harness.now_s + 1200)
    assert _claimed(harness, "late", None) == []
    assert _claimed(harness, "early", None) == [job]


@pytest.mark.parametrize("saves_itself", [None, {"signal": "SIGTERM"}])
def test_whatever_becomes_of_the_job_it_needs_the_same(harness: QueueHarness, saves_itself: object) -> None:
    job = harness.job(needs_at_least_s=1200, retries=9, saves_itself=saves_itself)
    for name in ("a", "b"):
        harness.agent(name)

    def claimed_only_with_time(agent: str) -> int:
        harness.record_heartbeat(agent)
        assert _claimed(harness, agent, 1000) == []
        (work,) = harness.claim(agent, left_s=1200)
        assert work.job == job
        return work.attempt

    harness.record_save(job, claimed_only_with_time("a"), has_memory=saves_itself is None)
    assert harness.detail(job).spec.needs_at_least_s == 1200
    harness.record_return(job, claimed_only_with_time("a"), ReturnReason.CANNOT_RESTORE)
    attempt = claimed_only_with_time("b")
    harness.do(relocation.ask, job, to=None, by="alice", now_s=harness.now_s)
    harness.record_save(job, attempt, has_memory=saves_itself is None)
    assert _claimed(harness, "b", 1e6) == []
    attempt = claimed_only_with_time("a")
    assert harness.do(relocation.conclude, patience_s=100.0, now_s=harness.now_s) == (job,)
    harness.record_completion(job, attempt, exit_code=1)  # it pauses, and goes on elsewhere
    harness.now_s += LONGEST_ELSEWHERE_S
    attempt = claimed_only_with_time("b")
    harness.silence()
    harness.now_s += LONGEST_ELSEWHERE_S  # so long it was not to go where it had failed
    assert claimed_only_with_time("a") == attempt + 1
    assert harness.detail(job).spec.needs_at_least_s == 1200


def test_jobs_that_need_different_times_wait_for_themselves_only(harness: QueueHarness) -> None:
    long = harness.submit(indices=(0, 1, 2), needs_at_least_s=7200).jobs
    short = harness.submit(indices=(0, 1), needs_at_least_s=600).jobs
    agent = harness.agent("a")
    assert _claimed(harness, agent, 3600) == list(short)
    assert [each.count for each in harness.look(queries.waiting)] == [3]
    assert harness.look(queries.waiting, within_s=7199.0) == ()
    assert [each.count for each in harness.look(queries.waiting, within_s=7200.0)] == [3]
    assert _claimed(harness, agent, 7200) == list(long)
    assert harness.detail(harness.job()).spec.needs_at_least_s is None
