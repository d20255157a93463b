"""Slurm's short form of many host names. Pure."""

import re

_PART = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?")


def expanded(short: str) -> list[str]:
    """The names in a list of Slurm's.

    >>> expanded("node[1-3,7],login"), expanded("r[1-2]n[08-09]"), expanded("")
    (['node1', 'node2', 'node3', 'node7', 'login'], ['r1n08', 'r1n09', 'r2n08', 'r2n09'], [])
    """
    return [name for word in _words(short) for name in _names(word)]


def _words(short: str) -> list[str]:
    """The list's words: its commas outside of brackets part them."""
    return [word for word in re.split(r",(?![^\[]*\])", short) if word]


def _names(word: str) -> list[str]:
    names = [""]
    for plain, ranges in _PART.findall(word):
        numbers = _numbers(ranges) if ranges else [""]
        names = [name + plain + number for name in names for number in numbers]
    return names


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        width = len(first)
        found += [str(number).zfill(width) for number in range(int(first), int(last or first) + 1)]
    return found
