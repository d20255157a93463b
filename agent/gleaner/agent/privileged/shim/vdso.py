"""Check the only part of a process's own memory that CRIU trusts, which is the table of its vDSO.

A vDSO contains functions of the kernel. CRIU reads from its table where each function is in the restored memory. If the
node has a different kernel now, CRIU writes a jump there. It does so as root, at any address that the table contains
(criu/pie/util-vdso.c, criu/arch/x86/vdso-pie.c). A process can direct CRIU to a table that the process itself has made.
So these pages are checked before CRIU receives them. All addresses in such a table must be within the same pages. The
formats are those of CRIU's images/mm.proto, images/pagemap.proto and criu/include/image.h, and the tables are ELF's.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .criu_messages import NotUnderstood, Value, fields, number_in

_READ_BY_CRIU = re.compile(r"(?:mm|pagemap)-[0-9]{1,10}\.img\Z")
PAGEMAP = re.compile(r"pagemap-([0-9]{1,10})\.img\Z")
_PAGE = 4096
_MOST_BYTES = 2**20
"""The largest size of a vDSO. A real one has a few pages."""
_LONGEST_JUMP = 16
_REGULAR, _VDSO, _ANON_PRIVATE = 1 << 0, 1 << 3, 1 << 9
"""Bits of a mapping's `status`."""
_IS_PRESENT = 1 << 2
"""A bit in the flags of pages, which means that they are in the image."""
_HEAD = struct.Struct("<I")
MAGIC_BYTES = 8
_PT_LOAD, _PT_DYNAMIC = 1, 2
_STRTAB, _SYMTAB, _STRSZ = 5, 6, 10
_FUNCTION, _GLOBAL = 2, 1
_NAMES = (b"__vdso_", b"__kernel_")
"""The prefixes of the names of the functions that CRIU searches for."""


class Forged(Exception):
    """One of our processes cannot have been in the saved state. The message is one line."""


class VdsoPart(NamedTuple):
    """A byte range, in an image of pages, that must be checked."""

    start: int
    length: int
    process: str
    """The number of the process, for messages."""


class VdsoLayout(NamedTuple):
    """The positions of fields in the header of an ELF file of one class, and the format of its tables."""

    identity: bytes
    header: struct.Struct
    segment: struct.Struct
    kind_offset_address_size: tuple[int, int, int, int]
    entry: struct.Struct
    symbol: struct.Struct
    name_value_info: tuple[int, int, int]


_LAYOUTS = {
    2: VdsoLayout(
        b"\x7fELF\x02\x01\x01" + bytes(9),
        struct.Struct("<16xHHIQQQIHHHHHH"),
        struct.Struct("<IIQQQQQQ"),
        (0, 2, 3, 5),
        struct.Struct("<QQ"),
        struct.Struct("<IBBHQQ"),
        (0, 4, 1),
    ),
    1: VdsoLayout(
        b"\x7fELF\x01\x01\x01" + bytes(9),
        struct.Struct("<16xHHIIIIIHHHHHH"),
        struct.Struct("<IIIIIIII"),
        (0, 1, 2, 4),
        struct.Struct("<II"),
        struct.Struct("<IIIBBH"),
        (0, 1, 3),
    ),
}


def flaw(area: bytes) -> str | None:
    """Return what is wrong with a vDSO, in a few words, or None if all its addresses are within itself.

    >>> flaw(bytes(8192)), flaw(b"")
    ('it is no ELF file', 'it is no ELF file')
    """
    layout = _LAYOUTS.get(area[4] if len(area) > 64 else 0)
    if layout is None or not area.startswith(layout.identity):
        return "it is no ELF file"
    try:
        return _flaw(area, layout)
    except (struct.error, OverflowError):  # out of the range of an offset
        return "a table of its own is not within it"


