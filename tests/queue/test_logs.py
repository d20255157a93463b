"""Log lines over several slices: what a restored process has written is what is shown."""

import pytest
from tests.queue.scene import Scene

from gleaner.control.queue import logs
from gleaner.control.queue.errors import NotCurrent


def _shown(scene: Scene, job: int, *, first: int = 0, limit: int = 100) -> tuple[str, ...]:
    return scene.look(logs.read, job, first, limit).lines


def test_lines_after_the_generation_that_the_next_attempt_goes_on_from_are_superseded(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "start", "event 1", "event 2", "event 3")
    scene.saved(job, 1, log_lines=3)
    assert _shown(scene, job) == ("start", "event 1", "event 2", "event 3")
    scene.claim(scene.agent("b"))
    assert _shown(scene, job) == ("start", "event 1", "event 2")
    scene.log(job, 2, 3, "event 3", "event 4")
    assert _shown(scene, job) == ("start", "event 1", "event 2", "event 3", "event 4")
    assert _shown(scene, job, first=2, limit=2) == ("event 2", "event 3")
    assert _shown(scene, job, first=5) == ()


def test_an_attempt_from_the_beginning_supersedes_all(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "start", "event 1")
    scene.silence()
    assert _shown(scene, job) == ("start", "event 1")
    scene.claim(scene.agent("b"))
    assert _shown(scene, job) == ()
    scene.log(job, 2, 0, "start")
    assert _shown(scene, job) == ("start",)


def test_an_older_generation_than_the_last_attempt_brings_older_lines_back(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    scene.claim("a")
    scene.log(job, 1, 0, "l0", "l1", "l2", "l3")
    scene.saved(job, 1, log_lines=2)
    scene.claim("a")
    scene.log(job, 2, 2, "m2", "m3")
    scene.silence()  # goes on from 1/1 once more
    scene.beat("a")
    scene.claim("a")
    scene.log(job, 3, 2, "n2")
    assert _shown(scene, job) == ("l0", "l1", "n2")


def test_lines_sent_twice_stand_there_once(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "a", "b")
    scene.log(job, 1, 1, "b", "c")
    scene.log(job, 1, 3)
    assert _shown(scene, job) == ("a", "b", "c")


def test_a_lost_line_is_said_to_be_lost_so_that_the_numbers_stay_true(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "a")
    scene.log(job, 1, 3, "d")
    assert _shown(scene, job) == ("a", logs.MISSING, logs.MISSING, "d")
    assert _shown(scene, job, first=1, limit=1) == (logs.MISSING,)
    assert _shown(scene, job, limit=2) == ("a", logs.MISSING)


def test_the_log_has_ended_when_the_job_is_complete_and_all_is_read(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.log(job, 1, 0, "a", "b", "c")
    assert not scene.look(logs.read, job, 0, 10).ended
    scene.completed(job, 1)
    assert not scene.look(logs.read, job, 0, 2).ended
    page = scene.look(logs.read, job, 2, 10)
    assert (page.first, page.lines, page.ended) == (2, ("c",), True)


def test_a_late_log_counts_until_somebody_else_has_claimed_the_job(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.log(job, 1, 0, "late")
    assert _shown(scene, job) == ("late",)
    scene.claim(scene.agent("b"))
    with pytest.raises(NotCurrent, match="attempt 2 is the latest"):
        scene.log(job, 1, 1, "too late")
