"""A job's folder as a tar stream, and back.

The stream keeps regular files (with their holes), folders, symbolic links as links, hard links within the folder and
named pipes, with mode and modification time (to the nanosecond). It does not keep owners, extended attributes, or
sockets, which mean nothing once their process is gone. The order is fixed, so an unchanged folder gives the same bytes.

A workload writes what it likes into its folder, and an agent may do more than the workload may. So both directions walk
from an open folder step by step and follow no symbolic link, and `unpack` creates every file anew.
"""

import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from gleaner.agent.privileged.common import tar_stream
from gleaner.agent.system.openat import CHUNK_BYTES, change_mode, create, empty, entries, opened, walk, write_all

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

Names = tuple[str, ...]


class WorkdirError(OSError):
    """A job's folder cannot be packed or unpacked; one line that says where and why."""


def pack(folder: Path) -> Iterator[bytes]:
    """Yield the folder's content as chunks of an uncompressed tar archive (pax), in bounded memory.

    Nobody may change the folder meanwhile: a container that uses it is paused, or has ended. Raises `WorkdirError` for
    a file that shrinks all the same, or that cannot be read.
    """
    with _named(folder):
        return _coalesced(_guarded(folder))


def unpack(chunks: Iterable[bytes], folder: Path) -> None:
    """Replace the folder's content by exactly that of an archive; the folder itself stays the same one.

    All chunks are consumed, so that a source that verifies its content at the end gets to its end. After an error
    (`WorkdirError`, or the source's own) the content is unusable: unpack again, or remove the folder.
    """
    source = tar_stream.Source(chunks)
    with _named(folder):
        root = os.open(folder, _ROOT)
    with opened(root), _named(folder):
        _clear(root)
        _Unpacking(root).run(source)


def clear(folder: Path) -> None:
    """Remove everything in the folder, whatever its modes and however deep; the folder itself stays."""
    with _named(folder), opened(os.open(folder, _ROOT)) as root:
        _clear(root)


@contextmanager
def _named(folder: Path) -> Generator[None]:
    """Add the folder's name to every error of the system or of the archive."""
    try:
        yield
    except WorkdirError:
        raise
    except (OSError, *tar_stream.MALFORMED) as error:
        raise WorkdirError(f"the job's folder {folder}: {error}") from error


def _guarded(folder: Path) -> Iterator[bytes]:
    with _named(folder), opened(os.open(folder, _ROOT)) as root:
        yield from _Packing(root).run()


def _coalesced(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield larger chunks made of many small ones."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        if len(gathered) >= CHUNK_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


@dataclass
class _Packing:
    root: int
    links: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """The first packed name of each file with several names, by device and inode."""

    def run(self) -> Iterator[bytes]:
        folders: list[tuple[Names, os.stat_result]] = [((), os.fstat(self.root))]
        while folders:
            names, itself = folders.pop()
            yield _header(names, itself, tarfile.DIRTYPE)
            with _walk_readable(self.root, names) as here:
                inner: list[tuple[Names, os.stat_result]] = []
                for name in sorted(entries(here), key=os.fsencode):
                    facts = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if stat.S_ISDIR(facts.st_mode):
                        inner.append(((*names, name), facts))
                    else:
                        yield from self._one(here, (*names, name), facts)
                folders.extend(reversed(inner))
        yield tar_stream.END

    def _one(self, here: int, names: Names, facts: os.stat_result) -> Iterator[bytes]:
        if stat.S_ISREG(facts.st_mode):
            identity = (facts.st_dev, facts.st_ino)
            if facts.st_nlink > 1 and identity in self.links:
                yield _header(names, facts, tarfile.LNKTYPE, link=self.links[identity])
                return
            if facts.st_nlink > 1:
                self.links[identity] = "/".join(names)
            with _walk_readable(here, names[-1:], leaf=os.O_RDONLY) as file:
                yield from _content(file, names, facts)
        elif stat.S_ISLNK(facts.st_mode):
            yield _header(names, facts, tarfile.SYMTYPE, link=os.readlink(names[-1], dir_fd=here))
        elif stat.S_ISFIFO(facts.st_mode):
            yield _header(names, facts, tarfile.FIFOTYPE)
        elif not stat.S_ISSOCK(facts.st_mode):
            raise WorkdirError(f"{'/'.join(names)!r} in the job's folder is a device, which cannot be saved")


def _content(file: int, names: Names, facts: os.stat_result) -> Iterator[bytes]:
    segments = [(0, facts.st_size)]
    if facts.st_blocks * 512 < facts.st_size:
        segments = list(_segments(file, facts.st_size))
    if segments == [(0, facts.st_size)]:
        yield _header(names, facts, tarfile.REGTYPE, size_bytes=facts.st_size)
        stored_bytes = facts.st_size
    else:  # GNU's sparse format 1.0: the map of what is stored comes before the content
        listed = [len(segments), *(number for segment in segments for number in segment)]
        written = "".join(f"{number}\n" for number in listed).encode()
        written += tar_stream.padding(len(written))
        stored_bytes = len(written) + sum(size for _, size in segments)
        sparse = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "/".join(names),
            "GNU.sparse.realsize": str(facts.st_size),
        }
        yield _header(names, facts, tarfile.REGTYPE, size_bytes=stored_bytes, more=sparse)
        yield written
    for start, size in segments:
        done = 0
        while done < size:
            chunk = os.pread(file, min(CHUNK_BYTES, size - done), start + done)
            if not chunk:
                raise WorkdirError(f"{'/'.join(names)!r} in the job's folder became shorter while it was read")
            yield chunk
            done += len(chunk)
    yield tar_stream.padding(stored_bytes)


