"""Find the memory of a checkpoint that can be loaded after its processes run, from CRIU's page maps.

CRIU marks pages that can be loaded later (`PE_LAZY`). They are a process's private memory that is not backed by a file,
except stacks, locked pages and huge pages. With `--lazy-pages` it leaves out the pages that have this mark and are not
present in the image. The agent writes page maps of this kind. Memory that two processes have at the same place is
loaded at the start, because they have shared it since a fork. The same holds for memory that a child does not inherit
unchanged from its parent (madvise(2)). The formats are those of CRIU's images/pagemap.proto and images/vma.proto.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from .criu_messages import NotUnderstood, Value, field, fields, number_in
from .vdso import MAGIC_BYTES, messages

PAGE = 4096
PAGEMAP = re.compile(r"pagemap-([0-9]{1,10})\.img\Z")
_LAZY, _PRESENT = 1 << 1, 1 << 2
"""Flags of pages: they can be loaded later, and they are in the image."""
_REGULAR, _STACK, _ANON_PRIVATE = 1 << 0, 1 << 1, 1 << 9
"""Bits of a mapping's `status`."""
_GROWS_DOWN, _LOCKED, _HUGE = 0x100, 0x2000, 0x40000
"""Flags of a mapping (mmap(2))."""
_NOT_IN_CHILD = 1 << 10 | 1 << 18
"""Advice on a mapping: MADV_DONTFORK and MADV_WIPEONFORK."""
_END_OF_ADDRESSES = 1 << 57
_HEAD = struct.Struct("<I")

Range = tuple[int, int]


class LazyPlan(NamedTuple):
    """The plan for restoring one process's memory."""

    process: int
    pages: str
    """The name of its image of pages."""
    pagemap: bytes
    """Its page map in the form that CRIU receives."""
    eager: list[tuple[int, int, int]]
    """The pages that CRIU receives, in order, with address, length, and offset in the image of pages."""
    lazy: list[tuple[int, int, int]]
    """The pages that are loaded later."""


def plans(mappings: Mapping[int, bytes], pagemaps: Mapping[int, bytes]) -> dict[int, LazyPlan]:
    """Return the plan for each process by its number, from the images of its mappings and of its page map.

    Raises `NotUnderstood`, `ValueError` or `struct.error`.
    """
    own = {process: _own_areas(image) for process, image in mappings.items()}
    count = Counter(area for areas in own.values() for area in areas)
    return {
        process: _plan(process, image, [area for area in own.get(process, []) if count[area] == 1])
        for process, image in pagemaps.items()
    }


def _own_areas(image: bytes) -> list[Range]:
    """Return the start and end of each mapping whose pages can be loaded later."""
    found: list[Range] = []
    for message in messages(image):
        for number, value in fields(message):
            if number == 14 and isinstance(value, bytes):
                mapping = dict(fields(value))
                start, end, flags, status, advice = (number_in(mapping.get(one, 0)) for one in (1, 2, 6, 7, 9))
                is_own = status & (_REGULAR | _STACK | _ANON_PRIVATE) == _REGULAR | _ANON_PRIVATE
                if is_own and not flags & (_GROWS_DOWN | _LOCKED | _HUGE) and not advice & _NOT_IN_CHILD:
                    found.append((start, end))
    return found


def _plan(process: int, image: bytes, areas: list[Range]) -> LazyPlan:
    head, *runs = messages(image)
    made = [image[:MAGIC_BYTES], _HEAD.pack(len(head)), head]
    plan = LazyPlan(process, f"pages-{number_in(dict(fields(head)).get(1, 0))}.img", b"", [], [])
    joined: list[Range] = []  # CRIU describes the pages of adjacent mappings as one run
    for first, last in sorted(areas):
        before = joined.pop() if joined and joined[-1][1] == first else (first, first)
        joined.append((before[0], last))
    at = 0
    for run in runs:
        entry = dict(fields(run))
        flags, (start, length) = number_in(entry.get(4, _PRESENT)), _place(entry)
        if flags & _LAZY and flags & _PRESENT:
            area = joined[bisect_right(joined, (start, _END_OF_ADDRESSES)) - 1 :][:1]
            later = any(first <= start and start + length <= last for first, last in area)
            entry[4] = _LAZY if later else flags & ~_LAZY
            run = b"".join(field(*one) for one in entry.items())  # noqa: PLW2901
            if later:
                plan.lazy.append((start, length, at))
        if flags & _PRESENT:
            if 4 not in entry or number_in(entry[4]) & _PRESENT:
                plan.eager.append((start, length, at))
            at += length
        made += [_HEAD.pack(len(run)), run]
    return plan._replace(pagemap=b"".join(made))


def _place(entry: Mapping[int, Value]) -> Range:
    return number_in(entry.get(1, 0)), PAGE * number_in(entry.get(5, entry.get(2, 0)))


def later_ranges(image: bytes) -> list[Range]:
    """Return the start and end of all memory that is loaded later, from a page map in the form that CRIU receives.

    Raises `NotUnderstood`, `ValueError` or `struct.error`.
    """
    found: list[Range] = []
    for run in list(messages(image))[1:]:
        entry = dict(fields(run))
        if number_in(entry.get(4, _PRESENT)) & (_LAZY | _PRESENT) == _LAZY:
            start, length = _place(entry)
            if start % PAGE or not length or start + length > _END_OF_ADDRESSES or (found and start < found[-1][1]):
                raise NotUnderstood("a page map that no process can have")
            found.append((start, start + length))
    return found
