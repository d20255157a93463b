"""Slurm's short form of many host names. Pure."""

import math
import re
from collections.abc import Sequence

_PART = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?")
_RANGE = r"\d{1,9}(?:-\d{1,9})?"
_WORD = rf"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])*"
_LIST = re.compile(rf"{_WORD}(?:,{_WORD})*", re.ASCII)

LONGEST_LIST = 10_000


def expanded(short: str) -> list[str]:
    """Return the names in a list of Slurm's.

    >>> expanded("node[1-3,7],login"), expanded("r[1-2]n[08-09]"), expanded("")
    (['node1', 'node2', 'node3', 'node7', 'login'], ['r1n08', 'r1n09', 'r2n08', 'r2n09'], [])
    """
    return [name for word in _words(short) for name in _names(word)]


def chosen(words: Sequence[str], *, at_most: int) -> tuple[str, ...]:
    """Return the nodes that a person names, each once. Raises `ValueError`, in one line.

    >>> chosen(["node[1-2]", "node2,login"], at_most=10)
    ('node1', 'node2', 'login')
    """
    many = 0
    for word in words:
        if len(word) > LONGEST_LIST or not _LIST.fullmatch(word):
            raise ValueError(f"{word[:60]!r} names no nodes; write them like node1 or node[1-3]")
        for first, last in re.findall(r"(\d+)-(\d+)(?=[,\]])", "".join(re.findall(r"\[[^\]]*\]", word))):
            if int(last) < int(first):
                raise ValueError(f"{word[:60]!r}: {first}-{last} names no nodes; write {last}-{first}")
        many += sum(math.prod(map(_count, re.findall(r"\[([^\]]*)\]", each))) for each in _words(word))
    if many > at_most:
        raise ValueError(f"these are {many} nodes; at most {at_most} can be named at once")
    return tuple(dict.fromkeys(name for word in words for name in expanded(word)))


def _count(ranges: str) -> int:
    """Return how many numbers there are in the ranges."""
    spans = (each.partition("-") for each in ranges.split(","))
    return sum(max(0, int(last or first) - int(first) + 1) for first, _, last in spans)


def _words(short: str) -> list[str]:
    """Return the list's words: commas outside of brackets part them."""
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
