"""The result of a check: its state, what was seen, and what to do. Pure."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class MachineRole(StrEnum):
    """The part of a machine in Gleaner."""

    CONTROL = "control"
    NODE = "node"
    CLIENT = "client"


class CheckState(StrEnum):
    """The state of a thing, the worst first."""

    FAULT = "fault"
    WARNING = "warning"
    NOT_CHECKED = "not checked"
    OK = "ok"


class Unread(Exception):
    """A thing could not be read: one line why. A check that leaves it to its caller is one that was not made."""

    def __init__(self, why: str, *, is_missing: bool = False, to_do: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.is_missing = is_missing
        """True if the thing is not there."""
        self.to_do = to_do

    @property
    def is_denied(self) -> bool:
        """True if the rights of whoever runs the doctor did not suffice."""
        return os.strerror(errno.EACCES) in self.why


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. Words of other programs stand behind a colon of `seen`, and a bundle leaves them out."""

    name: str
    state: CheckState
    seen: str
    to_do: str = ""


def ok(seen: str) -> Finding:
    """Return that the thing is in order."""
    return Finding("", CheckState.OK, seen)


def warning(seen: str, to_do: str) -> Finding:
    """Return that Gleaner works, and that an admin should look at this."""
    return Finding("", CheckState.WARNING, seen, to_do)


def fault(seen: str, to_do: str) -> Finding:
    """Return that Gleaner does not work, or not safely, until this is repaired."""
    return Finding("", CheckState.FAULT, seen, to_do)


def not_checked(why: str, to_do: str = "") -> Finding:
    """Return that the thing was not checked, and why."""
    return Finding("", CheckState.NOT_CHECKED, why, to_do)


Case = tuple[object, Callable[[str, str], Finding], str, str]
"""A condition, and the state, what was seen and what to do if it holds."""


def first(otherwise: str, *cases: Case) -> Finding:
    """Return the first case that holds; if none does, that the thing is in order.

    >>> first("fine", (False, fault, "a", "x"), (True, warning, "b", "y")).seen, first("fine").seen
    ('b', 'fine')
    """
    return next((judge(seen, to_do) for holds, judge, seen, to_do in cases if holds), ok(otherwise))


def fold(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, with one line for the checks that saw the same, such as settings that are missing.

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
    """Return the counts in words, the worst first.

    >>> summary([Finding("a", CheckState.OK, ""), Finding("b", CheckState.FAULT, ""), Finding("c", CheckState.OK, "")])
    '1 fault, 2 ok'
    """
    counts = Counter(finding.state for finding in findings)
    plural = {CheckState.FAULT: "faults", CheckState.WARNING: "warnings"}
    return ", ".join(f"{many} {plural.get(state, state) if many > 1 else state}" for state in CheckState
                     if (many := counts[state]))  # fmt: skip
