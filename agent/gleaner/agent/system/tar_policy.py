"""The rules for a tar archive from an untrusted source: its members, and their size. Each use has its own policy."""

from __future__ import annotations  # the node may have Python 3.9

import tarfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

END = bytes(2 * tarfile.BLOCKSIZE)
"""The end of every archive."""
MOST_STEPS = 256
"""The most folders that a name may lead down, where that is limited."""
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
LONGEST_HEADER_BYTES = 2**14
"""The longest header that root reads: Python before 3.11.10 works minutes on one of a megabyte (CVE-2024-6232)."""
_LONG_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_MOST_FILES = 2_000_000

Links = list[list[Any]]
"""Symbolic links that were not made: name, target, uid and gid."""


class Hostile(Exception):
    """An archive has something that is not unpacked, or a folder something that is not packed; one line."""


class SizeLimit:
    """The limit for all archives that share it."""

    def __init__(self, most_bytes: float, most_files: float = _MOST_FILES, most_steps: float = MOST_STEPS) -> None:
        self._bytes = most_bytes
        self._files = most_files
        self.most_steps = most_steps
        self.passed_bytes = 0

    def take(self, count: int) -> None:
        """Count bytes. Raises `Hostile` beyond the limit."""
        self.passed_bytes += count
        if self.passed_bytes > self._bytes:
            raise Hostile("it is larger than may be kept here")

    def take_file(self, size_bytes: int = 0) -> None:
        """Count a file, and so many bytes. Raises `Hostile` beyond the limit."""
        self._files -= 1
        if self._files < 0:
            raise Hostile("it has more files than may be kept here")
        self.take(size_bytes)


class Policy(NamedTuple):
    """The rules for one use of archives. Regular files, folders, symbolic and hard links, and named pipes may pass."""

    limit: SizeLimit
    has_owners: bool = False
    """Each file has the owner that the archive names. Only for root, below a folder that only root can enter."""
    has_holes: bool = False
    """Holes in files are holes in the archive. What they let a file claim is not limited."""
    is_overlaid: bool = False
    """The archive lies over what is there: a member replaces what has its name, a device deletes it, and missing
    folders are made. Otherwise all must be new, and no device may pass."""
    has_whiteouts: bool = False
    """`.wh.` before a name deletes what an earlier archive has put there (image-spec, layer.md)."""
    file_bytes: int = 0
    """So much counts for each file beside its content."""
    has_own_links: bool = False
    """Hard links lead to files of the same archive only: overlay would copy any other, which no limit counts."""
    links: Links | None = None
    """A list that symbolic links are added to; they are not made then."""
    keeps: Callable[[Sequence[str]], bool] | None = None
    """The choice of the files, by the names that lead to them. Folders without one are not packed. A hard link to a
    file that was not chosen goes into `links`."""
    is_live: bool = False
    """Others may change the folder while it is packed: what they remove is left out, what they cut is filled up."""
    modes: int = 0o7777
    """The bits of a file's mode that are packed."""
    top: str = ""
    """The name of the packed folder itself, if the archive depends on names and contents alone: it has no times, modes
    only say who may execute, and no link may lead out."""


class ShortMember(tarfile.TarInfo):
    """A member of an archive whose header is at most `LONGEST_HEADER_BYTES` long: `tarfile` reads it into memory."""

    __slots__ = ()

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> ShortMember:
        """Return the member that a block describes. Raises `Hostile`, or what `tarfile` raises."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _LONG_HEADERS and member.size > LONGEST_HEADER_BYTES:
            raise Hostile(f"it has a header of {member.size} bytes")
        return member


def steps(name: str, most: float = MOST_STEPS) -> list[str]:
    """Return a member's name as single steps below the target; none for the target itself. Raises `Hostile`.

    An absolute name is one below the target, as Docker and tar read it.

    >>> steps("./usr/bin/"), steps("/usr"), steps(".")
    (['usr', 'bin'], ['usr'], [])
    """
    names = [step for step in name.split("/") if step not in ("", ".")]
    if ".." in names or len(names) > most or "\0" in name:
        raise Hostile(f"the name {name[:80]!r} leads out of the archive")
    return names
