"""Retention: what is removed from the queue, what stays, and what a log shows that has lost its beginning."""

from typing import Any

from tests.queue.queue_harness import QueueHarness

from gleaner.control.queue import logs, queries, retention
from gleaner.control.queue.tokens import identify


def trim(harness: QueueHarness, job: int, *, keep: int, at_most: int = 1000) -> list[int]:
    """Trim until nothing is left to remove. Return how many lines went at each step."""
    steps: list[int] = []
    while rows := harness.do(retention.trim, job, keep=keep, at_most=at_most):
        steps.append(rows)
    return steps


def shown(harness: QueueHarness, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = harness.look(logs.read, job, first, limit)
    return page.first, page.lines


def shown_in_all(harness: QueueHarness, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = harness.look(logs.read_all, job, first, limit)
    return page.first, page.lines


def numbered(low: int, high: int) -> tuple[str, ...]:
    return tuple(f"line {number}" for number in range(low, high))


def test_the_oldest_lines_go_and_the_others_keep_their_numbers(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, *numbered(0, 10))
    assert trim(harness, job, keep=10) == []
    assert trim(harness, job, keep=3, at_most=5) == [5, 2]
    assert shown(harness, job) == (7, numbered(7, 10))
    assert shown(harness, job, first=8) == (8, numbered(8, 10))
    assert shown_in_all(harness, job, limit=2) == (7, numbered(7, 9))
    harness.log(job, 1, 10, *numbered(10, 12))
    assert trim(harness, job, keep=3) == [2]
    assert shown(harness, job) == (9, numbered(9, 12))


def test_superseded_lines_count_and_those_of_older_attempts_go_first(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    harness.claim("a")
    harness.log(job, 1, 0, *numbered(0, 6))
    harness.record_save(job, 1, log_lines=4)
    harness.claim("a")
    harness.log(job, 2, 4, "again 4", "again 5")
    assert trim(harness, job, keep=3) == [5]
    assert shown(harness, job) == (4, ("again 4", "again 5"))
    assert shown_in_all(harness, job) == (5, ("line 5", "again 4", "again 5"))
    assert shown_in_all(harness, job, first=7) == (7, ("again 5",))
    assert trim(harness, job, keep=1) == [1, 1]
    assert shown(harness, job) == (5, ("again 5",))


def test_an_old_job_stays_and_says_that_its_log_is_gone(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, *numbered(0, 6))
    harness.record_completion(job, 1)
    trim(harness, job, keep=0)
    harness.do(retention.remove_events, (job,), before_s=1e9, at_most=100)
    for page in (harness.look(logs.read, job, 0, 100), harness.look(logs.read_all, job, 0, 100)):
        assert (page.first, page.lines, page.ended) == (6, (), True)
    detail = harness.detail(job)
    assert (detail.job.outcome, len(detail.attempts), detail.events) == ("succeeded", 1, ())


def test_only_ended_agents_that_no_attempt_refers_to_are_removed(harness: QueueHarness) -> None:
    harness.job()
    for name in ("busy", "idle", "late", "live"):
        harness.agent(name)
    harness.claim_one("busy")
    harness.record_deregistration("busy")
    harness.record_deregistration("idle")
    harness.now_s += 100
    harness.record_deregistration("late")
    look: dict[str, Any] = {"before_s": harness.now_s, "limit": 2}
    assert harness.look(retention.look_at_agents, after="", **look) == retention.SeenAgents("idle", ("idle",))
    assert harness.look(retention.look_at_agents, after="idle", **look) == retention.SeenAgents("live", ())
    assert harness.look(retention.look_at_agents, after="live", **look) == retention.SeenAgents(None, ())
    everything = ("busy", "idle", "late", "live")
    assert harness.do(retention.remove_agents, everything, before_s=harness.now_s) == 1
    assert {row.name for row in harness.look(queries.agent_rows, now_s=harness.now_s)} == {"busy", "late", "live"}
    assert harness.look(identify, "idle") is None
    assert harness.look(identify, "late") is not None
