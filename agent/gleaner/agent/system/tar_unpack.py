"""Unpack archives from untrusted sources: a job's folder, an image's layers, and files that a container has written.

This is safe for the following reasons. Every step down starts at the descriptor of the folder above and follows no link
(O_NOFOLLOW), so nothing is ever written outside the target, whatever the archive has made there before. Names with `..`
and names that lead through a link are refused, and absolute names are considered relative to the target. Each file is
newly made, and no device or socket is made. Extended attributes are left out. Our containers have no new privileges, so
a program's capabilities would have no effect. Sizes and numbers of files are limited. Modes are set as in the archive,
even set-uid. Where owners are also set, the target is in a folder that only root can enter.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

from . import openat
from .tar_policy import END, Hostile, Policy, ShortMember, steps

_LONGEST_TIME = 40
"""The maximum number of characters in a time. Python before 3.11 takes minutes for a number of a million digits."""
_MOST_LINKS = 200_000
_LONGEST_LINK = 4095
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"

Names = tuple[str, ...]


class TarSource:
    """A file made of chunks, which can only be read forward. It records whether the archive's end has been read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._tail = b""
        self.size_bytes = 0

    def read(self, size: int) -> bytes:
        """Return this many bytes, or fewer at the end."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            if not self._chunk:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._tail = (self._tail + chunk[-len(END) :])[-len(END) :]
                self._chunk = memoryview(chunk)
                self.size_bytes += len(chunk)
            parts.append(self._chunk[:missing])
            self._chunk = self._chunk[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def skip(self) -> None:
        """Read the rest, because a source might verify its data at the end."""
        while self.read(openat.CHUNK_BYTES):
            pass

    def finish(self) -> None:
        """Read the rest. Raises `tarfile.ReadError` if the stream did not end like an archive."""
        self.skip()
        if self._tail != END or self.size_bytes % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the archive was cut off")


def unpack(source: TarSource, target: int, policy: Policy) -> None:
    """Unpack an archive into the folder with the descriptor `target`. Raises `Hostile`, or one of `MALFORMED`.

    Bytes after the archive's end are not read, so call `finish` or `skip` on the source.
    """
    unpack_all([source], target, policy)


def unpack_all(sources: Iterable[TarSource], target: int, policy: Policy) -> None:
    """Unpack archives, each over the previous ones, in the same way as `unpack`.

    The modes of folders are set after the last archive, so that a folder that is read-only in the end can receive files
    of a later archive.
    """
    unpacking = _Unpacking(target, policy)
    for source in sources:
        unpacking.begin()
        for archive, member in _members(source):
            unpacking.put(archive, member)
    unpacking.settle_folders()


def check(source: TarSource, policy: Policy) -> None:
    """Read a whole archive. Raises the errors that `unpack` would raise for the name, kind or size of a member."""
    for _, member in _members(source):
        segments: Sequence[tuple[int, int]] = getattr(member, "sparse", None) or [(0, member.size)]
        policy.limit.take_file(policy.file_bytes + (sum(size for _, size in segments) if member.isreg() else 0))
        for name in (member.name, member.linkname if member.islnk() else ""):
            steps(name, policy.limit.most_steps)
        _check_kind(member, policy)
        _mtime_ns(member)
    source.skip()


def _members(source: TarSource) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    stream = cast("IO[bytes]", source)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=openat.CHUNK_BYTES, tarinfo=ShortMember) as archive:
        while (member := archive.next()) is not None:
            vars(archive)["members"] = []  # a `TarFile` would remember every member of a large archive
            yield archive, member


def _check_kind(member: tarfile.TarInfo, policy: Policy) -> None:
    is_device = member.ischr() or member.isblk()
    is_sparse = member.issparse() and not policy.has_holes
    is_known = member.isreg() or member.isdir() or member.issym() or member.islnk() or member.isfifo()
    if is_sparse or not (is_known or (is_device and policy.is_overlaid)):
        raise Hostile(f"{member.name[:80]!r} is of a kind that is not unpacked")


class _Facts(NamedTuple):
    """Attributes of a file that are set last, because writing changes them."""

    mode: int
    mtime_ns: int
    uid: int
    gid: int


class _Unpacking:
    """The archives that are being unpacked into a folder."""

    def __init__(self, target: int, policy: Policy) -> None:
        self._target = target
        self._policy = policy
        self._folders: dict[Names, _Facts] = {}
        self._new: set[Names] = set()

    def begin(self) -> None:
        """Begin another archive, of which no file exists yet."""
        self._new.clear()

    def put(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._policy.limit.take_file(self._policy.file_bytes)
        path = self._steps(member.name)
        if not path:
            if not member.isdir():
                raise Hostile("its top is no folder")
            if not self._policy.is_overlaid:
                self._folders[path] = _facts(member)
            return
        name = path[-1]
        if self._policy.keeps is not None and not member.isdir() and not self._policy.keeps(path):
            return
        with openat.closing_fd(self._parent(path, member.name)) as parent:
            if self._policy.has_whiteouts and name == _OPAQUE:
                self._empty(parent, path[:-1])
            elif self._policy.has_whiteouts and name.startswith(_WHITEOUT):
                if steps(name[len(_WHITEOUT) :]):
                    openat.remove_tree(parent, name[len(_WHITEOUT) :])
            else:
                self._make(archive, member, parent, path)
                if self._policy.is_overlaid:
                    self._new.update(path[:end] for end in range(1, len(path) + 1))

    def settle_folders(self) -> None:
        """Set the attributes of all folders, since nothing more is written into them."""
        for path in sorted(self._folders, key=len, reverse=True):
            try:
                with openat.walk(self._target, path) as folder:
                    self._settle(folder, self._folders[path])
            except OSError as error:
                if not self._policy.is_overlaid or error.errno not in openat.NO_FOLDER:
                    raise  # a later member can have taken the place of a folder

    def _steps(self, name: str) -> Names:
        return tuple(steps(name, self._policy.limit.most_steps))

    def _parent(self, path: Names, name: str) -> int:
        """Return a descriptor of the folder that contains the last step."""
        try:
            return openat.descend(self._target, path[:-1], 0o755 if self._policy.is_overlaid else None)
        except OSError as error:
            raise Hostile(f"{name[:80]!r} leads through something that is no folder: {error.strerror}") from error

    def _make_folder(self, parent: int, path: Names, member: tarfile.TarInfo) -> None:
        try:
            os.mkdir(path[-1], 0o700, dir_fd=parent)
        except FileExistsError:
            if not self._policy.is_overlaid:
                raise
            if not stat.S_ISDIR(os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(path[-1], dir_fd=parent)
                os.mkdir(path[-1], 0o700, dir_fd=parent)
        self._folders[path] = _facts(member)

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, path: Names) -> None:
        name = path[-1]
        _check_kind(member, self._policy)
        if member.isdir():
            self._make_folder(parent, path, member)
            return
        if self._policy.is_overlaid:
            openat.remove_tree(parent, name)
        if member.isreg():
            with openat.closing_fd(openat.create(parent, name)) as file:
                self._write(archive, member, file)
                self._settle(file, _facts(member))
        elif member.issym() and self._policy.links is not None:
            if len(self._policy.links) >= _MOST_LINKS or len(member.linkname) > _LONGEST_LINK:
                raise Hostile("it has more links, or longer ones, than this node may keep")
            self._policy.links.append(["/".join(path), member.linkname, member.uid, member.gid])
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
            mtime_ns = _mtime_ns(member)
            if self._policy.has_owners:
                os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
        elif member.islnk():
            self._link(member.linkname, parent, path)
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with openat.closing_fd(os.open(name, flags, dir_fd=parent)) as pipe:
                self._settle(pipe, _facts(member))

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, file: int) -> None:
        # extractfile is not used, because it cannot skip the holes of sparse files in a stream.
        stream: Any = archive.fileobj
        segments: Sequence[tuple[int, int]] | None = getattr(member, "sparse", None)
        stream.seek(member.offset_data)
        for start, size in [(0, member.size)] if segments is None else segments:
            os.lseek(file, start, os.SEEK_SET)
            missing = size
            while missing > 0:
                chunk = stream.read(min(openat.CHUNK_BYTES, missing))
                if not chunk:
                    raise tarfile.ReadError(f"{member.name!r} was cut off")
                self._policy.limit.take(len(chunk))
                openat.write_all(file, chunk)
                missing -= len(chunk)
        os.ftruncate(file, member.size)

    def _link(self, linkname: str, parent: int, new: Names) -> None:
        """Make another name for an existing file or symbolic link. A link to anything else is refused."""
        path = self._steps(linkname)
        if not path:
            raise Hostile(f"a link to {linkname[:80]!r}")
        if self._policy.has_own_links and path not in self._new:
            raise Hostile(f"a link to {linkname[:80]!r}, which is not in it")
        with openat.closing_fd(self._parent(path, linkname)) as other:
            try:
                mode = os.stat(path[-1], dir_fd=other, follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and self._policy.has_whiteouts)):
                    raise Hostile(f"a link to {linkname[:80]!r}, which is no plain file")
                os.link(path[-1], new[-1], src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError as error:
                if self._policy.keeps is None or self._policy.links is None:
                    raise Hostile(f"a link to {linkname[:80]!r}, which is not there") from error
                self._policy.links.append(["/".join(new), linkname, 0, 0])

    def _settle(self, file: int, facts: _Facts) -> None:
        if self._policy.has_owners:
            os.fchown(file, facts.uid, facts.gid)
        os.utime(file, ns=(facts.mtime_ns, facts.mtime_ns))  # Python's compiled files depend on it
        os.fchmod(file, facts.mode)

    def _empty(self, folder: int, path: Names) -> None:
        """Delete what earlier layers have put into a folder, and keep the files of this layer."""
        for name in openat.entries(folder):
            inside = (*path, name)
            if inside not in self._new:
                openat.remove_tree(folder, name)
            elif stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                with openat.walk(folder, (name,)) as below:
                    self._empty(below, inside)


def _facts(member: tarfile.TarInfo) -> _Facts:
    return _Facts(stat.S_IMODE(member.mode), _mtime_ns(member), member.uid, member.gid)


def _mtime_ns(member: tarfile.TarInfo) -> int:
    """Return the time of the last change, exactly, because a float would lose digits. Raises `ValueError`."""
    text = member.pax_headers.get("mtime") or str(int(member.mtime))
    if len(text) > _LONGEST_TIME:
        raise ValueError(f"{member.name[:80]!r} has a time of {len(text)} characters")
    whole_s, _, rest = text.partition(".")
    sign = -1 if whole_s.startswith("-") else 1
    return sign * (abs(int(whole_s or "0")) * 10**9 + int((rest + "0" * 9)[:9]))
