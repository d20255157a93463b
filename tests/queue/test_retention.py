"""What is removed from the queue, what stays, and what a log says that has lost its beginning."""

import pytest
from tests.queue.scene import Scene

from gleaner.control.queue import logs, reads, retention
from gleaner.control.queue.tokens import identify


def trim(scene: Scene, job: int, *, keep: int, at_most: int = 1000) -> list[int]:
    """Trim until nothing is left to remove; how many lines went at each step."""
    steps: list[int] = []
    while rows := scene.do(retention.trim, job, keep=keep, at_most=at_most):
        steps.append(rows)
    return steps


def shown(scene: Scene, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = scene.look(logs.read, job, first, limit)
    return page.first, page.lines


def shown_in_all(scene: Scene, job: int, first: int = 0, limit: int = 100) -> tuple[int, tuple[str, ...]]:
    page = scene.look(logs.read_all, job, first, limit)
    return page.first, page.lines


def numbered(low: int, high: int) -> tuple[str, ...]:
    return tuple(f"line {number}" for number in range(low, high))


def test_the_oldest_lines_go_and_the_others_keep_their_numbers(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, *numbered(0, 10))
    assert trim(scene, job, keep=10) == []
    assert trim(scene, job, keep=3, at_most=5) == [5, 2]
    assert shown(scene, job) == (7, numbered(7, 10))
    assert shown(scene, job, first=8) == (8, numbered(8, 10))
    assert shown_in_all(scene, job, limit=2) == (7, numbered(7, 9))
    scene.log(job, 1, 10, *numbered(10, 12))
    assert trim(scene, job, keep=3) == [2]
    assert shown(scene, job) == (9, numbered(9, 12))


def test_superseded_lines_count_and_those_of_older_attempts_go_first(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    scene.claim("a")
    scene.log(job, 1, 0, *numbered(0, 6))
    scene.saved(job, 1, log_lines=4)
    scene.claim("a")
    scene.log(job, 2, 4, "again 4", "again 5")
    assert trim(scene, job, keep=3) == [5]
    assert shown(scene, job) == (4, ("again 4", "again 5"))
    assert shown_in_all(scene, job) == (5, ("line 5", "again 4", "again 5"))
    assert shown_in_all(scene, job, first=7) == (7, ("again 5",))
    assert trim(scene, job, keep=1) == [1, 1]
    assert shown(scene, job) == (5, ("again 5",))


def test_a_job_that_goes_back_to_before_the_cut_says_what_is_gone_of_what_it_shows(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    scene.claim("a")
    scene.log(job, 1, 0, *numbered(0, 6))
    scene.saved(job, 1, log_lines=2)
    trim(scene, job, keep=1)
    assert shown(scene, job) == (5, numbered(5, 6))
    scene.claim("a")
    assert shown(scene, job) == (2, ())
    scene.log(job, 2, 2, "again 2")
    assert shown(scene, job) == (2, ("again 2",))


def test_lines_that_were_lost_count_and_are_stepped_over(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "first", "second")
    scene.log(job, 1, 10**15, "far", "farther")
    assert trim(scene, job, keep=5, at_most=1) == [1, 1]
    assert shown(scene, job)[1] == (logs.MISSING,) * 3 + ("far", "farther")


def test_lines_that_come_again_after_they_are_gone_stay_gone(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, *numbered(0, 6))
    trim(scene, job, keep=2)
    scene.log(job, 1, 2, *numbered(2, 6))
    assert shown(scene, job) == (4, numbered(4, 6))
    assert trim(scene, job, keep=2) == []
    assert shown(scene, job) == (4, numbered(4, 6))


def test_jobs_are_looked_at_page_by_page(scene: Scene) -> None:
    complete, recent, waiting, silent = (scene.job() for _ in range(4))
    scene.agent("a")
    for job in (complete, recent, waiting):
        scene.claim_one("a")
        scene.log(job, 1, 0, *numbered(0, 6))
    scene.completed(complete, 1)
    scene.now_s += 100
    scene.completed(recent, 1)

    def look(after: int = 0, **changed: int) -> retention.SeenJobs:
        asked = {"after": after, "before_s": scene.now_s, "lines": 5, "limit": 10} | changed
        return scene.look(retention.look_at_jobs, **asked)

    assert look() == retention.SeenJobs(silent, old=(complete,), long=(recent, waiting))
    assert look(lines=6) == retention.SeenJobs(silent, old=(complete,), long=())
    assert look(limit=1) == retention.SeenJobs(complete, old=(complete,), long=())
    assert look(complete, limit=2) == retention.SeenJobs(waiting, old=(), long=(recent, waiting))
    assert look(silent) == retention.SeenJobs(None, old=(), long=())
    trim(scene, complete, keep=0)
    assert look().old == (complete,)
    assert scene.do(retention.remove_events, (complete,), at_most=2) == 2
    assert look().old == (complete,)
    assert scene.do(retention.remove_events, (complete, recent), at_most=100) > 1
    assert look().old == ()


def test_an_old_job_stays_and_says_that_its_log_is_gone(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, *numbered(0, 6))
    scene.completed(job, 1)
    trim(scene, job, keep=0)
    scene.do(retention.remove_events, (job,), at_most=100)
    for page in (scene.look(logs.read, job, 0, 100), scene.look(logs.read_all, job, 0, 100)):
        assert (page.first, page.lines, page.ended) == (6, (), True)
    detail = scene.detail(job)
    assert (detail.job.outcome, len(detail.attempts), detail.events) == ("succeeded", 1, ())


def test_only_ended_agents_that_no_attempt_refers_to_are_removed(scene: Scene) -> None:
    scene.job()
    for name in ("busy", "idle", "late", "live"):
        scene.agent(name)
    scene.claim_one("busy")
    scene.farewell("busy")
    scene.farewell("idle")
    scene.now_s += 100
    scene.farewell("late")
    look = {"before_s": scene.now_s, "limit": 2}
    assert scene.look(retention.look_at_agents, after="", **look) == retention.SeenAgents("idle", ("idle",))
    assert scene.look(retention.look_at_agents, after="idle", **look) == retention.SeenAgents("live", ())
    assert scene.look(retention.look_at_agents, after="live", **look) == retention.SeenAgents(None, ())
    everything = ("busy", "idle", "late", "live")
    assert scene.do(retention.remove_agents, everything, before_s=scene.now_s) == 1
    assert {row.name for row in scene.look(reads.agent_rows, now_s=scene.now_s)} == {"busy", "late", "live"}
    assert scene.look(identify, "idle") is None
    assert scene.look(identify, "late") is not None


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_whole_log_may_go(scene: Scene, attempts: int) -> None:
    job = scene.job()
    scene.agent("a")
    for attempt in range(1, attempts + 1):
        scene.claim("a")
        scene.log(job, attempt, attempt - 1, f"of attempt {attempt}")
        if attempt < attempts:
            scene.saved(job, attempt, log_lines=attempt)
    trim(scene, job, keep=0)
    assert shown(scene, job) == (attempts, ())
