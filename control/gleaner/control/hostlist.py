"""Slurm's short notation for many host names. Pure."""

import math
import re
from collections.abc import Sequence

_PART = re.compile(r"([^,\[\]]*)(?:\[([^\]]*)\])?")
_RANGE = r"\d{1,9}(?:-\d{1,9})?"
_WORD = rf"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])*"
_SHORT = re.compile(rf"(?:[^,\[\]]|\[{_RANGE}(?:,{_RANGE})*\])+", re.ASCII)
_LIST = re.compile(rf"{_WORD}(?:,{_WORD})*", re.ASCII)

LONGEST_LIST = 10_000
MOST_NAMES = 200_000
"""The largest number of names in a list. No cluster has this many nodes."""


def expanded(short: str) -> list[str]:
    """Return the names in a list in Slurm's notation. Raises `ValueError` for any other notation.

    >>> expanded("node[1-3,7],login"), expanded("r[1-2]n[08-09]"), expanded("")
    (['node1', 'node2', 'node3', 'node7', 'login'], ['r1n08', 'r1n09', 'r2n08', 'r2n09'], [])
    """
    words = _words(short)
    if wrong := [word for word in words if not _SHORT.fullmatch(word)]:
        raise ValueError(f"{wrong[0][:60]!r} names no nodes")
    if sum(map(_size, words)) > MOST_NAMES:
        raise ValueError(f"{short[:60]!r} names more than {MOST_NAMES} nodes")
    return [name for word in words for name in _names(word)]


def chosen(words: Sequence[str], *, at_most: int) -> tuple[str, ...]:
    """Return the nodes that a person has named, each listed once. Raises a `ValueError` with a message of one line.

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
        many += sum(map(_size, _words(word)))
    if many > at_most:
        raise ValueError(f"these are {many} nodes; at most {at_most} can be named at once")
    return tuple(dict.fromkeys(name for word in words for name in expanded(word)))


def _size(word: str) -> int:
    """Return the number of names in a word."""
    brackets = (ranges for _, ranges in _PART.findall(word) if ranges)
    return math.prod(max(1, sum(len(_span(span)) for span in ranges.split(","))) for ranges in brackets)


def _span(span: str) -> range:
    first, _, last = span.partition("-")
    return range(int(first), int(last or first) + 1)


def _words(short: str) -> list[str]:
    """Return the words of the list, which are separated by the commas outside brackets."""
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
        width = len(each.partition("-")[0])
        found += [str(number).zfill(width) for number in _span(each)]
    return found
