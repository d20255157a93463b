"""A run is judged from the report lines of its test processes."""

import json
from typing import Any

import pytest
from tests.suite.cleaner import ROOT
from tests.suite.report import MOST_FLAKY, NEVER_AGAIN, Outcome, Reports, broken_off, judge


def line(test: str, when: str, outcome: str = "passed", seconds: float = 1.0, **more: Any) -> str:
    entry = {"$report_type": "TestReport", "nodeid": test, "when": when, "outcome": outcome, "duration": seconds}
    return json.dumps(entry | more)


def reports(*lines: str) -> Reports:
    made = Reports()
    made.read(lines)
    return made


def test_a_test_that_fails_in_its_teardown_has_failed_and_all_its_phases_count() -> None:
    made = reports(
        line("tests/queue/test_a.py::test_one", "setup"),
        line("tests/queue/test_a.py::test_one", "call", seconds=2),
        line("tests/queue/test_a.py::test_one", "teardown", "failed", longrepr="left a process"),
    )
    (test,) = made.tests.values()
    assert (test.folder, test.failed, test.seconds, test.ended, test.error) == (
        "tests/queue", True, 4.0, True, "left a process",
    )  # fmt: skip


def test_a_file_that_cannot_be_collected_makes_the_run_red() -> None:
    entry = {"$report_type": "CollectReport", "nodeid": "tests/a.py", "outcome": "failed", "longrepr": "SyntaxError"}
    made = reports(json.dumps(entry))
    assert judge(made.tests.values(), made.broken).red == ("tests/a.py: SyntaxError",)


def failed(name: str, *, is_property: bool = False) -> Outcome:
    return Outcome(name, failed=True, ended=True, is_property=is_property)


def test_a_few_failed_tests_are_run_again_and_more_are_not() -> None:
    few = [failed(f"t{number}") for number in range(MOST_FLAKY)]
    assert judge(few).again == ("t0", "t1", "t2")
    assert judge(few).red == ()
    many = judge([*few, failed("t3")])
    assert many.again == ()
    assert "4 tests failed" in many.red[0]


def test_what_is_never_chance_is_never_run_again() -> None:
    name = "tests/queue/test_claims.py::test_one"
    for test in (failed("secure", is_property=True), failed(name)):
        verdict = judge([test, failed("other")])
        assert verdict.again == ()
        assert verdict.red == (f"{test.id}: failed, and a failure of it is never chance",)


def test_each_place_whose_tests_are_never_run_again_is_there() -> None:
    assert [place for place in NEVER_AGAIN if not (ROOT / place).exists()] == []


FAILED, OPEN = Outcome("t1", failed=True, ended=True), Outcome("t2")
"""With xdist: the worker died in this test, and the report says so."""


@pytest.mark.parametrize(
    ("status", "tests", "reason"),
    [
        (1, [], "unit ended with 1 after 0 tests"),
        (1, [FAILED, OPEN], "unit ended with 1 in the middle of t2"),
        (0, [OPEN], "unit ended with 0 in the middle of t2"),
        (5, [], "unit ended with 5 after 0 tests"),
    ],
)
def test_a_part_that_broke_off_or_ran_nothing_makes_the_run_red(status: int, tests: list[Outcome], reason: str) -> None:
    assert broken_off("unit", status, tests, may_be_empty=False) == [reason]
