"""Work inside an open folder, so that every step starts at a descriptor and follows no symbolic link.

Others might have written into the folder, or might be writing there now. Whatever they have prepared, nothing outside
the folder is reached. Files and folders are made so that only their owner can use them.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterator, Sequence

CHUNK_BYTES = 2**20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags that open a folder."""
NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors on opening with `FOLDER` if the name does not exist, or is that of a file or a symbolic link."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def closing_fd(file: int) -> Generator[int, None, None]:
    """Close the descriptor at the end. An error on closing is raised, because a write might have been lost."""
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(file)
        raise
    os.close(file)


@contextlib.contextmanager
def walk(start: int, names: Sequence[str]) -> Generator[int, None, None]:
    """Yield the folder that is reached from `start` by these names, none of them a symbolic link."""
    with closing_fd(descend(start, names)) as folder:
        yield folder


def descend(start: int, names: Sequence[str], make_mode: int | None = None) -> int:
    """Return a descriptor of the folder that is reached from `start` by these names, none of them a symbolic link.

    With `make_mode`, folders that are missing are made with this mode.
    """
    folder = os.dup(start)
    for name in names:
        try:
            inner = os.open(name, FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if make_mode is None:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, make_mode, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


@contextlib.contextmanager
def walk_and_make(start: int, names: Sequence[str]) -> Generator[int, None, None]:
    """Make the missing folders, sync their entries to the disk, and yield the last folder like `walk`."""
    for depth, name in enumerate(names):
        with walk(start, names[:depth]) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            os.fsync(parent)  # also if another writer made the folder, because it might not be synced yet
    with walk(start, names) as folder:
        yield folder


def create(folder: int, name: str) -> int:
    """Create a file for writing. It is an error if the file exists."""
    return os.open(name, NEW_FILE, 0o600, dir_fd=folder)


def write_all(file: int, content: bytes) -> None:
    """Write everything, in as many calls as the system needs, since a nearly full disk accepts only part of a write."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def writev_all(file: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all pieces, one after the other, in as few calls as the system allows."""
    rest = [memoryview(piece) for piece in pieces]
    while rest:
        count = os.writev(file, rest)
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]


def open_plain(folder: int, name: str) -> int:
    """Open a plain file for reading.

    Any other entry of this name, such as a link or a pipe, raises `FileNotFoundError`.
    """
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
    """Return a small file's contents. If the file is larger, return a little more than `most_bytes`."""
    with closing_fd(open_plain(folder, name)) as file:
        content = b""
        while len(content) <= most_bytes and (chunk := os.read(file, CHUNK_BYTES)):
            content += chunk
        return content


def pread_all(file: int, size_bytes: int, offset: int) -> bytes:
    """Return `size_bytes` bytes of the file from the offset, or fewer at its end."""
    content = os.pread(file, size_bytes, offset)
    while len(content) < size_bytes and (more := os.pread(file, size_bytes - len(content), offset + len(content))):
        content += more
    return content


def pread_into(file: int, room: memoryview, offset: int) -> bool:
    """Fill the buffer `room` with the file's bytes at the offset. Return False if the file ends earlier."""
    while room:
        got = os.preadv(file, [room], offset)
        if not got:
            return False
        room, offset = room[got:], offset + got
    return True


def entries(folder: int) -> list[str]:
    """Return the names in an open folder."""
    with os.scandir(folder) as listing:
        return [entry.name for entry in listing]


def subfolders(folder: int) -> Iterator[str]:
    """Yield the names of the folders in an open folder."""
    with os.scandir(folder) as listing:
        yield from (entry.name for entry in listing if entry.is_dir(follow_symlinks=False))


def remove_tree(folder: int, name: str) -> None:
    """Remove a file, or a folder and everything in it, if it exists. Its depth must be limited."""
    with contextlib.suppress(FileNotFoundError):
        if not _unlink_file(folder, name):
            with walk(folder, (name,)) as inner:
                for entry in entries(inner):
                    remove_tree(inner, entry)
            os.rmdir(name, dir_fd=folder)


def empty(top: int) -> None:
    """Remove everything in a folder, whatever the modes are and however deep it is.

    Raises an `OSError` if anything is left. The function does not recurse. Each folder is moved to the top before any
    of its entries is touched. This also protects file systems that are mounted below, because the kernel neither
    renames mount points nor renames anything into another file system.
    """
    failures: list[OSError] = []
    waiting: list[str] = []

    def empty_one(folder: int) -> None:
        for name in entries(folder):
            try:
                if not _unlink_file(folder, name):
                    waiting.append(_move_to_top(folder, name, top))
            except OSError as error:
                failures.append(error)

    empty_one(top)
    while waiting:
        name = waiting.pop()
        try:
            with walk(top, (name,)) as folder:
                empty_one(folder)
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[-1]


def change_mode(itself: int, mode: int) -> None:
    """Change the mode of an O_PATH descriptor's file. fchmod refuses such a descriptor, but chmod follows its link in
    /proc to the file."""
    os.chmod(f"/proc/self/fd/{itself}", mode)


def _unlink_file(folder: int, name: str) -> bool:
    """Unlink a file. Return False if the name is that of a folder, which stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _move_to_top(folder: int, name: str, top: int) -> str:
    """Move a folder to the top, and let its owner use it. Return the new name."""
    new = os.urandom(16).hex()
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        _make_usable(folder, name)
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    _make_usable(top, new)
    return new


def _make_usable(folder: int, name: str) -> None:
    with closing_fd(os.open(name, os.O_PATH | FOLDER, dir_fd=folder)) as itself:
        if os.fstat(itself).st_mode & 0o700 != 0o700:
            change_mode(itself, 0o700)