def _flaw(area: bytes, layout: VdsoLayout) -> str | None:
    header = layout.header.unpack_from(area)
    segments_at, segments = header[4], header[9]
    kind, offset, address, size = layout.kind_offset_address_size
    segment_headers = [layout.segment.unpack_from(area, segments_at + layout.segment.size * n) for n in range(segments)]
    loads = [segment for segment in segment_headers if segment[kind] == _PT_LOAD]
    dynamics = [segment for segment in segment_headers if segment[kind] == _PT_DYNAMIC]
    if len(loads) != 1 or len(dynamics) != 1:
        return "it has not one segment and one table of what is in it"
    base = loads[0][address]
    entries: dict[int, int] = {}
    for number in range(dynamics[0][size] // layout.entry.size):
        tag, value = layout.entry.unpack_from(area, dynamics[0][offset] + layout.entry.size * number)
        if tag == 0:
            break
        if tag in (_STRTAB, _SYMTAB, _STRSZ) and tag in entries:
            return "it says twice where its names are"
        entries[tag] = value
    if not {_STRTAB, _SYMTAB} <= set(entries):
        return "it does not say where its names are"
    return _beyond(area, layout, names_at=entries[_STRTAB] - base, symbols_at=entries[_SYMTAB] - base, base=base)


def _beyond(area: bytes, layout: VdsoLayout, *, names_at: int, symbols_at: int, base: int) -> str | None:
    """Return what is wrong with any entry that a reader could find in the table, or None if nothing is wrong.

    The number of entries is not trusted either, because it also comes from the process.
    """
    if not (0 <= names_at < len(area) and 0 <= symbols_at < len(area)):
        return "its names are not within it"
    name, value, info = layout.name_value_info
    for at in range(symbols_at, len(area) - layout.symbol.size + 1, layout.symbol.size):
        symbol = layout.symbol.unpack_from(area, at)
        if symbol[info] & 0xF != _FUNCTION and symbol[info] >> 4 != _GLOBAL:
            continue
        name_at = names_at + symbol[name]
        if area.startswith(_NAMES, name_at) and not 0 <= symbol[value] - base <= len(area) - _LONGEST_JUMP:
            function = area[name_at : name_at + 30].split(b"\0")[0].decode("ascii", "replace")
            return f"{function!r} is said to be outside of it"
    return None


class Guard:
    """The images of one restore, as far as they have been read. Each method can be called by another thread."""

    def __init__(self) -> None:
        self._images: dict[str, bytes] = {}

    @staticmethod
    def reads(name: str) -> bool:
        """Return True for an image that must be noted."""
        return _READ_BY_CRIU.match(name) is not None

    def note(self, name: str, content: bytes) -> None:
        """Note a whole image before CRIU receives its first byte. Raises `Forged` if the image was different before."""
        if self._images.setdefault(name, content) != content:
            raise Forged(f"{name} is not the same when it is read again")

    def parts(self, pages: str) -> list[VdsoPart]:
        """Return the parts of an image of pages that must be checked, in order. Raises `Forged`.

        Call this when CRIU asks for the pages, because the images that describe them have already been noted. CRIU
        restores several processes at the same time, so the images of other processes might not have arrived yet.
        """
        parts: list[VdsoPart] = []
        for name, content in list(self._images.items()):
            match = PAGEMAP.match(name)
            if match is None:
                continue
            process = match.group(1)
            try:
                runs = messages(content)
                head = next(runs, None)
                if head is None:
                    raise ValueError("it is empty")
                if f"pages-{_number(dict(fields(head)), 1)}.img" == pages:
                    areas = _vdso_areas(self._images.get(f"mm-{process}.img", b""), process)
                    parts += _places(runs, areas, process)
            except (NotUnderstood, ValueError, struct.error) as error:
                raise Forged(f"what is said of the memory of process {process} cannot be read: {error}") from error
        return sorted(parts)


def messages(image: bytes) -> Iterator[bytes]:
    """Yield the messages in an image. Raises `struct.error` or `ValueError` if one is cut off."""
    at = MAGIC_BYTES
    while at < len(image):
        (length,) = _HEAD.unpack_from(image, at)
        at += _HEAD.size + length
        if at > len(image):
            raise ValueError("it is cut off")
        yield image[at - length : at]


def with_messages(image: bytes, contents: Iterable[bytes]) -> bytes:
    """Return an image of the same kind that has these messages."""
    return image[:MAGIC_BYTES] + b"".join(_HEAD.pack(len(content)) + content for content in contents)


def mappings(mm: bytes) -> Iterator[dict[int, Value]]:
    """Yield the fields of each mapping in an image of mappings. Raises the errors of `messages`, or `NotUnderstood`."""
    for message in messages(mm):
        for number, value in fields(message):
            if number == 14 and isinstance(value, bytes):
                yield dict(fields(value))


def _vdso_areas(mm: bytes, process: str) -> list[tuple[int, int]]:
    """Return the start and end of each area that CRIU considers a vDSO of the process. Raises `Forged`."""
    found: list[tuple[int, int]] = []
    for mapping in mappings(mm):
        start, end, status = (_number(mapping, one) for one in (1, 2, 7))
        if not status & _VDSO:
            continue
        is_its_own = status & (_REGULAR | _ANON_PRIVATE) == _REGULAR | _ANON_PRIVATE
        if not is_its_own or not 0 < end - start <= _MOST_BYTES or start % _PAGE or end % _PAGE:
            raise Forged(f"process {process} has a vDSO that is no memory of its own")
        found.append((start, end))
    return found


def _places(runs: Iterable[bytes], areas: list[tuple[int, int]], process: str) -> list[VdsoPart]:
    """Return the positions of the vDSO areas in the image of pages. Raises `Forged` if one is incomplete."""
    found: dict[tuple[int, int], dict[int, int]] = {area: {} for area in areas}
    at = 0
    for run in runs if areas else ():
        said = dict(fields(run))
        first, flags = _number(said, 1), _number(said, 4)
        length = _PAGE * (_number(said, 5) or _number(said, 2))
        if 4 in said and not flags & _IS_PRESENT:
            continue
        for start, end in areas:
            for page in range(max(start, first), min(end, first + length), _PAGE):
                found[start, end].setdefault(page, at + page - first)
        at += length
    parts: list[VdsoPart] = []
    for (start, end), pages in found.items():
        at = pages.get(start, 0)
        if pages != {page: at + page - start for page in range(start, end, _PAGE)}:
            raise Forged(f"process {process} has a vDSO that is not in its pages")
        parts.append(VdsoPart(at, end - start, process))
    return parts


def _number(message: dict[int, Value], number: int) -> int:
    return number_in(message.get(number, 0))
