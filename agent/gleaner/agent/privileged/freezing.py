"""Tries to freeze a container, and what it does where they, or a try to let it go on, have failed."""

from __future__ import annotations  # the node may have Python 3.9

import itertools
import os
import time
from collections.abc import Iterator

_WITHIN_S = 5.0
"""On a busy node the kernel may not stop all threads in the time that runc gives it: then it is tried again."""
_AGAIN_S = 0.2
_TRIES = 2
"""At least so often: with cgroups of version 2 runc itself waits for 10 s."""


def tries() -> Iterator[bool]:
    """Yield for each try whether it is the last one. Waits between them."""
    until_s = time.monotonic() + _WITHIN_S
    for number in itertools.count(1):
        is_last = number >= _TRIES and time.monotonic() >= until_s
        yield is_last
        if is_last:
            return
        time.sleep(_AGAIN_S)


def holds_after_all(cgroups: dict[str, str]) -> bool:
    """Return True if a container that runc could not freeze stands frozen. Else take the order to freeze back.

    With cgroups of version 2 runc leaves the order standing (with version 1 it does not): the container would stop
    later, unseen. `cgroups` are its folders by controller; "" is that of version 2. With version 1, and for a container
    that has ended, False.
    """
    try:
        if _is(cgroups[""], "frozen 1"):
            return True
        with open(os.path.join(cgroups[""], "cgroup.freeze"), "r+", encoding="ascii") as order:
            order.write("0\n")
    except (OSError, KeyError):
        pass
    return False


def goes_on_after_all(cgroups: dict[str, str]) -> bool:
    """Return True if a container that runc could not let go on is not frozen: CRIU was killed when it had thawed it.

    `cgroups` as for `holds_after_all`. For a container that has ended, False.
    """
    try:
        if "freezer" in cgroups:
            with open(os.path.join(cgroups["freezer"], "freezer.state"), encoding="ascii") as state:
                return state.read() == "THAWED\n"
        return _is(cgroups[""], "frozen 0")
    except (OSError, KeyError):
        return False


def _is(cgroup: str, frozen: str) -> bool:
    """Return True if a container of version 2 has processes, and stands or goes on like that."""
    with open(os.path.join(cgroup, "cgroup.events"), encoding="ascii") as events:
        return {"populated 1", frozen} <= set(events.read().splitlines())
