"""Work inside an open folder: every step starts at a descriptor and follows no symbolic link.

This module also translates the system's errors into the storage's. Files and folders are made for the owner alone.
"""

import errno
import os
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gleaner.agent.checkpoints.interface import StorageError, StorageFull

DRAFTS = ".drafts"
CHUNK_BYTES = 2**20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def translated(root: Path, missing: str = "is the file system mounted?") -> Generator[None]:
    """Turn the system's errors into the storage's. This is the one place that does so."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            line = f"the storage folder {root} is full ({error.strerror}): free some space or raise the quota"
            raise StorageFull(line) from error
        hint = f": {missing}" if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) else ""
        raise StorageError(f"the storage folder {root} fails ({error.strerror}){hint}") from error


@contextmanager
def opened(file: int, root: Path | None = None) -> Generator[int]:
    """Close the file at the end. With `root`, an error of closing counts, as it may be a lost write."""
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            os.close(file)
        raise
    if root is None:
        os.close(file)
    else:
        with translated(root):
            os.close(file)


@contextmanager
def open_root(root: Path) -> Generator[int]:
    """Yield the storage's root, if it is there, is set up, and only its owner may write to it."""
    with translated(root):
        file = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with opened(file):
        with translated(root):
            mode = os.fstat(file).st_mode
            set_up = DRAFTS in entries(file)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StorageError(f"others may write into the storage folder {root}: run `chmod 700 {root}`")
        if not set_up:
            raise StorageError(
                f"{root} is not a storage folder: is the file system mounted? For a new one: `glean control prepare`"
            )
        yield file


@contextmanager
def walk(start: int, names: Sequence[str]) -> Generator[int]:
    """Yield the folder that is reached from `start` by these names, none of them a symbolic link."""
    folder = os.dup(start)
    try:
        for name in names:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def made(start: int, names: Sequence[str]) -> Generator[int]:
    """Yield a folder like `walk`, after making the missing ones; by then each one's entry is on the disk."""
    for depth, name in enumerate(names):
        with walk(start, names[:depth]) as parent:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            os.fsync(parent)  # also for a folder that another writer made and may not have synced yet
    with walk(start, names) as folder:
        yield folder


def create(folder: int, name: str) -> int:
    """Create a file for writing. An existing file is an error."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)


def write_all(file: int, content: bytes) -> None:
    """Write everything, in as many calls as the system needs (a nearly full disk takes a part)."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def writev_all(file: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all pieces, one after the other, in as few calls as the system allows."""
    rest = [memoryview(piece) for piece in pieces]
    while rest:
        written = os.writev(file, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


def open_plain(folder: int, name: str) -> int:
    """Open a plain file for reading. Anything else of this name, like a link or a pipe, is a `FileNotFoundError`."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, f"{name} is no plain file") from error
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise FileNotFoundError(errno.ENOENT, f"{name} is no plain file")


def read_all(folder: int, name: str, *, most_bytes: int) -> bytes:
    """Return a small file's content; of a larger file, a little more than `most_bytes`."""
    with opened(open_plain(folder, name)) as file:
        content = b""
        while len(content) <= most_bytes and (chunk := os.read(file, CHUNK_BYTES)):
            content += chunk
        return content


def pread_all(file: int, size_bytes: int, offset: int) -> bytes:
    """Return the file's bytes at the offset; fewer only at its end."""
    content = os.pread(file, size_bytes, offset)
    while len(content) < size_bytes and (more := os.pread(file, size_bytes - len(content), offset + len(content))):
        content += more
    return content


def pread_into(file: int, room: memoryview, offset: int) -> bool:
    """Fill the room with the file's bytes at the offset. Return False if there are fewer."""
    while room:
        got = os.preadv(file, [room], offset)
        if not got:
            return False
        room, offset = room[got:], offset + got
    return True


def entries(folder: int) -> list[str]:
    """Return the names in an open folder."""
    with os.scandir(folder) as found:
        return [entry.name for entry in found]


def subfolders(folder: int) -> Iterator[str]:
    """Yield the names of the folders in an open folder."""
    with os.scandir(folder) as found:
        yield from (entry.name for entry in found if entry.is_dir(follow_symlinks=False))


def last_written_s(folder: int, name: str) -> float:
    """Return the time of the latest change in a draft; now, if the draft disappears meanwhile."""
    try:
        latest_s = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        with suppress(NotADirectoryError), walk(folder, (name,)) as draft:
            for inner in entries(draft):
                latest_s = max(latest_s, os.stat(inner, dir_fd=draft, follow_symlinks=False).st_mtime)
        return latest_s
    except FileNotFoundError:
        return time.time()


def remove_tree(folder: int, name: str) -> None:
    """Remove a folder of plain files, as archives are, or what an admin has put in its place."""
    try:
        with walk(folder, (name,)) as inner:
            for entry in entries(inner):
                remove_tree(inner, entry)
        os.rmdir(name, dir_fd=folder)
    except NotADirectoryError:  # a file, or a symbolic link (which O_NOFOLLOW with O_DIRECTORY reports so)
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
