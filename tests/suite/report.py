"""The outcome and cost of the tests of a run, from the lines that pytest-reportlog writes."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SLOWEST = 20


@dataclass(slots=True)
class Outcome:
    """One test: its set-up, call and tear-down together."""

    id: str
    seconds: float = 0.0
    failed: bool = False
    skipped: bool = False
    ended: bool = False

    @property
    def folder(self) -> str:
        """Return the folder of the test's file, without what lies deeper: `tests/queue`."""
        return "/".join(self.id.split("::")[0].split("/")[:-1][:2]) or "."


def read(log: Path) -> tuple[list[Outcome], bool]:
    """Return the tests of a report log, and whether their process came to its end.

    A last line that is not whole is left out: its process was killed, or is writing it.
    """
    tests: dict[str, Outcome] = {}
    is_whole = False
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        is_whole |= entry["$report_type"] == "SessionFinish"
        if entry["$report_type"] == "TestReport":
            test = tests.setdefault(entry["nodeid"], Outcome(entry["nodeid"]))
            test.seconds += entry["duration"]
            test.ended |= entry["when"] == "teardown"
            test.failed |= entry["outcome"] == "failed"
            test.skipped |= entry["outcome"] == "skipped"
    return list(tests.values()), is_whole


def as_text(tests: Iterable[Outcome]) -> str:
    """Return what each folder cost, and the slowest tests. Seconds are those of tests, side by side or not."""
    by_folder: dict[str, list[Outcome]] = defaultdict(list)
    for test in tests:
        by_folder[test.folder].append(test)
        by_folder["all"].append(test)
    rows = [
        (folder, len(of_it), sum(test.failed for test in of_it), sum(test.seconds for test in of_it))
        for folder, of_it in by_folder.items()
    ]
    lines = [f"{'folder':28} {'tests':>6} {'failed':>6} {'seconds':>8}"]
    lines += [f"{row[0]:28} {row[1]:6} {row[2]:6} {row[3]:8.1f}" for row in sorted(rows, key=lambda row: row[3])]
    lines += ["", f"the {SLOWEST} slowest tests, in seconds"]
    slow = sorted(by_folder["all"], key=lambda test: -test.seconds)[:SLOWEST]
    return "\n".join([*lines, *(f"{test.seconds:8.1f}  {test.id}" for test in slow)])
