"""A container's cgroups, of version 1, 2 or both."""

from __future__ import annotations  # the node may have Python 3.9

import json
import os


def made_by_runc(kept: str) -> dict[str, str]:
    """Return the container's cgroup folder for each controller, as runc has made them; "" is that of version 2.

    `kept` is the folder in which runc keeps its facts about the container.
    """
    try:
        with open(os.path.join(kept, "state.json"), encoding="utf-8") as file:
            found: dict[str, str] = json.load(file)["cgroup_paths"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def counters(folder: str | None, file: str) -> dict[str, int]:
    """Return the names and numbers in a cgroup's file; nothing if the file is not there."""
    try:
        with open(os.path.join(folder or "/nowhere", file), encoding="ascii") as content:
            return {words[0]: int(words[1]) for words in map(str.split, content) if len(words) == 2}
    except OSError:
        return {}
