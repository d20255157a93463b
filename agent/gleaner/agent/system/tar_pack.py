"""Pack a folder as a tar stream: a job's folder, or the files that a container has written to its own file system.

The stream keeps regular files, folders, symbolic links as links, hard links within the folder, and named pipes, with
their modes and modification times (to the nanosecond). It does not keep extended attributes. Nor does it keep sockets,
which have no meaning once their process has ended. The order is fixed, so an unchanged folder gives the same bytes.

For a container's written files, the stream is overlay's raw upper layer, in which a character device 0/0 marks a
deleted file. Overlay also has an attribute for a folder that was deleted and made again. The attribute cannot be set
through a mounted overlay, so its effect is written out. Each of the image's files that is missing from such a folder is
marked as deleted.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from . import openat
from .tar_policy import END, LONGEST_HEADER_BYTES, Hostile, Policy

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OVERLAY_OPAQUE = "trusted.overlay.opaque"

Names = tuple[str, ...]


def pack(folder: int, policy: Policy, image: Sequence[int] = ()) -> Iterator[bytes]:
    """Yield an open folder's contents as chunks of an uncompressed archive (pax), in bounded memory.

    For overlay's upper layer, `image` are the folders of the image's own layers, the uppermost first. Raises `Hostile`
    for an entry that could not be unpacked later. Raises `OSError` for a file that cannot be read, or that shrinks
    although others are not allowed to change the folder.
    """
    buffer = bytearray()
    for chunk in _Packing(folder, policy, image).run():
        buffer += chunk
        if len(buffer) >= openat.CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


class File(NamedTuple):
    """A plain file of an archive that is not made from a folder."""

    name: str
    size_bytes: int
    chunks: Iterable[bytes]
    mode: int = 0o644


def pack_files(files: Iterable[File]) -> Iterator[bytes]:
    """Yield an archive of plain files. It depends only on these files. Raises `Hostile` if a size is wrong."""
    for file in files:
        member, size_bytes = tarfile.TarInfo(file.name), 0
        member.size, member.mode = file.size_bytes, file.mode
        yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        for chunk in file.chunks:
            size_bytes += len(chunk)
            if size_bytes > file.size_bytes:
                break
            yield chunk
        if size_bytes != file.size_bytes:
            raise Hostile(f"{file.name!r} does not have {file.size_bytes} bytes")
        yield _padding(size_bytes)
    yield END


def packed_bytes(files: Iterable[File]) -> int:
    """Return the size of an archive of files whose names have at most 100 bytes."""
    size_bytes = sum(tarfile.BLOCKSIZE + one.size_bytes + len(_padding(one.size_bytes)) for one in files)
    return size_bytes + len(END)


class _Packing:
    """One archive of a folder."""

    def __init__(self, root: int, policy: Policy, image: Sequence[int]) -> None:
        self._root = root
        self._policy = policy
        self._image = image
        self._names: dict[tuple[int, int], Names] = {}
        """The first packed name of each file with several names, by device and inode."""
        self._waiting: list[tuple[Names, os.stat_result, bool]] = []
        """Folders that have not been packed yet, with True for one that hides the image's folder of the same name."""
        self._unnamed: list[tuple[Names, os.stat_result]] = []
        """The folders on the way to the current one that are not in the archive yet, because no file in them is."""

    def run(self) -> Iterator[bytes]:
        self._waiting.append(((), os.fstat(self._root), False))
        while self._waiting:
            names, facts, is_new = self._waiting.pop()
            with self._tolerate_changes(), _walk_readable(self._root, names) as folder:
                if names and self._policy.keeps is not None:
                    self._unnamed = [one for one in self._unnamed if names[: len(one[0])] == one[0]]
                    self._unnamed.append((names, facts))
                elif names or not self._policy.is_overlaid:
                    yield self._header(names, tarfile.DIRTYPE, facts)
                is_new = is_new or bool(names and self._image and _is_opaque(folder))
                yield from self._folder(folder, names, is_new=is_new)
        yield END

    @contextlib.contextmanager
    def _tolerate_changes(self) -> Generator[None, None, None]:
        """Leave out a file that others have removed or replaced during packing, if they are allowed to."""
        try:
            yield
        except OSError as error:
            if not self._policy.is_live or error.errno not in openat.NO_FOLDER:
                raise

    def _folder(self, folder: int, names: Names, *, is_new: bool) -> Iterator[bytes]:
        inner: list[tuple[Names, os.stat_result, bool]] = []
        names_here = sorted(openat.entries(folder), key=os.fsencode)
        if names_here and len(names) >= self._policy.limit.most_steps:
            raise Hostile(f"a file lies more than {self._policy.limit.most_steps} folders deep")
        for name in names_here:
            with self._tolerate_changes():
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    inner.append(((*names, name), facts, is_new))
                elif self._policy.keeps is None or self._policy.keeps((*names, name)):
                    for above, facts_above in self._unnamed:
                        yield self._header(above, tarfile.DIRTYPE, facts_above)
                    self._unnamed.clear()
                    yield from self._member(folder, (*names, name), facts)
        if is_new:
            for name in sorted(self._image_names(names) - set(names_here)):
                yield self._header((*names, name), tarfile.CHRTYPE)
        self._waiting.extend(reversed(inner))

    def _member(self, folder: int, names: Names, facts: os.stat_result) -> Iterator[bytes]:
        if stat.S_ISREG(facts.st_mode):
            identity = (facts.st_dev, facts.st_ino)
            is_alone = facts.st_nlink == 1 or bool(self._policy.top)
            first = names if is_alone else self._names.setdefault(identity, names)
            if first != names:
                yield self._header(names, tarfile.LNKTYPE, facts, link="/".join(first))
                return
            with _walk_readable(folder, names[-1:], leaf=_FILE) as file:
                yield from self._content(file, names)
        elif stat.S_ISLNK(facts.st_mode):
            link, top = os.readlink(names[-1], dir_fd=folder), self._policy.top
            if top and os.path.normpath(os.path.join(top, *names[:-1], link)).split("/")[0] != top:
                raise Hostile(f"{'/'.join(names)!r} is a link that leads out: put the file itself there")
            yield self._header(names, tarfile.SYMTYPE, facts, link=link)
        elif self._policy.top:
            raise Hostile(f"{'/'.join(names)!r} is neither a file nor a folder")
        elif stat.S_ISFIFO(facts.st_mode):
            yield self._header(names, tarfile.FIFOTYPE, facts)
        elif stat.S_ISCHR(facts.st_mode) and self._policy.has_owners:
            yield self._header(names, tarfile.CHRTYPE)  # a job cannot make any device except overlay's mark
        elif not stat.S_ISSOCK(facts.st_mode) and not self._policy.is_overlaid:
            raise Hostile(f"{'/'.join(names)!r} is a device, which cannot be saved")

    def _content(self, file: int, names: Names) -> Iterator[bytes]:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", names[-1])
        segments = [(0, facts.st_size)]
        if self._policy.has_holes and facts.st_blocks * 512 < facts.st_size:
            segments = list(_segments(file, facts.st_size))
        if segments == [(0, facts.st_size)]:
            yield self._header(names, tarfile.REGTYPE, facts, size_bytes=facts.st_size)
            stored_bytes = facts.st_size
        else:  # GNU's sparse format 1.0, in which the map of the stored parts precedes the content
            numbers = [len(segments), *(number for segment in segments for number in segment)]
            sparse_map = "".join(f"{number}\n" for number in numbers).encode()
            sparse_map += _padding(len(sparse_map))
            stored_bytes = len(sparse_map) + sum(size for _, size in segments)
            sparse = {
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": "/".join(names),
                "GNU.sparse.realsize": str(facts.st_size),
            }
            yield self._header(names, tarfile.REGTYPE, facts, size_bytes=stored_bytes, more=sparse)
            yield sparse_map
        for start, size in segments:
            sent = 0
            while sent < size:
                count = min(openat.CHUNK_BYTES, size - sent)
                chunk = os.pread(file, count, start + sent) or self._filler(names, count)
                yield chunk
                sent += len(chunk)
        yield _padding(stored_bytes)

    def _filler(self, names: Names, size_bytes: int) -> bytes:
        """Return zeros for the end of a file that was truncated while it was read."""
        if not self._policy.is_live:
            raise OSError(f"{'/'.join(names)!r} became shorter while it was read")
        return bytes(size_bytes)

    def _header(
        self,
        names: Names,
        kind: bytes,
        facts: os.stat_result | None = None,
        *,
        link: str = "",
        size_bytes: int = 0,
        more: dict[str, str] | None = None,
    ) -> bytes:
        """Return a member's header, for any name that is possible in a file system."""
        self._policy.limit.take_file(size_bytes)
        top = self._policy.top
        member = tarfile.TarInfo("/".join((top, *names) if top else names) or ".")
        member.type, member.linkname, member.size, member.mode = kind, link, size_bytes, 0
        if top and facts is not None:
            member.mode = 0o755 if kind == tarfile.DIRTYPE or facts.st_mode & 0o100 else 0o644
        elif facts is not None:
            member.mode = stat.S_IMODE(facts.st_mode) & self._policy.modes
            member.pax_headers = {"mtime": _decimal_s(facts.st_mtime_ns), **(more or {})}
            if self._policy.has_owners:
                member.uid, member.gid = facts.st_uid, facts.st_gid
        header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if self._policy.has_owners and len(header) > LONGEST_HEADER_BYTES:
            raise Hostile(f"a file's name and its link have {len(header)} bytes")
        return header

    def _image_names(self, path: Names) -> set[str]:
        """Return the names in a folder of the image, as overlay shows them."""
        visible: set[str] = set()
        hidden: set[str] = set()
        with contextlib.ExitStack() as descriptors:
            folders = list(self._image)
            for name in path:
                folders = _folders_of_name(name, folders, descriptors)
            for folder in folders:
                for name in set(openat.entries(folder)) - visible - hidden:
                    is_mark = stat.S_ISCHR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
                    (hidden if is_mark else visible).add(name)
        return visible


