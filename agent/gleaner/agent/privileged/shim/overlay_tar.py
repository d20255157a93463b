"""The files that a container has written to its own file system: overlay's upper layer as a tar stream, out and in.

The stream is the raw layer: a character device 0/0 marks a deleted file. Overlay also has an attribute for a folder
that was deleted and made anew. The attribute cannot be set through a mounted overlay, so it is spelled out: each of the
image's files that is gone from such a folder is marked as deleted.

A layer is put back through the mounted overlay, since the kernel does not allow changes below one. There a mark is no
file: what has its name is deleted.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, cast

from ..common import tar_stream
from ..common.untar import MOST_STEPS, Hostile, Limit, Links, unpack

_CHUNK_BYTES = 2**20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPAQUE = "trusted.overlay.opaque"


def pack(upper: str, image: Iterable[str], limit: Limit) -> Iterator[bytes]:
    """Yield the layer as an archive. `image` are the folders of the image's own layers, the uppermost first.

    The container's processes may do what they like meanwhile: no link is followed, and only folders and plain files
    are opened. Raises `Hostile` for what `put_back` would refuse: better now than when it is to be put back.
    """
    with contextlib.ExitStack() as opened:
        above, *below = [_kept(opened, os.open(path, _FOLDER)) for path in (upper, *image)]
        yield from _Packing(limit).folder("", above, below, is_new=False)
        yield tar_stream.END


def put_back(chunks: Iterable[bytes], root: str, limit: Limit, links: Links | None = None) -> None:
    """Put a layer into the mounted root of a container that has not begun.

    If `links` is given, symbolic links are added there instead. Raises `Hostile`, or what `tarfile` raises.
    """
    target = os.open(root, _FOLDER)
    try:
        source = tar_stream.Source(chunks)
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|") as archive:
            unpack(archive, target, limit, is_image=False, links=links)
        source.finish()
    finally:
        os.close(target)


class _Packing:
    """One archive; it remembers files that have several names."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._seen: dict[tuple[int, int], str] = {}

    def folder(self, path: str, above: int, below: list[int], *, is_new: bool) -> Iterator[bytes]:
        """Yield all in a folder of the layer.

        `below` are the folders of the same name in the image's layers. With `is_new`, the layer hides them.
        """
        names = sorted(os.listdir(above))
        for name in names:
            try:
                yield from self._one(f"{path}{name}", name, above, below, is_new=is_new)
            except FileNotFoundError:
                continue  # the container has removed it meanwhile
        if is_new:
            for name in sorted(_names(below) - set(names)):
                yield self._header(f"{path}{name}", tarfile.CHRTYPE)

    def _one(self, path: str, name: str, above: int, below: list[int], *, is_new: bool) -> Iterator[bytes]:
        facts = os.stat(name, dir_fd=above, follow_symlinks=False)
        if path.count("/") >= MOST_STEPS:
            raise Hostile(f"a file lies more than {MOST_STEPS} folders deep")
        if stat.S_ISDIR(facts.st_mode):
            with contextlib.ExitStack() as opened:
                inside = _kept(opened, _opened(name, above))
                under = _entered(name, below, opened)
                yield self._header(path, tarfile.DIRTYPE, facts)
                yield from self.folder(f"{path}/", inside, under, is_new=is_new or _is_opaque(inside))
        elif stat.S_ISREG(facts.st_mode):
            yield from self._file(path, name, above, facts)
        elif stat.S_ISLNK(facts.st_mode):
            yield self._header(path, tarfile.SYMTYPE, facts, link=os.readlink(name, dir_fd=above))
        elif stat.S_ISFIFO(facts.st_mode):
            yield self._header(path, tarfile.FIFOTYPE, facts)
        elif stat.S_ISCHR(facts.st_mode):
            yield self._header(path, tarfile.CHRTYPE)  # a job can make no other device than overlay's mark
        # Sockets are left out: CRIU makes those anew that are in use.

    def _file(self, path: str, name: str, above: int, facts: os.stat_result) -> Iterator[bytes]:
        earlier = self._seen.get((facts.st_dev, facts.st_ino))
        if earlier is not None:
            yield self._header(path, tarfile.LNKTYPE, facts, link=earlier)
            return
        if facts.st_nlink > 1:
            self._seen[facts.st_dev, facts.st_ino] = path
        file = os.open(name, _FILE, dir_fd=above)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise FileNotFoundError(errno.ENOENT, "it was replaced", name)
            yield self._header(path, tarfile.REGTYPE, facts, size=facts.st_size)
            left = facts.st_size
            while left:
                chunk = os.read(file, min(left, _CHUNK_BYTES)) or bytes(min(left, _CHUNK_BYTES))  # cut short meanwhile
                left -= len(chunk)
                yield chunk
            yield tar_stream.padding(facts.st_size)
        finally:
            os.close(file)

    def _header(
        self, path: str, kind: bytes, facts: os.stat_result | None = None, *, size: int = 0, link: str = ""
    ) -> bytes:
        self._limit.take_file()
        self._limit.take(size)
        member = tarfile.TarInfo(f"./{path}")
        member.type, member.size, member.mode = kind, size, 0
        member.linkname = f"./{link}" if kind == tarfile.LNKTYPE else link
        if facts is not None:
            member.mode, member.uid, member.gid = stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid
            member.mtime = facts.st_mtime
        return tar_stream.header(member)


def _opened(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except (NotADirectoryError, OSError) as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", name) from error
        raise


def _kept(opened: contextlib.ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _entered(name: str, folders: list[int], opened: contextlib.ExitStack) -> list[int]:
    """Return the folders of this name in an image's layers, down to the first layer that hides those below it."""
    found: list[int] = []
    for folder in folders:
        try:
            found.append(_kept(opened, os.open(name, _FOLDER, dir_fd=folder)))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                break
            raise
        if _is_opaque(found[-1]):
            break
    return found


def _names(folders: list[int]) -> set[str]:
    """Return the names that a folder of the image has, given as `_entered` returns it."""
    shown: set[str] = set()
    hidden: set[str] = set()
    for folder in folders:
        for name in set(os.listdir(folder)) - shown - hidden:
            is_mark = stat.S_ISCHR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
            (hidden if is_mark else shown).add(name)
    return shown


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False
