"""How often it is tried to freeze a container, and what becomes of the order where that has failed."""

from __future__ import annotations  # the node may have Python 3.9

import itertools
import json
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


def holds_after_all(folder: str) -> bool:
    """Return True if a container that runc could not freeze stands frozen. Else take the order to freeze back.

    With cgroups of version 2 runc leaves the order standing (with version 1 it does not): the container would stop
    later, unseen. `folder` is what runc keeps of it. With version 1, and for one that has ended, False.
    """
    try:
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            cgroup = json.load(file)["cgroup_paths"][""]
        with open(os.path.join(cgroup, "cgroup.events"), encoding="ascii") as events:
            if {"populated 1", "frozen 1"} <= set(events.read().splitlines()):
                return True
        with open(os.path.join(cgroup, "cgroup.freeze"), "r+", encoding="ascii") as order:
            order.write("0\n")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return False