def _segments(file: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each stretch of data in a file with holes; an empty one last if a hole is last."""
    end = 0
    while end < size_bytes:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole up to the end
            yield size_bytes, 0
            return
        end = min(os.lseek(file, start, os.SEEK_HOLE), size_bytes)
        yield start, end - start


def _header(
    names: Names,
    facts: os.stat_result,
    kind: bytes,
    *,
    link: str = "",
    size_bytes: int = 0,
    more: dict[str, str] | None = None,
) -> bytes:
    member = tarfile.TarInfo("/".join(names) or ".")
    member.type = kind
    member.linkname = link
    member.size = size_bytes
    member.mode = stat.S_IMODE(facts.st_mode)
    member.pax_headers = {"mtime": _decimal_s(facts.st_mtime_ns), **(more or {})}
    return tar_stream.header(member)


def _decimal_s(time_ns: int) -> str:
    """Return nanoseconds as decimal seconds, without the loss that a float would bring.

    >>> _decimal_s(-1_500_000_000)
    '-1.500000000'
    """
    whole_s, rest_ns = divmod(abs(time_ns), 10**9)
    return f"{'-' if time_ns < 0 else ''}{whole_s}.{rest_ns:09d}"


def _modified_ns(member: tarfile.TarInfo) -> int:
    whole_s, _, rest = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    sign = -1 if whole_s.startswith("-") else 1
    return sign * (abs(int(whole_s or "0")) * 10**9 + int((rest + "0" * 9)[:9]))


@dataclass
class _Unpacking:
    root: int
    folders: dict[Names, tuple[int, int]] = field(default_factory=dict[Names, tuple[int, int]])
    """Mode and modification time of each folder, to be set when nothing more will be written into the folder."""

    def run(self, source: tar_stream.Source) -> None:
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|", errorlevel=2) as archive:
            for member in tar_stream.members(archive):
                self._one(archive, member)
        source.finish()
        for names in sorted(self.folders, key=len, reverse=True):
            mode, modified_ns = self.folders[names]
            with walk(self.root, names) as here:
                os.utime(here, ns=(modified_ns, modified_ns))
                os.fchmod(here, mode)

    def _one(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        names = _checked(member.name)
        modified_ns = _modified_ns(member)
        if member.isdir():
            self._folder(names, stat.S_IMODE(member.mode), modified_ns)
            return
        if not names:
            raise tarfile.TarError("the archive's top is no folder")
        with walk(self.root, names[:-1]) as here:
            if member.isreg():
                self._file(archive, member, here)
            elif member.issym():
                os.symlink(member.linkname, names[-1], dir_fd=here)
                os.utime(names[-1], ns=(modified_ns, modified_ns), dir_fd=here, follow_symlinks=False)
            elif member.islnk():
                self._hard_link(_checked(member.linkname), names[-1], here)
            elif member.isfifo():
                os.mkfifo(names[-1], 0o600, dir_fd=here)
                _settle(here, names[-1], stat.S_IMODE(member.mode), modified_ns)
            else:
                raise tarfile.TarError(f"{member.name!r} is of a kind that is not unpacked")

    def _folder(self, names: Names, mode: int, modified_ns: int) -> None:
        if names:
            with walk(self.root, names[:-1]) as here:
                os.mkdir(names[-1], 0o700, dir_fd=here)
        self.folders[names] = (mode, modified_ns)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, here: int) -> None:
        # Not through extractfile, which cannot skip the holes of a stream's sparse files.
        stream = archive.fileobj
        stored: Sequence[tuple[int, int]] | None = getattr(member, "sparse", None)
        stream.seek(member.offset_data)
        with opened(create(here, _checked(member.name)[-1])) as file:
            for start, size in [(0, member.size)] if stored is None else stored:
                os.lseek(file, start, os.SEEK_SET)
                missing = size
                while missing > 0:
                    chunk = stream.read(min(CHUNK_BYTES, missing))
                    if not chunk:
                        raise tarfile.ReadError(f"{member.name!r} was cut off")
                    write_all(file, chunk)
                    missing -= len(chunk)
            os.ftruncate(file, member.size)
            modified_ns = _modified_ns(member)
            os.utime(file, ns=(modified_ns, modified_ns))
            os.fchmod(file, stat.S_IMODE(member.mode))

    def _hard_link(self, target: Names, name: str, here: int) -> None:
        if not target:
            raise tarfile.TarError(f"{name!r} is a hard link to nothing")
        with walk(self.root, target[:-1]) as there:
            if not stat.S_ISREG(os.stat(target[-1], dir_fd=there, follow_symlinks=False).st_mode):
                raise tarfile.TarError(f"{name!r} is a hard link to something that is no file")
            os.link(target[-1], name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def _checked(path: str) -> Names:
    """Return the names that a member's path is made of; none for the folder itself."""
    if path in (".", "./"):
        return ()
    names = tuple(path.removeprefix("./").split("/"))
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise tarfile.TarError(f"{path!r} leads out of the folder, or nowhere")
    return names


def _settle(here: int, name: str, mode: int, modified_ns: int) -> None:
    """Set mode and time of a file that was just made here and is no symbolic link."""
    os.chmod(name, mode, dir_fd=here)
    os.utime(name, ns=(modified_ns, modified_ns), dir_fd=here, follow_symlinks=False)


@contextmanager
def _walk_readable(start: int, names: Names, leaf: int = os.O_RDONLY | os.O_DIRECTORY) -> Generator[int]:
    """Yield a descriptor as `walk` does, also through folders of our own whose mode keeps even us out.

    With other flags in `leaf`, the last name is a file's. Modes are changed for as long as necessary, and put back.
    """
    with ExitStack() as changed:
        here = os.dup(start)
        try:
            for number, name in enumerate(names, 1):
                flags = leaf if number == len(names) else os.O_RDONLY | os.O_DIRECTORY
                inner = _opened_readable(here, name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, changed)
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)


def _opened_readable(here: int, name: str, flags: int, changed: ExitStack) -> int:
    with suppress(PermissionError):
        file = os.open(name, flags, dir_fd=here)
        if not flags & os.O_DIRECTORY or os.access(".", os.X_OK, dir_fd=file):
            return file
        os.close(file)
    itself = changed.enter_context(opened(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)))
    mode = stat.S_IMODE(os.fstat(itself).st_mode)
    changed.callback(change_mode, itself, mode)
    change_mode(itself, mode | 0o500)
    return os.open(name, flags, dir_fd=here)


def _clear(root: int) -> None:
    os.fchmod(root, 0o700)
    empty(root)
