"""The result of a check: its state, what was seen, and what to do. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_MANY = 3
"""So many checks that wait for one thing are one line."""


class CheckState(StrEnum):
    """The state of a thing."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The word of a check on the facts. Each text is one line."""

    state: CheckState
    seen: str
    to_do: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, by the name of what was checked."""

    name: str
    state: CheckState
    seen: str
    to_do: str = ""


def ok(seen: str) -> Judgement:
    """Return that the thing is in order."""
    return Judgement(CheckState.OK, seen)


def warning(seen: str, to_do: str) -> Judgement:
    """Return that Gleaner works, and that somebody should look at this."""
    return Judgement(CheckState.WARNING, seen, to_do)


def fault(seen: str, to_do: str) -> Judgement:
    """Return that Gleaner does not work, or not safely, until this is mended."""
    return Judgement(CheckState.FAULT, seen, to_do)


def not_checked(why: str, to_do: str = "") -> Judgement:
    """Return that the thing was not checked, and why."""
    return Judgement(CheckState.NOT_CHECKED, why, to_do)


def has_fault(findings: tuple[Finding, ...]) -> bool:
    """Return True if something has to be mended."""
    return any(finding.state is CheckState.FAULT for finding in findings)


def fold(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, with one line instead of many checks that wait for the same thing.

    >>> waits = [Finding(name, CheckState.NOT_CHECKED, "no settings", "as root") for name in "abc"]
    >>> [(found.name, found.seen) for found in fold([*waits, Finding("d", CheckState.OK, "no settings")])]
    [('3 checks', 'wait for this: no settings'), ('d', 'no settings')]
    """
    causes = Counter(found.seen for found in findings if found.state is CheckState.NOT_CHECKED)
    folded: dict[tuple[CheckState, str], Finding] = {}
    for found in findings:
        many = causes[found.seen] if found.state is CheckState.NOT_CHECKED else 1
        if many < _MANY:
            folded[found.state, found.name] = found
        else:
            line = Finding(f"{many} checks", found.state, f"wait for this: {found.seen}", found.to_do)
            folded.setdefault((found.state, line.seen), line)
    return tuple(folded.values())


def summary(findings: tuple[Finding, ...]) -> str:
    """Return the counts in words, the worst first.

    >>> summary((Finding("a", CheckState.OK, ""), Finding("b", CheckState.FAULT, ""), Finding("c", CheckState.OK, "")))
    '1 fault, 2 ok'
    """
    order = (CheckState.FAULT, CheckState.WARNING, CheckState.NOT_CHECKED, CheckState.OK)
    counts = [(state, sum(finding.state is state for finding in findings)) for state in order]
    plural = {CheckState.FAULT: "faults", CheckState.WARNING: "warnings"}
    return ", ".join(f"{many} {plural.get(state, state) if many > 1 else state}" for state, many in counts if many)
