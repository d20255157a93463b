"""Define the rules for the members and the size of a tar archive from an untrusted source.

Each use has its own policy.
"""

from __future__ import annotations  # the node may have Python 3.9

import tarfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

END = bytes(2 * tarfile.BLOCKSIZE)
"""The end of every archive."""
MOST_STEPS = 256
"""The maximum number of folders through which a name can lead, where that is limited."""
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
"""The errors that Python raises for a malformed archive, or malformed JSON in it."""
LONGEST_HEADER_BYTES = 2**14
"""The longest header that is read. Python before 3.11.10 takes minutes for one of a megabyte (CVE-2024-6232)."""
_LONG_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_MOST_FILES = 2_000_000

Links = list[list[Any]]
"""Symbolic links that were not made: name, target, uid and gid."""


class Hostile(Exception):
    """An archive contains something that must not be unpacked, or a folder contains something that must not be packed.

    The message is one line.
    """


class SizeLimit:
    """A limit on size and on the number of files, which several archives can share."""

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
        """Count a file, and this many bytes. Raises `Hostile` beyond the limit."""
        self._files -= 1
        if self._files < 0:
            raise Hostile("it has more files than may be kept here")
        self.take(size_bytes)


class Policy(NamedTuple):
    """The rules for one use of archives.

    Regular files, folders, symbolic and hard links, and named pipes are allowed.
    """

    limit: SizeLimit
    has_owners: bool = False
    """Each file is given the owner that the archive names.

    This is only for programs that run as root, below a folder that only root can enter.
    """
    has_holes: bool = False
    """Holes in files become holes in the archive. The size that a file can claim through holes is not limited."""
    is_overlaid: bool = False
    """The archive is laid over existing files.

    A member replaces the file of its name, a device deletes it, and missing folders are made. Otherwise all members
    must be new, and devices are not allowed.
    """
    has_whiteouts: bool = False
    """`.wh.` before a name deletes the file that an earlier archive has put there (image-spec, layer.md)."""
    file_bytes: int = 0
    """The number of bytes that each file counts in addition to its content."""
    has_own_links: bool = False
    """Hard links can lead only to files of the same archive, as overlay would copy any other file uncounted."""
    links: Links | None = None
    """A list to which symbolic links are appended instead of being made."""
    keeps: Callable[[Sequence[str]], bool] | None = None
    """The selection of files, by the names that lead to them. Folders without a selected file are not packed.

    A hard link to a file that was not selected goes into `links`.
    """
    is_live: bool = False
    """Others can change the folder while it is packed.

    Files that they remove are left out, and files that they truncate are filled with zeros.
    """
    modes: int = 0o7777
    """The bits of a file's mode that are packed."""
    top: str = ""
    """The name of the packed folder itself, if the archive is to depend only on names and contents.

    It then has no times, its modes only record who can execute a file, and no link can lead out.
    """


class ShortMember(tarfile.TarInfo):
    """A member of an archive whose header, which `tarfile` reads into memory, is at most `LONGEST_HEADER_BYTES`."""

    __slots__ = ()

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> ShortMember:
        """Return the member that a block describes. Raises `Hostile`, or the errors of `tarfile`."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _LONG_HEADERS and member.size > LONGEST_HEADER_BYTES:
            raise Hostile(f"it has a header of {member.size} bytes")
        return member


def steps(name: str, most: float = MOST_STEPS) -> list[str]:
    """Return a member's name as single steps below the target, or no steps for the target itself. Raises `Hostile`.

    An absolute name is considered relative to the target, as Docker and tar read it.

    >>> steps("./usr/bin/"), steps("/usr"), steps(".")
    (['usr', 'bin'], ['usr'], [])
    """
    names = [step for step in name.split("/") if step not in ("", ".")]
    if ".." in names or len(names) > most or "\0" in name:
        raise Hostile(f"the name {name[:80]!r} leads out of the archive")
    return names
