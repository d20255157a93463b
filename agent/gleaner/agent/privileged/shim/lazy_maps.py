"""Find, from CRIU's page maps, the memory of a checkpoint that can be loaded when its processes already run.

CRIU marks pages that can be loaded later (`PE_LAZY`). They are a process's private memory that is not backed by a file,
except stacks, locked pages and huge pages. With `--lazy-pages`, CRIU does not load pages that have this mark and are
not present in the image. The agent changes the page maps so that this holds for all memory that is loaded later. Memory
that two processes have at the same place is loaded at the start, because they have shared it since a fork. The same
holds for memory that a child does not inherit unchanged from its parent (madvise(2)). The formats are those of CRIU's
images/pagemap.proto and images/vma.proto.
"""

from __future__ import annotations  # the node may have Python 3.9

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .criu_messages import NotUnderstood, Value, field, fields, number_in
from .vdso import mappings, messages, with_messages

PAGE = 4096
_LAZY, _PRESENT = 1 << 1, 1 << 2
"""Flags of pages: they can be loaded later, and they are in the image."""
_REGULAR, _STACK, _ANON_PRIVATE = 1 << 0, 1 << 1, 1 << 9
"""Bits of a mapping's `status`."""
_GROWS_DOWN, _LOCKED, _HUGE = 0x100, 0x2000, 0x40000
"""Flags of a mapping (mmap(2))."""
_NOT_IN_CHILD = 1 << 10 | 1 << 18
"""Advice on a mapping: MADV_DONTFORK and MADV_WIPEONFORK."""
_END_OF_ADDRESSES = 1 << 57

Range = tuple[int, int]
Run = tuple[int, int, int]
"""Pages, with their address, length, and offset in the image of pages."""


class LazyPlan(NamedTuple):
    """The plan for restoring one process's memory."""

    process: int
    pages: str
    """The name of its image of pages."""
    pagemap: bytes
    """Its page map in the form that CRIU receives."""
    eager: list[Run]
    """The pages that CRIU receives, in order."""
    lazy: list[Run]
    """The pages that are loaded later."""


def find_plan(process: int, pagemap: bytes, own: bytes, others: bytes) -> LazyPlan:
    """Return the plan for a process, from the images of its page map and mappings, and of another process's mappings.

    Raises `NotUnderstood`, `ValueError` or `struct.error`.
    """
    areas: list[Range] = []  # CRIU describes the pages of adjacent mappings as one run
    for first, last in sorted({*_lazy_areas(own)} - {*_lazy_areas(others)}):
        areas.append((areas.pop()[0] if areas and areas[-1][1] == first else first, last))
    head, *runs = messages(pagemap)
    made, eager, lazy, at = [head], list[Run](), list[Run](), 0
    for run in runs:
        entry = dict(fields(run))
        flags, (start, length) = number_in(entry.get(4, _PRESENT)), _place(entry)
        is_marked, is_later = flags & _LAZY and flags & _PRESENT, False
        if is_marked:
            number = bisect_right(areas, (start, _END_OF_ADDRESSES)) - 1
            is_later = any(first <= start and start + length <= last for first, last in areas[number : number + 1])
            entry[4] = _LAZY if is_later else flags & ~_LAZY
        made.append(b"".join(field(*one) for one in entry.items()) if is_marked else run)
        if flags & _PRESENT:
            (lazy if is_later else eager).append((start, length, at))
            at += length
    pages = f"pages-{number_in(dict(fields(head)).get(1, 0))}.img"
    return LazyPlan(process, pages, with_messages(pagemap, made), eager, lazy)


def _lazy_areas(image: bytes) -> Iterator[Range]:
    """Yield the start and end of each mapping whose pages can be loaded later."""
    for mapping in mappings(image):
        start, end, flags, status, advice = (number_in(mapping.get(one, 0)) for one in (1, 2, 6, 7, 9))
        is_own = status & (_REGULAR | _STACK | _ANON_PRIVATE) == _REGULAR | _ANON_PRIVATE
        if is_own and not flags & (_GROWS_DOWN | _LOCKED | _HUGE) and not advice & _NOT_IN_CHILD:
            yield start, end


def _place(entry: Mapping[int, Value]) -> Range:
    return number_in(entry.get(1, 0)), PAGE * number_in(entry.get(5, entry.get(2, 0)))


def later_ranges(image: bytes) -> list[Range]:
    """Return the start and end of each range that is loaded later, from a page map in the form that CRIU receives.

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
