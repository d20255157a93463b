"""The jobs that are left of a log, and what is said of the rest."""

import re
from pathlib import Path

import pytest
from tests.simulation.traces import trace

from gleaner.control.simulation.errors import BadTrace
from gleaner.control.simulation.workloads.cleaning import USUAL, Conventions
from gleaner.control.simulation.workloads.traces import Trace, read

GOOD = "1 0 5 60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1"


def reading(folder: Path, *lines: str, processors: int | None = None, conventions: Conventions = USUAL) -> Trace:
    path = folder / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    return read(path, processors=processors, conventions=conventions)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("2 0 -1 -1 -1 -1 -1 4 120 -1 5 7 3 -1 -1 -1 -1 -1", "left out: cancelled before it started"),
        ("2 0 9 0 4 -1 -1 4 120 -1 5 7 3 -1 -1 -1 -1 -1", "left out: cancelled before it started"),
        ("2 0 5 60 4 -1 -1 4 120 -1 3 7 3 -1 -1 -1 -1 -1", "left out: one part of a job that another line sums up"),
        ("2 -7 5 60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1", "left out: submitted at a negative time"),
        ("2 0 5 -1 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1", "left out: run time unknown"),
        ("2 0 5 -60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1", "left out: negative run time"),
        ("2 0 5 1795232710 4 -1 -1 4 -1 -1 1 7 3 -1 -1 -1 -1 -1", "left out: it ran for more than 50 years"),
        (
            "2 1795232710 5 60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1",
            "left out: submitted more than 50 years before or after the others",
        ),
        ("2 0 5 60 -1 -1 -1 0 120 -1 1 7 3 -1 -1 -1 -1 -1", "left out: no number of processors"),
        ("2 0 5 60 9 -1 -1 9 120 -1 1 7 3 -1 -1 -1 -1 -1", "left out: larger than the machine (8 processors)"),
    ],
)
def test_what_cannot_be_simulated_is_left_out_and_counted(tmp_path: Path, line: str, rule: str) -> None:
    found = reading(tmp_path, GOOD, line, processors=8)
    assert found.workload.job.tolist() == [1]
    assert found.cleaning.rules == ((rule, 1),)
    assert found.cleaning.read == 2


def test_one_job_at_second_0_does_not_cost_the_jobs_that_have_absolute_times(tmp_path: Path) -> None:
    later = [GOOD.replace("1 0 ", f"{number} {1795232710 + number} ", 1) for number in (2, 3)]
    assert reading(tmp_path, GOOD, *later).workload.job.tolist() == [2, 3]


def test_a_job_without_a_limit_has_its_run_time_for_it(tmp_path: Path) -> None:
    found = reading(tmp_path, "1 0 5 130 4 -1 -1 4 -1 -1 1 7 3 -1 -1 -1 -1 -1")
    assert (found.workload.run_s.tolist(), found.workload.limit_s.tolist()) == ([130], [130])
    assert found.cleaning.rules == (("changed: no limit, so its run time is its limit", 1),)


def test_a_job_cancelled_while_it_ran_stays(tmp_path: Path) -> None:
    found = reading(tmp_path, "1 0 5 60 4 -1 -1 4 120 -1 5 7 3 -1 -1 -1 -1 -1")
    assert found.workload.run_s.tolist() == [60]
    assert found.cleaning.rules == ()


def test_jobs_are_in_order_of_submission_and_then_of_their_numbers(tmp_path: Path) -> None:
    lines = [
        f"{job} {submit} {job} 60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1" for job, submit in ((3, 9), (2, 0), (1, 9))
    ]
    found = reading(tmp_path, *lines)
    assert found.workload.job.tolist() == [2, 1, 3]
    assert found.wait_s.tolist() == [2, 1, 3]


def test_a_log_of_which_nothing_is_left_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none of its 1 jobs can be simulated \(left out: run time unknown: 1\)$"):
        reading(tmp_path, "2 0 5 -1 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1")


@pytest.mark.slow
def test_cleaning_a_real_log_says_what_it_did() -> None:
    found = read(trace("RICC-2010-2.swf.gz"))
    assert found.cleaning.read == 447794
    assert found.cleaning.rules == (
        ("left out: cancelled before it started", 8),
        ("kept: as many processors as it asked for, though it was given others", 6974),
        ("changed: no limit, so its run time is its limit", 2),
        ("changed: it ran past its limit, where it now ends", 7092),
        ("kept: it ran for 0 s", 2),
    )


PAST = "1 0 5 130 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1"
ZERO = "1 0 5 0 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1"
GIVEN_MORE = "1 0 5 60 16 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1"


@pytest.mark.parametrize(
    ("line", "asked", "job", "rule"),
    [
        (PAST, {}, (120, 120, 4), "changed: it ran past its limit, where it now ends"),
        (PAST, {"past_limit": "raised"}, (130, 130, 4), "changed: it ran past its limit, which is now its run time"),
        (ZERO, {}, (0, 120, 4), "kept: it ran for 0 s"),
        (ZERO, {"zero_run_time": "second"}, (1, 120, 4), "changed: it ran for 0 s, now for 1 s"),
        (GIVEN_MORE, {}, (60, 120, 4), "kept: as many processors as it asked for, though it was given others"),
        (
            GIVEN_MORE.replace(" 16 ", " 2 "),
            {"size": "allocated"},
            (60, 120, 2),
            "kept: as many processors as it was given, though it asked for others",
        ),
        (
            GOOD.replace(" 4 ", " 16 "),
            {"too_large": "shrunk"},
            (60, 120, 8),
            "changed: larger than the machine (8 processors), now as large",
        ),
    ],
)
def test_each_convention_is_counted_and_can_be_another(
    tmp_path: Path, line: str, asked: dict[str, str], job: tuple[int, int, int], rule: str
) -> None:
    found = reading(tmp_path, line, processors=8, conventions=Conventions.model_validate(asked))
    jobs = found.workload
    assert (jobs.run_s[0], jobs.limit_s[0], jobs.processors[0]) == job
    assert found.cleaning.rules == ((rule, 1),)


def test_jobs_that_ran_for_no_time_can_be_left_out(tmp_path: Path) -> None:
    found = reading(tmp_path, ZERO, GOOD.replace("1", "2", 1), conventions=Conventions(zero_run_time="left-out"))
    assert found.workload.job.tolist() == [2]
    assert found.cleaning.rules == (("left out: it ran for 0 s", 1),)


def test_jobs_of_one_instant_can_be_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [f"{job} {at} 5 60 4 -1 -1 4 120 -1 1 7 3 -1 -1 -1 -1 -1" for job, at in ((3, 9), (2, 0), (1, 9))]
    assert reading(tmp_path, *lines, conventions=Conventions(ties="file")).workload.job.tolist() == [2, 3, 1]


def test_every_rule_of_the_page_about_simulations_is_one_of_the_codes() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "simulate" / "workloads.md").read_text()
    told = re.findall(r"^\| `(?:left out|changed|kept): (.*?)(?: \(128 processors\))?` \|", page, re.MULTILINE)
    package = root / "control" / "gleaner" / "control" / "simulation" / "workloads"
    code = "".join((package / f"{name}.py").read_text() for name in ("cleaning", "sacct"))
    assert [rule for rule in told if rule not in code] == []
    assert len(told) == 27
