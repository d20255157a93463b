"""Retention: what is removed from the queue, what stays, and what a log shows that has lost its beginning."""

from collections import deque
from typing import Any

from tests.queue.queue_harness import QueueHarness

from gleaner.control.queue import logs, queries, retention
from gleaner.control.queue.tokens import identify


def trim(harness: QueueHarness, job: int) -> None:
    """Remove all lines of a job that has ended."""
    harness.do(retention.remove_lines, deque([job]), before_s=1e12)


def shown(harness: QueueHarness, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = harness.look(logs.read, job, first, limit)
    return page.first, page.lines


def shown_in_all(harness: QueueHarness, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = harness.look(logs.read_all, job, first, limit)
    return page.first, page.lines


def numbered(low: int, high: int) -> tuple[str, ...]:
    return tuple(f"line {number}" for number in range(low, high))


def test_a_job_that_goes_back_to_before_the_cut_says_what_is_gone_of_what_it_shows(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    harness.claim("a")
    harness.log_bytes = 6 + logs.LINE_BYTES
    harness.log(job, 1, 0, *numbered(0, 6))
    harness.record_save(job, 1, log_lines=2)
    assert shown(harness, job) == (5, numbered(5, 6))
    harness.claim("a")
    assert shown(harness, job) == (2, ())
    harness.log_bytes = 1000
    harness.log(job, 2, 2, "again 2")
    assert shown(harness, job) == (2, ("again 2",))
    assert shown_in_all(harness, job) == (5, ("line 5", "again 2"))
    assert shown_in_all(harness, job, first=6) == (6, ("again 2",))


def test_lines_that_come_again_after_they_are_gone_stay_gone(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log_bytes = 2 * (6 + logs.LINE_BYTES)
    harness.log(job, 1, 0, *numbered(0, 6))
    for _ in range(2):
        assert shown(harness, job) == (4, numbered(4, 6))
        harness.log(job, 1, 2, *numbered(2, 6))


def test_an_old_job_stays_and_says_that_its_log_is_gone(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, *numbered(0, 6))
    trim(harness, job)
    assert shown(harness, job) == (0, numbered(0, 6)), "it has not ended"
    harness.record_completion(job, 1)
    trim(harness, job)
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
    assert [(row.key, row.unused) for row in harness.look(retention.look_at_agents, after="", **look)] == [
        ("busy", False),
        ("idle", True),
    ]
    assert not harness.look(retention.look_at_agents, after="live", **look)
    everything = ("busy", "idle", "late", "live")
    assert harness.do(retention.remove_agents, everything, before_s=harness.now_s) == 1
    assert {row.name for row in harness.look(queries.agent_rows, now_s=harness.now_s)} == {"busy", "late", "live"}
    assert harness.look(identify, "idle") is None
    assert harness.look(identify, "late") is not None
