"""Log lines over several attempts: what a restored process has written is what is shown."""

import random
from typing import Any

import pytest
from sqlalchemy import select
from tests.queue.queue_harness import QueueHarness

from gleaner.control.queue import logs
from gleaner.control.queue.errors import NotCurrent
from gleaner.control.queue.tables import LOG, LOGGED


def _shown(harness: QueueHarness, job: int, *, first: int = 0, limit: int = 100) -> tuple[str, ...]:
    page = harness.look(logs.read, job, first, limit)
    if page.lines and len(page.lines) < limit:  # nothing follows
        assert harness.look(logs.last_number, job) == page.first + len(page.lines) - 1
    return page.lines


def test_lines_after_the_checkpoint_that_the_next_attempt_goes_on_from_are_superseded(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, "start", "event 1", "event 2", "event 3")
    harness.record_save(job, 1, log_lines=3)
    assert _shown(harness, job) == ("start", "event 1", "event 2", "event 3")
    harness.claim(harness.agent("b"))
    assert _shown(harness, job) == ("start", "event 1", "event 2")
    harness.log(job, 2, 3, "event 3", "event 4")
    assert _shown(harness, job) == ("start", "event 1", "event 2", "event 3", "event 4")
    assert _shown(harness, job, first=2, limit=2) == ("event 2", "event 3")
    assert _shown(harness, job, first=5) == ()


def test_an_older_checkpoint_than_the_last_attempt_brings_older_lines_back(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    harness.claim("a")
    harness.log(job, 1, 0, "l0", "l1", "l2", "l3")
    harness.record_save(job, 1, log_lines=2)
    harness.claim("a")
    harness.log(job, 2, 2, "m2", "m3")
    harness.silence()  # goes on from 1/1 once more
    harness.record_heartbeat("a")
    harness.claim("a")
    harness.log(job, 3, 2, "n2")
    assert _shown(harness, job) == ("l0", "l1", "n2")


def test_lines_sent_twice_stand_there_once(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, "a", "b")
    harness.log(job, 1, 1, "b", "c")
    harness.log(job, 1, 3)
    assert _shown(harness, job) == ("a", "b", "c")


def test_a_lost_line_is_said_to_be_lost_so_that_the_numbers_stay_true(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, "a")
    harness.log(job, 1, 3, "d")
    assert _shown(harness, job) == ("a", logs.MISSING, logs.MISSING, "d")
    assert _shown(harness, job, first=1, limit=1) == (logs.MISSING,)
    assert _shown(harness, job, limit=2) == ("a", logs.MISSING)


def test_the_log_has_ended_when_the_job_is_complete_and_all_is_read(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.log(job, 1, 0, "a", "b", "c")
    assert not harness.look(logs.read, job, 0, 10).ended
    harness.record_completion(job, 1)
    assert not harness.look(logs.read, job, 0, 2).ended
    page = harness.look(logs.read, job, 2, 10)
    assert (page.first, page.lines, page.ended) == (2, ("c",), True)


def test_a_late_log_counts_until_somebody_else_has_claimed_the_job(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.silence()
    harness.log(job, 1, 0, "late")
    assert _shown(harness, job) == ("late",)
    harness.claim(harness.agent("b"))
    with pytest.raises(NotCurrent, match="attempt 2 is the latest"):
        harness.log(job, 1, 1, "too late")


def kept_bytes(harness: QueueHarness, job: int) -> int:
    """Return the real size of the job's lines."""

    def counted(db: Any) -> int:
        lines = db.execute(select(LOG.c.line).where(LOG.c.job == job)).scalars().all()
        return sum(len(line.encode()) + logs.LINE_BYTES for line in lines)

    return harness.look(counted)


def told_bytes(harness: QueueHarness, job: int) -> int | None:
    found = harness.look(lambda db: db.execute(select(LOGGED.c.size_bytes).where(LOGGED.c.job == job)).scalar())
    return None if found is None else int(found)


def test_a_log_takes_no_more_than_it_may_however_long_its_lines_are_and_the_oldest_go(harness: QueueHarness) -> None:
    harness.log_bytes = 100_000
    job = harness.job()
    harness.claim(harness.agent("a"))
    for first in range(0, 60, 5):
        harness.log(job, 1, first, *(f"{number:03}" + "\u00e9" * 4000 for number in range(first, first + 5)))
        assert kept_bytes(harness, job) <= harness.log_bytes
        assert told_bytes(harness, job) == kept_bytes(harness, job)
    page = harness.look(logs.read, job, 0, 100)
    assert page.first + len(page.lines) == 60
    assert [line[:3] for line in page.lines] == [f"{number:03}" for number in range(page.first, 60)]
    assert len(page.lines) == 100_000 // (8003 + logs.LINE_BYTES)
    whole = harness.look(logs.read_all, job, 0, 100)
    assert (whole.first, whole.lines) == (page.first, page.lines)


def test_whatever_is_added_twice_late_or_removed_the_count_is_what_is_there(harness: QueueHarness) -> None:
    chance = random.Random(1)
    harness.log_bytes = 4000
    job = harness.job()
    harness.claim(harness.agent("a"))
    for _ in range(60):
        first = chance.randrange(100)
        harness.log(job, 1, first, *("x" * chance.randrange(200) for _ in range(chance.randrange(12))))
        if chance.random() < 0.1:
            harness.do(logs.remove_oldest, job, chance.randrange(1000))
        assert kept_bytes(harness, job) <= 4000
        assert told_bytes(harness, job) in (None, kept_bytes(harness, job))
