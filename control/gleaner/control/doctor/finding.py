"""The result of a check: its state, the observation, and the remedy. Pure."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class MachineRole(StrEnum):
    """The role of a machine in Gleaner."""

    CONTROL = "control"
    NODE = "node"
    CLIENT = "client"


class CheckState(StrEnum):
    """The state of whatever was checked. The worst state comes first."""

    FAULT = "fault"
    WARNING = "warning"
    NOT_CHECKED = "not checked"
    OK = "ok"


class Unread(Exception):
    """A failure to read something, with the reason in one line. A check that raises it was not performed."""

    def __init__(self, why: str, *, is_missing: bool = False, to_do: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.is_missing = is_missing
        """True if the thing is not there."""
        self.to_do = to_do

    @property
    def is_denied(self) -> bool:
        """Return True if the user who runs the doctor lacks the necessary rights."""
        return os.strerror(errno.EACCES) in self.why


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    `seen` contains the words of other programs only after a colon, and a bundle omits them.
    """

    name: str
    state: CheckState
    seen: str
    to_do: str = ""


def ok(seen: str) -> Finding:
    """Return the finding that the thing is in order."""
    return Finding("", CheckState.OK, seen)


def warning(seen: str, to_do: str) -> Finding:
    """Return the finding that Gleaner works, but that an admin should look at this."""
    return Finding("", CheckState.WARNING, seen, to_do)


def fault(seen: str, to_do: str) -> Finding:
    """Return the finding that Gleaner does not work, or not safely, until this is repaired."""
    return Finding("", CheckState.FAULT, seen, to_do)


def not_checked(why: str, to_do: str = "") -> Finding:
    """Return the finding that the check could not be performed, with the reason."""
    return Finding("", CheckState.NOT_CHECKED, why, to_do)


Case = tuple[object, Callable[[str, str], Finding], str, str]
"""A condition, and the state, the observation and the remedy if it is true."""


def first(otherwise: str, *cases: Case) -> Finding:
    """Return the finding of the first case that is true, or otherwise that the thing is in order.

    >>> first("fine", (False, fault, "a", "x"), (True, warning, "b", "y")).seen, first("fine").seen
    ('b', 'fine')
    """
    return next((judge(seen, to_do) for holds, judge, seen, to_do in cases if holds), ok(otherwise))


def fold(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, merging those with the same observation, such as missing settings.

    >>> [found.seen for found in fold([not_checked("no settings"), not_checked("no settings"), ok("fine")])]
    ['no settings', 'fine']
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        alike.setdefault((found.state, found.seen), []).append(found)
    return tuple(
        replace(one, name=f"{one.name} and {len(more)} more") if more else one for one, *more in alike.values()
    )


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings in each state, in words, the worst state first.

    >>> summary([Finding("a", CheckState.OK, ""), Finding("b", CheckState.FAULT, ""), Finding("c", CheckState.OK, "")])
    '1 fault, 2 ok'
    """
    counts = Counter(finding.state for finding in findings)
    plural = {CheckState.FAULT: "faults", CheckState.WARNING: "warnings"}
    return ", ".join(f"{many} {plural.get(state, state) if many > 1 else state}" for state in CheckState
                     if (many := counts[state]))  # fmt: skip
