"""Match patterns that select which files of a folder to keep, such as `*.root` or `hist/**`.

A pattern is a path relative to the folder. In each of its names `*`, `?` and `[abc]` have the same meaning as in a
shell, but a leading dot is an ordinary character. `**` in place of a name stands for any number of folders. A pattern
that matches a folder keeps everything in it.
"""

from __future__ import annotations  # the node may have Python 3.9

import fnmatch
import functools
import re
from collections.abc import Sequence

MOST = 32
"""The maximum number of patterns of a job."""
LONGEST = 255
_ANY_FOLDERS = "**"

Names = Sequence[str]


def fault(pattern: str) -> str:
    """Return why this is not a valid pattern, or "" if it is.

    >>> fault("../*.root"), fault("hist/**")
    ("must stay in the job's folder: write it without . and ..", '')
    """
    names = pattern.split("/")
    if not pattern or len(pattern) > LONGEST or not pattern.isprintable():
        return f"must have 1 to {LONGEST} printable characters"
    if pattern.startswith("/"):
        return "must be relative to /job: write it without the leading /"
    if any(name in {".", ".."} for name in names):
        return "must stay in the job's folder: write it without . and .."
    if "" in names[:-1]:
        return "has two / in a row"
    if any(_ANY_FOLDERS in name and name != _ANY_FOLDERS for name in names):
        return "has ** beside other letters: ** stands for whole folders, as in hist/**/*.root"
    return ""


class Keep:
    """A selection of files to keep, which remembers the patterns that have matched no file."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._unmatched = set(patterns)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The patterns that have matched no file so far."""
        return tuple(pattern for pattern in self._patterns if pattern in self._unmatched)

    def __call__(self, names: Names) -> bool:
        """Return True if the file with this path is kept. `names` are the names of its folders, and its own."""
        found = [pattern for pattern in self._patterns if _fits(_parsed(pattern), names)]
        self._unmatched.difference_update(found)
        return bool(found)


def _fits(steps: Sequence[re.Pattern[str] | None], names: Names) -> bool:
    """Return True if the pattern matches the path, or one of the folders in it.

    All places in the pattern that the names so far lead to are followed at the same time, so no pattern takes long to
    match.
    """
    places = _with_skips(steps, {0})
    for name in names:
        reached = {place for place in places if steps[place] is None}
        reached |= {place + 1 for place in places if (step := steps[place]) is not None and step.match(name)}
        places = _with_skips(steps, reached)
        if len(steps) in places:
            return True
    return False


def _with_skips(steps: Sequence[re.Pattern[str] | None], places: set[int]) -> set[int]:
    """Return the places, and those after each `**`, which can also stand for no folder at all."""
    found: set[int] = set()
    for first in places:
        place = first
        while place < len(steps) and steps[place] is None:
            found.add(place)
            place += 1
        found.add(place)
    return found


@functools.lru_cache(maxsize=1024)
def _parsed(pattern: str) -> tuple[re.Pattern[str] | None, ...]:
    """Return the expression that each name must match, or None for `**`.

    A `**` at the end stands for everything in the folder, as `*` does.
    """
    names = pattern.rstrip("/").split("/")
    if names[-1] == _ANY_FOLDERS:
        names[-1] = "*"
    return tuple(None if name == _ANY_FOLDERS else re.compile(fnmatch.translate(name)) for name in names)
