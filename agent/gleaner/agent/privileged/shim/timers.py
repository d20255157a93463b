"""Restart periodic timers that are open files (timerfd), which CRIU restores as if they were switched off.

The kernel starts the next period of such a timer when the program reads its expiry. Until then the remaining time is 0,
and CRIU sets the timer to that value (criu/timerfd.c). But 0 means off, so a program that waits for the timer would
wait indefinitely. While a job is paused its timers continue to run, so the fault affects nearly all timers with a short
period.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re

from ...system import openat
from ..common import linux
from ..common.processes import family

_LINK = "anon_inode:[timerfd]"
_FACTS = re.compile(
    r"^ticks: (?P<ticks>\d+)$.*^it_value: \(0, 0\)$.*^it_interval: \((?P<s>\d+), (?P<ns>\d+)\)$",
    re.MULTILINE | re.DOTALL,
)
_SOON_NS = 1


def start_again(init_pid: int) -> None:
    """Start each periodic timer that had expired when it was saved. The processes must be stopped. Raises `OSError`.

    Such a timer expires immediately, as if the program were late to read it.
    """
    for pid in family(init_pid):
        about = f"/proc/{pid}"
        for name in os.listdir(f"{about}/fd"):
            if os.readlink(f"{about}/fd/{name}") == _LINK:
                with open(f"{about}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
                    if (period := period_of_expired(file.read())) is not None:
                        _start(pid, int(name), *period)


def period_of_expired(facts: str) -> tuple[int, int] | None:
    r"""Return the period (seconds, nanoseconds) of an expired timer from its `fdinfo` (proc(5)).

    Return None for a timer that has not expired, is off, or expires only once. A timer that is off has no expiry to
    read, whatever its period.

    >>> period_of_expired("clockid: 1\nticks: 1\nsettime flags: 00\nit_value: (0, 0)\nit_interval: (0, 10000000)\n")
    (0, 10000000)
    >>> period_of_expired("clockid: 1\nticks: 0\nsettime flags: 00\nit_value: (0, 0)\nit_interval: (0, 10000000)\n")
    """
    found = _FACTS.search(facts)
    if found is None or found["ticks"] == "0":
        return None
    period = int(found["s"]), int(found["ns"])
    return period if any(period) else None


def _start(pid: int, number: int, seconds: int, nanoseconds: int) -> None:
    with openat.closing_fd(os.pidfd_open(pid)) as process, openat.closing_fd(linux.take_file(process, number)) as timer:
        linux.set_timer(timer, first_ns=_SOON_NS, period=(seconds, nanoseconds))
