"""The files that a container has written to its own file system: overlay's upper layer as a tar stream, out and in.

The stream is the raw layer: a character device 0/0 marks a deleted file. Overlay also has an attribute for a folder
that was deleted and made anew. Docker Engine's archives lack it, so it is spelled out: each of the image's files that
is gone from such a folder is marked as deleted. So each runtime can put back a layer that the other has saved.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
import stat
import tarfile
from collections.abc import Iterator

from ..common import tar_stream
from .untar import MOST_STEPS, Hostile, Limit, Links, unpack

_CHUNK_BYTES = 2**20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPAQUE = "trusted.overlay.opaque"


def is_empty(upper: str) -> bool:
    """Return True if nothing was written."""
    return not os.listdir(upper)


def pack(upper: str, image: str) -> Iterator[bytes]:
    """Yield the layer as an archive.

    The container's processes may do what they like meanwhile: no link is followed, and only folders and plain files
    are opened.
    """
    above = os.open(upper, _FOLDER)
    below = os.open(image, _FOLDER)
    try:
        yield from _Packing().folder("", above, below, is_new=False)
        yield tar_stream.END
    finally:
        os.close(above)
        os.close(below)


def put_back(descriptor: int, upper: str, limit: Limit, links: Links | None = None) -> None:
    """Put a layer into that of a container that has not begun. If `links` is given, add symbolic links there instead.

    Raises `Hostile`, or what `tarfile` raises.
    """
    target = os.open(upper, _FOLDER)
    try:
        source = os.fdopen(descriptor, "rb", closefd=False)
        with source, tarfile.open(fileobj=source, mode="r|", bufsize=2**16) as archive:
            unpack(archive, target, limit, is_image=False, links=links)
    finally:
        os.close(target)


class _Packing:
    """One archive; it remembers files that have several names."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], str] = {}

    def folder(self, path: str, above: int, below: int | None, *, is_new: bool) -> Iterator[bytes]:
        """Yield all in a folder of the layer.

        `below` is the image's folder of the same name, if there is one. With `is_new`, the layer hides that folder.
        """
        names = sorted(os.listdir(above))
        for name in names:
            try:
                yield from self._one(f"{path}{name}", name, above, below, is_new=is_new)
            except FileNotFoundError:
                continue  # the container has removed it meanwhile
        if is_new and below is not None:
            for name in sorted(set(os.listdir(below)) - set(names)):
                yield _header(f"{path}{name}", tarfile.CHRTYPE)

    def _one(self, path: str, name: str, above: int, below: int | None, *, is_new: bool) -> Iterator[bytes]:
        facts = os.stat(name, dir_fd=above, follow_symlinks=False)
        if path.count("/") >= MOST_STEPS:
            raise Hostile(f"a file lies more than {MOST_STEPS} folders deep")
        if stat.S_ISDIR(facts.st_mode):
            inside = _opened(name, above)
            under = None if below is None else _opened_or_none(name, below)
            try:
                yield _header(path, tarfile.DIRTYPE, facts)
                yield from self.folder(f"{path}/", inside, under, is_new=is_new or _is_opaque(inside))
            finally:
                os.close(inside)
                if under is not None:
                    os.close(under)
        elif stat.S_ISREG(facts.st_mode):
            yield from self._file(path, name, above, facts)
        elif stat.S_ISLNK(facts.st_mode):
            yield _header(path, tarfile.SYMTYPE, facts, link=os.readlink(name, dir_fd=above))
        elif stat.S_ISFIFO(facts.st_mode):
            yield _header(path, tarfile.FIFOTYPE, facts)
        elif stat.S_ISCHR(facts.st_mode):
            yield _header(path, tarfile.CHRTYPE)  # a job can make no other device than overlay's mark
        # Sockets are left out: CRIU makes those anew that are in use.

    def _file(self, path: str, name: str, above: int, facts: os.stat_result) -> Iterator[bytes]:
        earlier = self._seen.get((facts.st_dev, facts.st_ino))
        if earlier is not None:
            yield _header(path, tarfile.LNKTYPE, facts, link=earlier)
            return
        if facts.st_nlink > 1:
            self._seen[facts.st_dev, facts.st_ino] = path
        file = os.open(name, _FILE, dir_fd=above)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise FileNotFoundError(errno.ENOENT, "it was replaced", name)
            yield _header(path, tarfile.REGTYPE, facts, size=facts.st_size)
            left = facts.st_size
            while left:
                chunk = os.read(file, min(left, _CHUNK_BYTES)) or bytes(min(left, _CHUNK_BYTES))  # cut short meanwhile
                left -= len(chunk)
                yield chunk
            yield tar_stream.padding(facts.st_size)
        finally:
            os.close(file)


def _opened(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except (NotADirectoryError, OSError) as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", name) from error
        raise


def _opened_or_none(name: str, folder: int) -> int | None:
    try:
        return _opened(name, folder)
    except FileNotFoundError:
        return None


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False


def _header(path: str, kind: bytes, facts: os.stat_result | None = None, *, size: int = 0, link: str = "") -> bytes:
    member = tarfile.TarInfo(f"./{path}")
    member.type, member.size, member.mode = kind, size, 0
    member.linkname = f"./{link}" if kind == tarfile.LNKTYPE else link
    if facts is not None:
        member.mode, member.uid, member.gid = stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid
        member.mtime = facts.st_mtime
    return tar_stream.header(member)
