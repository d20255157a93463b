"""Define the blocks of a part: where they are cut, and how they are listed. The module does no I/O.

A part is cut into blocks at page boundaries that depend on its content. So memory that has moved by some pages since
the previous checkpoint is cut in the same places, and most of its blocks are already known. A block is identified by
the SHA-256 of its plain content. It is stored as a zstd frame or raw, or not at all if it is all zeros.

    PACK = stored blocks, one after the other; INDEX; FOOTER
    INDEX = the sizes of the packs that are used; one record for each block of each part, parts in the manifest's order

A part's digest is made only from its blocks' digests, so the manifest fixes these digests and nothing else. The place
and the form of a stored block need not be trusted, since every block is checked against its digest when it is read.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

PAGE_BYTES = 4096
LEAST_BYTES = 64 * 2**10
MOST_BYTES = 512 * 2**10
"""The sizes of the smallest block (except blocks beside zeros, and a part's last one) and of the largest."""
PACKS = 9
"""The maximum number of packs that an archive can use, which are its own pack, with number 0, and inherited ones."""

_ONE_IN = 61
"""A page begins a block if its first 8 bytes, divided by this number, leave `_REMAINDER`. If they are random, that is
one page in this many."""
_REMAINDER = 1
"""The remainder for a page that begins a block. With 0, every page that begins with zeros would be a boundary."""
_ZERO_PAGES = 16
"""A run of this many pages of zeros has its own blocks, for which nothing is stored."""
_ZERO_PAGE = bytes(PAGE_BYTES)
_HEAD = struct.Struct(f"<{PACKS}Q")
_RECORD = struct.Struct("<32sQIIH")
_FOOTER = struct.Struct("<8sQ32s")
_MAGIC = b"GLNPACK2"
DIGEST_BYTES = 32
FOOTER_BYTES = _FOOTER.size


class Damaged(Exception):
    """Stored bytes differ from what was written."""


class Block(NamedTuple):
    """One block. `stored_bytes` is 0 for zeros, the size for a raw block, and less for a zstd frame."""

    digest: bytes
    offset: int
    stored_bytes: int
    size_bytes: int
    pack: int


def cuts(content: memoryview, *, last: bool) -> list[int]:
    """Return the ends of the blocks in content that starts at the beginning of a block.

    Without `last`, the remainder at the end is not cut, because it must be cut together with the content that follows.

    >>> cuts(memoryview(bytes(2**20 + 5000)), last=False)
    [524288, 1048576]
    >>> cuts(memoryview(bytes(2**20 + 5000)), last=True)
    [524288, 1048576, 1053576]
    """
    whole_bytes = len(content) // PAGE_BYTES * PAGE_BYTES
    firsts = content[:whole_bytes].cast("Q")[:: PAGE_BYTES // 8].tolist()
    ends: list[int] = []
    start = 0
    zeros_from: int | None = None

    def cut(page: int, least_bytes: int = PAGE_BYTES) -> None:
        nonlocal start
        mark = page * PAGE_BYTES
        while mark - start > MOST_BYTES:
            start += MOST_BYTES
            ends.append(start)
        if mark - start >= least_bytes:
            start = mark
            ends.append(start)

    for page, first in enumerate(firsts):
        if not first and content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES].tobytes() == _ZERO_PAGE:
            zeros_from = page if zeros_from is None else zeros_from
            continue
        if zeros_from is not None:
            if page - zeros_from >= _ZERO_PAGES:
                cut(zeros_from)
                cut(page)
            zeros_from = None
        if first % _ONE_IN == _REMAINDER:
            cut(page, LEAST_BYTES)
    final_bytes = whole_bytes
    if zeros_from is not None:
        if len(firsts) - zeros_from >= _ZERO_PAGES:
            cut(zeros_from)
            if last and any(content[whole_bytes:]):  # less than a page follows the zeros
                cut(len(firsts))
        elif not last:  # how many zeros follow decides whether a block ends here
            final_bytes = zeros_from * PAGE_BYTES
    while final_bytes - start >= MOST_BYTES:
        start += MOST_BYTES
        ends.append(start)
    if last and start < len(content):
        ends.append(len(content))
    return ends


@lru_cache(maxsize=4)
def zeros(size_bytes: int) -> bytes:
    """Return this many zeros.

    They are cached, because most zero blocks have the same size, and new memory for each would cost more.
    """
    return bytes(size_bytes)


@lru_cache(maxsize=256)
def digest_of_zeros(size_bytes: int) -> bytes:
    """Return the SHA-256 of this many zeros."""
    return hashlib.sha256(bytes(size_bytes)).digest()


class Blocks(Sequence[Block]):
    """A list of blocks in the same compact form as in storage, with 50 bytes each."""

    def __init__(self, records: bytes | bytearray | memoryview = b"") -> None:
        self.records = bytearray(records)

    def __len__(self) -> int:
        return len(self.records) // _RECORD.size

    def __getitem__(self, number: int) -> Block:  # type: ignore[override]  # no slices
        return Block(*_RECORD.unpack_from(self.records, number * _RECORD.size))

    def __iter__(self) -> Iterator[Block]:
        return map(Block._make, _RECORD.iter_unpack(self.records))

    def rows(self) -> Iterator[tuple[bytes, int, int, int, int]]:
        """Yield the fields of each block, which takes a fifth of the time that making the blocks would take."""
        return _RECORD.iter_unpack(self.records)

    def digest(self, number: int) -> bytes:
        start = number * _RECORD.size
        return bytes(self.records[start : start + DIGEST_BYTES])

    def append(self, block: Block) -> None:
        self.records += _RECORD.pack(*block)

    def replace(self, number: int, block: Block) -> None:
        _RECORD.pack_into(self.records, number * _RECORD.size, *block)


def part_digest(blocks: Blocks) -> str:
    """Return `sha256:` and the SHA-256 of a part's size (8 bytes, little endian) and its blocks' digests, in order."""
    digest = hashlib.sha256(sum(size_bytes for _, _, _, size_bytes, _ in blocks.rows()).to_bytes(8, "little"))
    for of_block, _, _, _, _ in blocks.rows():
        digest.update(of_block)
    return f"sha256:{digest.hexdigest()}"


def index_of(pack_sizes: Sequence[int], parts: Iterable[Blocks]) -> tuple[bytes, bytes]:
    """Return the two last pieces of a pack, which are the index and the footer that leads to the index.

    Pack 0 is this pack.
    """
    index = _HEAD.pack(*pack_sizes) + b"".join(part.records for part in parts)
    return index, _FOOTER.pack(_MAGIC, len(index), hashlib.sha256(index).digest())


def index_bytes(blocks: int) -> int:
    """Return the size of an index of this many blocks."""
    return _HEAD.size + blocks * _RECORD.size


def parse_index(index: bytes, footer: bytes, counts: Sequence[int]) -> tuple[Sequence[int], list[Blocks]]:
    """Return the sizes of the packs, and the blocks of each part. `counts` contains each part's number of blocks.
    Raises `Damaged`."""
    if len(index) != index_bytes(sum(counts)):
        raise Damaged("the index has another size than the manifest says")
    if footer != _FOOTER.pack(_MAGIC, len(index), hashlib.sha256(index).digest()):
        raise Damaged("the index is not what was written")
    records = memoryview(index)[_HEAD.size :]
    parts: list[Blocks] = []
    for count in counts:
        parts.append(Blocks(records[: count * _RECORD.size]))
        records = records[count * _RECORD.size :]
    return _HEAD.unpack_from(index), parts
