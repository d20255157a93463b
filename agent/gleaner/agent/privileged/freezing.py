"""How often it is tried to freeze a container, and what is put right where that has failed."""

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


def thaw(folder: str) -> None:
    """Let a container go on that runc has failed to freeze. `folder` is what runc keeps of it.

    With cgroups of version 2 runc leaves the order to freeze standing (with version 1 it takes it back): the container
    would stop later, unseen.
    """
    try:
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            cgroup = json.load(file)["cgroup_paths"][""]
        with open(os.path.join(cgroup, "cgroup.freeze"), "r+", encoding="ascii") as order:
            order.write("0\n")
    except (OSError, ValueError, KeyError, TypeError):
        pass  # version 1, or it has ended
