"""Unpack, as root, archives that nobody vouches for: an image's layers, and the files that a container has written.

This is safe for the following reasons. Every step down starts at the descriptor of the folder before it and follows no
link (O_NOFOLLOW), so nothing is ever written outside of the target, whatever an archive has put there before. Names
with `..`, absolute names, and names that lead through a link are refused. No devices or sockets are made. Extended
attributes are left out: a container of ours has no new privileges, so a program's capabilities would mean nothing.
Sizes and numbers of files are limited. Owners and modes are as the archive says, even set-uid: the target lies in a
folder that only root can enter.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
import tarfile
from typing import IO, Any

from ...system import openat
from . import tar_stream

_CHUNK_BYTES = 2**20
_MOST_FILES = 2_000_000
_MOST_LINKS = 200_000
_LONGEST_LINK = 4095
MOST_STEPS = 256
"""The most folders that a name may lead down."""
_MARK = ".wh."
_OPAQUE = ".wh..wh..opq"


class Hostile(Exception):
    """The archive holds something that is not unpacked; one line that names it."""


class Limit:
    """The limit of what may still be written, over all archives that share it."""

    def __init__(self, most_bytes: int, most_files: int = _MOST_FILES) -> None:
        self._bytes = most_bytes
        self._files = most_files
        self.taken_bytes = 0

    def take(self, count: int) -> None:
        """Count bytes. Raises `Hostile` beyond the limit."""
        self.taken_bytes += count
        if self.taken_bytes > self._bytes:
            raise Hostile("it is larger than this node may keep")

    def take_file(self) -> None:
        """Count a file. Raises `Hostile` beyond the limit."""
        self._files -= 1
        if self._files < 0:
            raise Hostile("it has more files than this node may keep")


def steps(name: str) -> list[str]:
    """Return a member's name as single steps below the target; none for the target itself. Raises `Hostile`.

    >>> steps("./usr/bin/"), steps(".")
    (['usr', 'bin'], [])
    """
    found = [step for step in name.split("/") if step not in ("", ".")]
    if name.startswith("/") or ".." in found or len(found) > MOST_STEPS or "\0" in name:
        raise Hostile(f"the name {name[:80]!r} leads out of the archive")
    return found


Links = list[list[Any]]
"""Symbolic links that were not made: name, target, uid and gid."""


def unpack(archive: tarfile.TarFile, target: int, limit: Limit, *, is_image: bool, links: Links | None = None) -> None:
    """Put an archive into the folder with the descriptor `target`, over what is there.

    In an image's layer, `.wh.` before a name deletes what an earlier layer has put there (image-spec, layer.md). In a
    container's written layer, overlay's own mark does so (the character device 0/0). If `links` is given, symbolic
    links are added to it and not made. Raises `Hostile`, or what `tarfile` raises.
    """
    new: set[tuple[str, ...]] = set()
    for member in tar_stream.members(archive):
        limit.take_file()
        path = steps(member.name)
        if not path:
            continue
        parent = _parent(target, path, member.name)
        try:
            if is_image and path[-1] == _OPAQUE:
                _empty(parent, tuple(path[:-1]), new)
            elif is_image and path[-1].startswith(_MARK):
                if steps(path[-1][len(_MARK) :]):
                    openat.remove_tree(parent, path[-1][len(_MARK) :])
            elif links is not None and member.issym():
                openat.remove_tree(parent, path[-1])
                if len(links) >= _MOST_LINKS or len(member.linkname) > _LONGEST_LINK:
                    raise Hostile("it has more links, or longer ones, than this node may keep")
                links.append(["/".join(path), member.linkname, member.uid, member.gid])
            else:
                if not is_image and member.islnk() and tuple(steps(member.linkname)) not in new:
                    raise Hostile(f"a link to {member.linkname[:80]!r}, which is not in it")  # overlay would copy it
                _put(archive, member, parent, path[-1], target=target, limit=limit)
                new.update(tuple(path[:end]) for end in range(1, len(path) + 1))
        finally:
            os.close(parent)


def _parent(target: int, path: list[str], name: str) -> int:
    """Return a descriptor of the folder of the last step. Folders that the archive does not name are made."""
    at = os.dup(target)
    try:
        for step in path[:-1]:
            try:
                below = os.open(step, openat.FOLDER, dir_fd=at)
            except FileNotFoundError:
                os.mkdir(step, 0o755, dir_fd=at)
                below = os.open(step, openat.FOLDER, dir_fd=at)
            os.close(at)
            at = below
    except OSError as error:
        os.close(at)
        raise Hostile(f"{name[:80]!r} leads through something that is no folder: {error.strerror}") from error
    return at


def _put(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    parent: int,
    name: str,
    *,
    target: int,
    limit: Limit,
) -> None:
    if member.isdir():
        _make_folder(parent, name)
        folder = os.open(name, openat.FOLDER, dir_fd=parent)
        try:
            _own(folder, member)
        finally:
            os.close(folder)
        return
    openat.remove_tree(parent, name)
    if member.isreg() and not member.issparse():
        _write(archive, member, parent, name, limit)
    elif member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    elif member.islnk():
        _link(target, member.linkname, parent, name)
    elif member.isfifo():
        os.mkfifo(name, stat.S_IMODE(member.mode), dir_fd=parent)
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    elif not (member.ischr() or member.isblk()):
        raise Hostile(f"{member.name[:80]!r} is of a kind that is not unpacked")
    # Devices are left out: the container has a /dev of its own, and reaches no others.


def _make_folder(parent: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str, limit: Limit) -> None:
    source: IO[bytes] | None = archive.extractfile(member)
    if source is None:
        raise Hostile(f"{member.name[:80]!r} has no content")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
        while True:
            chunk = source.read(_CHUNK_BYTES)
            if not chunk:
                break
            limit.take(len(chunk))
            file.write(chunk)
        file.flush()
        _own(file.fileno(), member)
        os.utime(file.fileno(), (member.mtime, member.mtime))  # Python's compiled files depend on it


def _own(descriptor: int, member: tarfile.TarInfo) -> None:
    os.fchown(descriptor, member.uid, member.gid)
    os.fchmod(descriptor, stat.S_IMODE(member.mode))


def _link(target: int, linkname: str, parent: int, name: str) -> None:
    """Make one more name for a file that is there already. A link to anything but a plain file is refused."""
    path = steps(linkname)
    if not path:
        raise Hostile(f"a link to {linkname[:80]!r}")
    other = _parent(target, path, linkname)
    try:
        if not stat.S_ISREG(os.stat(path[-1], dir_fd=other, follow_symlinks=False).st_mode):
            raise Hostile(f"a link to {linkname[:80]!r}, which is no plain file")
        os.link(path[-1], name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError as error:
        raise Hostile(f"a link to {linkname[:80]!r}, which is not there") from error
    finally:
        os.close(other)


def _empty(folder: int, path: tuple[str, ...], new: set[tuple[str, ...]]) -> None:
    """Delete what earlier layers have put into a folder; what this layer has put there stays."""
    for name in os.listdir(folder):
        inside = (*path, name)
        if inside not in new:
            openat.remove_tree(folder, name)
        elif stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            below = os.open(name, openat.FOLDER, dir_fd=folder)
            try:
                _empty(below, inside, new)
            finally:
                os.close(below)
