"""Decisions as they are stored: as they were made, found by whom they concern, until they are old."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.control.models.decisions import DecisionKind
from gleaner.control.queue import decisions
from gleaner.control.queue.errors import NotFound

GIVEN: dict[str, Any] = {"free": 3, "jobs": [{"job": 7, "share": 0.1 + 0.2}], "nobody": None, "é": "\x1b"}
ANSWER: dict[str, Any] = {"start": [7], "because": {"job 7": "it is its group's turn"}}


def decide(
    harness: QueueHarness, *subjects: str, acted: bool = True, groups: Mapping[str, str] | None = None, **more: Any
) -> int:
    about = {subject: (groups or {}).get(subject) for subject in subjects}
    told = {"kind": DecisionKind.START, "policy": "entitlements", "given": GIVEN, "answer": ANSWER} | more
    return harness.do(decisions.record, subjects=about, acted=acted, now_s=harness.now_s, **told)


def test_a_decision_is_read_as_it_was_made(harness: QueueHarness) -> None:
    number = decide(harness, "job 7", "slurm 4711", acted=False, groups={"slurm 4711": "physics"})
    found = harness.look(decisions.one, number)
    assert (found.id, found.at_s, found.kind, found.policy) == (
        number,
        harness.now_s,
        DecisionKind.START,
        "entitlements",
    )
    assert (found.given, found.answer, found.acted) == (GIVEN, ANSWER, False)
    assert found.groups == {"job 7": None, "slurm 4711": "physics"}


def test_the_latest_decisions_about_a_job_come_first(harness: QueueHarness) -> None:
    numbers = [decide(harness, "job 7", "job 8", "job 7") for _ in range(3)]
    decide(harness, "job 77")
    assert [found.id for found in harness.look(decisions.latest, "job 7", 2)] == [numbers[2], numbers[1]]
    assert len(harness.look(decisions.latest, "job 8", 9)) == 3
    assert harness.look(decisions.latest, "job 9", 9) == ()


def test_an_unknown_decision_is_one_clear_line(harness: QueueHarness) -> None:
    with pytest.raises(NotFound, match="there is no decision 5; old ones are removed, see"):
        harness.look(decisions.one, 5)


def test_old_decisions_go_a_few_at_a_time_the_oldest_first(harness: QueueHarness) -> None:
    old = [decide(harness, f"job {n}") for n in range(5)]
    harness.now_s += 100
    young = decide(harness, "job 1")
    old_ones: dict[str, Any] = {"before_s": harness.now_s, "up_to": 0, "at_most": 3}
    assert [harness.do(decisions.remove_old, **old_ones) for _ in range(3)] == [3, 2, 0]
    assert [found.id for found in harness.look(decisions.latest, "job 1", 9)] == [young]
    assert young > max(old)
