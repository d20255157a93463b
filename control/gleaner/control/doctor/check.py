"""A check is one function that reads and judges.

`check` registers it, and `examine` runs the checks of a machine's role.
"""

import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotInTime
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial

from gleaner.control.doctor.finding import Finding, MachineRole, Unread, not_checked
from gleaner.control.doctor.look import Look, started
from gleaner.control.input_errors import one_line

CONTROL, NODE, CLIENT = MachineRole.CONTROL, MachineRole.NODE, MachineRole.CLIENT
ALL = (CONTROL, NODE, CLIENT)
_LONGEST_ERROR = 200
_LATE = not_checked("this check did not finish in time", "the thing that it checks hangs, or this machine is very busy")
Function = Callable[[Look], Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the roles of the machines for which it is meant."""

    name: str
    roles: tuple[MachineRole, ...]
    judge: Function


CHECKS: list[Check] = []
"""All checks, in the order in which their modules are loaded."""


def check(name: str, roles: tuple[MachineRole, ...]) -> Callable[[Function], Function]:
    """Make a function a check of these roles. If it raises `Unread`, the check counts as not performed."""

    def register(judge: Function) -> Function:
        CHECKS.append(Check(name, roles, judge))
        return judge

    return register


def examine(look: Look) -> tuple[Finding, ...]:
    """Return the result of each check of this machine's role, no later than the end of the look.

    The checks run in parallel. If one hangs, for example in a file system, it is reported and left running.
    """
    running = {one.name: started(partial(judged, one, look)) for one in CHECKS if look.role in one.roles}
    wait(running.values(), timeout=max(0.0, look.ends_s - time.monotonic()))
    return tuple(replace(each.result() if each.done() else _LATE, name=name) for name, each in running.items())


def judged(one: Check, look: Look) -> Finding:
    """Return the result of one check, without its name. If it fails, the others are not affected."""
    try:
        found = one.judge(look)
    except Unread as error:
        found = not_checked(error.why, error.to_do)
    except NotInTime:
        found = _LATE
    except Exception as error:  # the other checks still report their results
        why = f"this check itself failed: {type(error).__name__}: {error}"
        found = not_checked(why[:_LONGEST_ERROR], "please report this")
    return replace(found, seen=one_line(found.seen), to_do=one_line(found.to_do))
