"""Decisions as they are stored: as they were made, found by whom they concern, until they are old."""

from typing import Any

import pytest
from tests.queue.scene import Scene

from gleaner.control.queue import decisions
from gleaner.control.queue.decision_tables import DecisionKind
from gleaner.control.queue.errors import Unknown

GIVEN: dict[str, Any] = {"free": 3, "jobs": [{"job": 7, "share": 0.1 + 0.2}], "nobody": None, "é": "\x1b"}
ANSWER: dict[str, Any] = {"start": [7], "because": {"job 7": "it is its group's turn"}}


def decide(scene: Scene, *subjects: str, acted: bool = True, **more: Any) -> int:
    told = {"kind": DecisionKind.START, "policy": "governing", "given": GIVEN, "answer": ANSWER} | more
    return scene.do(decisions.record, subjects=subjects, acted=acted, now_s=scene.now_s, **told)


def test_a_decision_is_read_as_it_was_made(scene: Scene) -> None:
    number = decide(scene, "job 7", "slurm 4711", acted=False, groups={"slurm 4711": "physics"})
    found = scene.look(decisions.one, number)
    assert (found.id, found.at_s, found.kind, found.policy) == (number, scene.now_s, DecisionKind.START, "governing")
    assert (found.given, found.answer, found.acted) == (GIVEN, ANSWER, False)
    assert found.subjects == {"job 7": None, "slurm 4711": "physics"}


def test_the_latest_decisions_about_a_job_come_first(scene: Scene) -> None:
    numbers = [decide(scene, "job 7", "job 8", "job 7") for _ in range(3)]
    decide(scene, "job 77")
    assert [found.id for found in scene.look(decisions.latest, "job 7", 2)] == [numbers[2], numbers[1]]
    assert len(scene.look(decisions.latest, "job 8", 9)) == 3
    assert scene.look(decisions.latest, "job 9", 9) == ()


def test_an_unknown_decision_is_one_clear_line(scene: Scene) -> None:
    with pytest.raises(Unknown, match="there is no decision 5; those older than keep_days are removed"):
        scene.look(decisions.one, 5)


def test_old_decisions_go_a_few_at_a_time_the_oldest_first(scene: Scene) -> None:
    old = [decide(scene, f"job {n}") for n in range(5)]
    scene.now_s += 100
    young = decide(scene, "job 1")
    old_ones = {"before_s": scene.now_s, "keep": 9, "at_most": 3}
    assert [scene.do(decisions.remove_old, **old_ones) for _ in range(3)] == [3, 2, 0]
    assert [found.id for found in scene.look(decisions.latest, "job 1", 9)] == [young]
    assert young > max(old)


def test_of_too_many_decisions_the_oldest_go(scene: Scene) -> None:
    numbers = [decide(scene, "job 1") for _ in range(7)]
    assert [scene.do(decisions.remove_old, before_s=0, keep=3, at_most=9) for _ in range(2)] == [4, 0]
    assert [found.id for found in scene.look(decisions.latest, "job 1", 9)] == numbers[:3:-1]


def test_a_decision_about_nobody_can_be_read_too(scene: Scene) -> None:
    assert scene.look(decisions.one, decide(scene)).subjects == {}