def _folders_of_name(name: str, folders: list[int], descriptors: contextlib.ExitStack) -> list[int]:
    """Return the folders of this name in an image's layers, down to the first layer that hides the lower ones."""
    inner: list[int] = []
    for folder in folders:
        try:
            inner.append(descriptors.enter_context(openat.closing_fd(os.open(name, openat.FOLDER, dir_fd=folder))))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in openat.NO_FOLDER:
                break
            raise
        if _is_opaque(inner[-1]):
            break
    return inner


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OVERLAY_OPAQUE) == b"y"
    except OSError:
        return False


def _segments(file: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and length of each piece of data in a file with holes, and an empty piece if a hole is last."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole up to the end
            yield size_bytes, 0
            return
        end = min(os.lseek(file, start, os.SEEK_HOLE), size_bytes)
        yield start, end - start


def _padding(size_bytes: int) -> bytes:
    """Return the zeros that fill the last block of a member's content.

    >>> len(_padding(500)), len(_padding(512))
    (12, 0)
    """
    return bytes(-size_bytes % tarfile.BLOCKSIZE)


def _decimal_s(time_ns: int) -> str:
    """Return nanoseconds as decimal seconds, exactly, because a float would lose digits.

    >>> _decimal_s(-1_500_000_000)
    '-1.500000000'
    """
    whole_s, rest_ns = divmod(abs(time_ns), 10**9)
    return f"{'-' if time_ns < 0 else ''}{whole_s}.{rest_ns:09d}"


@contextlib.contextmanager
def _walk_readable(start: int, names: Names, leaf: int = openat.FOLDER) -> Generator[int, None, None]:
    """Yield a descriptor as `walk` does, but also pass through our own folders whose mode excludes even us.

    With other flags in `leaf`, the last name is that of a file. Modes are changed for the duration of the walk, and
    then restored.
    """
    with contextlib.ExitStack() as restore_modes:
        here = os.dup(start)
        try:
            for number, name in enumerate(names, 1):
                inner = _open_readable(here, name, leaf if number == len(names) else openat.FOLDER, restore_modes)
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)


def _open_readable(here: int, name: str, flags: int, restore_modes: contextlib.ExitStack) -> int:
    try:
        file = os.open(name, flags, dir_fd=here)
        if not flags & os.O_DIRECTORY or os.access(".", os.X_OK, dir_fd=file):
            return file
        os.close(file)
    except PermissionError:
        if os.geteuid() == 0:  # no mode excludes root, and root must not change other users' files
            raise
    path_only = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    itself = restore_modes.enter_context(openat.closing_fd(os.open(name, path_only, dir_fd=here)))
    mode = stat.S_IMODE(os.fstat(itself).st_mode)
    restore_modes.callback(openat.change_mode, itself, mode)
    openat.change_mode(itself, mode | 0o500)
    return os.open(name, flags, dir_fd=here)
