"""A job that needs some time at a stretch is given only to an agent that has that left."""

from tests.queue.queue_harness import QueueHarness

from gleaner.control.queue import queries


def _claimed(harness: QueueHarness, agent: str, left_s: float | None) -> list[int]:
    return [work.job for work in harness.claim(agent, left_s=left_s)]


def test_the_end_decides_where_an_agent_does_not_say_what_it_has_left(harness: QueueHarness) -> None:
    job = harness.job(needs_at_least_s=1200)
    harness.agent("late", end_s=harness.now_s + 1199)
    harness.agent("early", end_s=harness.now_s + 1200)
    assert _claimed(harness, "late", None) == []
    assert _claimed(harness, "early", None) == [job]


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
