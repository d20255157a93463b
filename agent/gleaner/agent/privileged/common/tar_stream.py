"""Tar archives as streams: what all packers and unpackers share. Each checks by itself what may be in an archive."""

from __future__ import annotations  # the node may have Python 3.9

import tarfile
import zlib
from collections.abc import Iterable, Iterator

END = bytes(2 * tarfile.BLOCKSIZE)
"""The end of every archive."""
_SKIPPED_BYTES = 2**20
MALFORMED = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    LookupError,
    ArithmeticError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""The errors that Python raises for an archive, or JSON in it, that is malformed."""


def padding(size_bytes: int) -> bytes:
    """Return what fills up the last block of a member's content.

    >>> len(padding(500)), len(padding(512))
    (12, 0)
    """
    return bytes(-size_bytes % tarfile.BLOCKSIZE)


def header(member: tarfile.TarInfo) -> bytes:
    """Return a member's header, for any name that a file system can hold."""
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield each member in turn, in constant memory: a `TarFile` remembers every member of a large archive."""
    while (member := archive.next()) is not None:
        vars(archive)["members"] = []
        yield member


class Source:
    """A file of chunks that can only be read forward. It knows whether the archive's end has passed."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._tail = b""
        self._size_bytes = 0

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer only at the end."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            if not self._chunk:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._tail = (self._tail + chunk[-len(END) :])[-len(END) :]
                self._chunk = memoryview(chunk)
                self._size_bytes += len(chunk)
            parts.append(self._chunk[:missing])
            self._chunk = self._chunk[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def finish(self) -> None:
        """Read what is left. Raises `tarfile.ReadError` if the stream did not end as an archive does."""
        while self.read(_SKIPPED_BYTES):
            pass
        if self._tail != END or self._size_bytes % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the archive was cut off")
