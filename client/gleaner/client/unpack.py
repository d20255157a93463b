"""The unpacking of a job's output, which is not trusted.

A user's workload wrote the archive. Only regular files and folders are created. Links are neither created nor followed,
including links that existed before. Nothing is written outside the target folder. The members that are left out are
reported by name.
"""

import os
import stat
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gleaner.agent.system import openat
from gleaner.agent.system.tar_policy import MALFORMED
from gleaner.client.connection import Connection
from gleaner.client.errors import ClientError
from gleaner.client.steps import Steps, Work
from gleaner.control.input_errors import one_line

CHUNK_BYTES = 1024 * 1024


class _Skipped(Exception):
    """The reason for leaving out one member."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """One job's output on the local disk. `skipped` contains the files that were left out, each with the reason."""

    job: int
    folder: str
    files: int
    size_bytes: int
    skipped: tuple[str, ...]


def fetch(connection: Connection, job: int, folder: Path, *, overwrite: bool) -> Steps[Fetched]:
    """Unpack a job's output into `folder`, which is created if it does not exist.

    The archive is read to its end before the first file is created, so an incomplete archive changes nothing. Raises
    `ClientError`, even if the disk or the archive is faulty.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as spool:
            yield from connection.download(f"/v1/jobs/{job}/output", into=spool)
            spool.seek(0)
            fetched: Fetched = yield Work(lambda: _extract(spool, folder, job=job, overwrite=overwrite))
            return fetched
    except OSError as error:
        raise ClientError(f"cannot write to {error.filename or folder}: {error.strerror}") from error
    except MALFORMED as error:
        raise ClientError(f"job {job}: the output is not a whole archive: {one_line(str(error))}") from error


def _extract(spool: IO[bytes], folder: Path, *, job: int, overwrite: bool) -> Fetched:
    files = size_bytes = 0
    skipped: list[str] = []
    root_flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with openat.closing_fd(os.open(folder, root_flags)) as root, tarfile.open(fileobj=spool, mode="r:") as archive:
        for member in archive.getmembers():  # reads all headers first, and so finds a broken end
            try:
                parts = _parts(member)
                if member.isdir():
                    with _inside(root, parts):
                        continue
                with _inside(root, parts[:-1]) as inside:
                    _put(archive, member, parts[-1], inside, overwrite=overwrite)
                files += 1
                size_bytes += member.size
            except _Skipped as why:
                skipped.append(f"{one_line(member.name)}: {why}")
    return Fetched(job=job, folder=str(folder), files=files, size_bytes=size_bytes, skipped=tuple(skipped))


def _parts(member: tarfile.TarInfo) -> list[str]:
    """Return the member's path below the folder. Raises `_Skipped` for a member that must not be created."""
    if member.issym() or member.islnk():
        raise _Skipped("a link")
    if not (member.isreg() or member.isdir()):
        raise _Skipped("neither a file nor a folder")
    parts = [part for part in member.name.split("/") if part not in {"", "."}]
    if member.name.startswith("/"):
        raise _Skipped("an absolute path")
    if ".." in parts:
        raise _Skipped("its path leaves the folder")
    if any("\0" in part or len(os.fsencode(part)) > 255 for part in parts):
        raise _Skipped("not a file name")
    if not parts and member.isreg():
        raise _Skipped("no name")
    return parts


@contextmanager
def _inside(root: int, parts: list[str]) -> Generator[int]:
    """Yield the folder `parts` below `root`. Missing folders are created, and links are not followed."""
    try:
        folder = openat.descend(root, parts, 0o777)
    except OSError as error:
        if error.errno not in openat.NO_FOLDER:
            raise
        raise _Skipped(f"{one_line('/'.join(parts))} is there and is not a folder ({error.strerror})") from error
    with openat.closing_fd(folder):
        yield folder


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, folder: int, *, overwrite: bool) -> None:
    """Write one file under a temporary name and rename it, so that an incomplete file never has the final name."""
    there = _kind(name, folder)
    if there is not None and not overwrite:
        raise _Skipped("already there; --force overwrites")
    if there is not None and stat.S_ISDIR(there):
        raise _Skipped("a folder of that name is there")
    source = archive.extractfile(member)
    assert source is not None  # noqa: S101 - only regular files come here
    passing = f".glean-{os.getpid()}.part"
    mode = 0o777 if member.mode & stat.S_IXUSR else 0o666
    target = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        with os.fdopen(target, "wb") as file:
            while chunk := source.read(CHUNK_BYTES):
                if chunk.count(0) < len(chunk):
                    file.write(chunk)
                else:  # a hole in the file is kept, because an archive of a few bytes must not fill the disk
                    file.seek(len(chunk), os.SEEK_CUR)
            file.truncate()
        with suppress(OSError, OverflowError, ValueError):
            os.utime(passing, (member.mtime, member.mtime), dir_fd=folder, follow_symlinks=False)
        os.rename(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(passing, dir_fd=folder)
        raise


def _kind(name: str, folder: int) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
