"""Tries to freeze a container, and the order to freeze where they have failed."""

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


def holds_after_all(cgroup: str | None) -> bool:
    """Return True if a container that runc could not freeze stands frozen. Else take the order to freeze back.

    With cgroups of version 2 runc leaves the order standing (with version 1 it does not): the container would stop
    later, unseen. `cgroup` is its folder of version 2. Without one, and for a container that has ended, False.
    """
    if cgroup is None:
        return False
    try:
        with open(os.path.join(cgroup, "cgroup.events"), encoding="ascii") as events:
            if {"populated 1", "frozen 1"} <= set(events.read().splitlines()):
                return True
        with open(os.path.join(cgroup, "cgroup.freeze"), "r+", encoding="ascii") as order:
            order.write("0\n")
    except OSError:
        pass
    return False
