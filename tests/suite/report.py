"""The judgement on a run of the tests: pure functions on the report lines that pytest-reportlog writes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SLOWEST = 20
MOST_FLAKY = 3
"""More tests than this that passed only when they were run again make the run red."""
NEVER_AGAIN = (
    # security
    "tests/privileged/", "tests/slurm_admin/", "tests/api/test_access.py", "tests/api/test_munge.py",
    "tests/api/test_who.py", "tests/real_cluster/test_dead_mans_switch.py", "tests/real_cluster/test_slurm_admin.py",
    # loss of what was computed, and double runs
    "tests/agent/", "tests/checkpoints/", "tests/job/", "tests/reporting/", "tests/runtime/", "tests/user_job/",
    "tests/api/test_at_once.py", "tests/api/test_storage_gc.py", "tests/daemon/test_fencing.py",
    "tests/daemon/test_leader.py", "tests/daemon/test_report_spool.py", "tests/queue/test_broken_checkpoints.py",
    "tests/queue/test_checkpoints.py", "tests/queue/test_claims.py", "tests/queue/test_lost_attempts.py",
    "tests/queue/test_machine.py", "tests/queue/test_returned_attempts.py", "tests/queue/test_too_late.py",
    "tests/queue/test_transitions.py", "tests/real_cluster/test_campaign.py", "tests/real_cluster/test_drain.py",
    "tests/real_cluster/test_entitlements.py", "tests/real_cluster/test_eternal.py",
    "tests/real_cluster/test_faults.py", "tests/real_cluster/test_nodes_that_fail.py",
    "tests/real_cluster/test_user_jobs.py",
)  # fmt: skip
"""Tests whose failure is never taken for chance. Neither is a failure of a hypothesis test."""


@dataclass(slots=True)
class Outcome:
    """One test: its set-up, call and tear-down together."""

    id: str
    seconds: float = 0.0
    failed: bool = False
    skipped: bool = False
    ended: bool = False
    error: str = ""
    is_property: bool = False
    """A test of hypothesis, of one function or of a state machine."""

    @property
    def folder(self) -> str:
        """Return the folder of the test's file, without what lies deeper: `tests/queue`."""
        return "/".join(self.id.split("::")[0].split("/")[:-1][:2]) or "."

    @property
    def passed(self) -> bool:
        """Return whether the test ran to its end and nothing failed."""
        return self.ended and not self.failed and not self.skipped

    @property
    def may_run_again(self) -> bool:
        """Return whether a failure of this test may be taken for chance."""
        return not self.is_property and not self.id.startswith(NEVER_AGAIN)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The tests to run again, and the reasons why the run has failed."""

    again: tuple[str, ...]
    """Ids of tests."""
    red: tuple[str, ...]
    """Reasons; none if the run has not failed (yet)."""


@dataclass(slots=True)
class Reports:
    """Everything that one test process has reported so far."""

    tests: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    broken: list[str] = field(default_factory=list[str])
    """Errors of files that could not be collected."""

    def read(self, lines: Iterable[str]) -> None:
        """Add the lines of a report log. A last line that is not whole is left out: its process was killed."""
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            match entry.get("$report_type"):
                case "TestReport":
                    self._add(entry)
                case "CollectReport" if entry["outcome"] == "failed":
                    self.broken.append(f"{entry['nodeid']}: {words_of(entry)}")

    def _add(self, entry: Mapping[str, Any]) -> None:
        test = self.tests.setdefault(entry["nodeid"], Outcome(entry["nodeid"]))
        test.is_property |= "hypothesis" in entry.get("keywords", ())
        test.seconds += entry["duration"]
        test.ended |= entry["when"] == "teardown"
        test.skipped |= entry["outcome"] == "skipped"
        if entry["outcome"] == "failed":
            test.failed = True
            test.error = test.error or words_of(entry)


def words_of(report: Mapping[str, Any]) -> str:
    """Return the text of a failure: the error's own lines, then what the test printed."""
    error = report.get("longrepr")
    text = error if isinstance(error, str) else _of_entries(error or {})
    printed = "".join(f"\n--- {title} ---\n{content}" for title, content in report.get("sections", ()))
    return f"{text.rstrip()}{printed}"


def _of_entries(error: Mapping[str, Any]) -> str:
    """Return the lines of a traceback as pytest-reportlog writes them."""
    lines: list[str] = []
    for entry in (error.get("reprtraceback") or {}).get("reprentries", ()):
        data = entry["data"]
        lines += data.get("lines") or ()
        if place := data.get("reprfileloc"):
            lines += ["", f"{place['path']}:{place['lineno']}: {place['message']}", ""]
    crash = error.get("reprcrash") or {}
    return "\n".join(lines) or f"{crash.get('path')}:{crash.get('lineno')}: {crash.get('message')}"


def broken_off(part: str, status: int, tests: Iterable[Outcome], *, may_be_empty: bool) -> list[str]:
    """Return the reasons to call a part red that no failed test gives: its process broke off, or ran nothing.

    `status` is pytest's exit status: 0 passed, 1 tests failed, 5 nothing was selected. Python itself ends with 1, too.
    """
    there = list(tests)
    open_ones = [test.id for test in there if not test.ended and not test.failed]
    if open_ones:
        return [f"{part} ended with {status} in the middle of {', '.join(open_ones)}"]
    if status == 0 or (status == 5 and may_be_empty) or (status == 1 and any(test.failed for test in there)):
        return []
    return [f"{part} ended with {status} after {len(there)} tests"]


def judge(tests: Iterable[Outcome], broken: Sequence[str] = (), *, run_again: bool = True) -> Judgement:
    """Decide which tests are run again. Nothing is run again where the run is red anyway, or without `run_again`."""
    failed = [test for test in tests if test.failed]
    red = [*broken]
    if not run_again:
        return Judgement((), tuple(red + [f"{test.id}: failed" for test in failed]))
    red += [f"{test.id}: failed, and a failure of it is never chance" for test in failed if not test.may_run_again]
    again = tuple(test.id for test in failed if test.may_run_again)
    if len(again) > MOST_FLAKY:
        red.append(f"{len(again)} tests failed; no more than {MOST_FLAKY} are run again")
    return Judgement(() if red else again, tuple(red))


def table(tests: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return one row for each folder: folder, tests, failed, seconds; those that cost most come first."""
    rows: dict[str, dict[str, Any]] = {}
    for test in tests:
        row = rows.setdefault(test.folder, {"folder": test.folder, "tests": 0, "failed": 0, "seconds": 0.0})
        row["tests"] += 1
        row["failed"] += test.failed
        row["seconds"] += test.seconds
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def slowest(tests: Iterable[Outcome]) -> list[Outcome]:
    """Return the tests that took longest."""
    return sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]


def as_text(rows: Sequence[Mapping[str, Any]], slow: Sequence[Outcome]) -> str:
    """Return both tables as people read them. Seconds of a folder are those of its tests, side by side or not."""
    total = {"folder": "all", **{key: sum(row[key] for row in rows) for key in ("tests", "failed", "seconds")}}
    lines = [f"{'folder':28} {'tests':>6} {'failed':>6} {'seconds':>8}"]
    lines += [f"{r['folder']:28} {r['tests']:6} {r['failed']:6} {r['seconds']:8.1f}" for r in (*rows, total)]
    lines += ["", f"the {len(slow)} slowest tests, in seconds"]
    lines += [f"{test.seconds:8.1f}  {test.id}" for test in slow]
    return "\n".join(lines)
