"""The unpacking of a job's output, which is not trusted.

A user's workload wrote the archive. It is unpacked into a folder that only the caller can enter, and from there each
file gets its name by one rename. Only regular files and their folders are created. Links are neither created nor
followed, including links that existed before. The members that are left out are reported by name.
"""

import math
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gleaner.agent.system import openat
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Links, Policy, SizeLimit
from gleaner.agent.system.tar_unpack import TarSource, unpack
from gleaner.agent.transfer.stage import stage_folder, staged_files
from gleaner.client.connection import Connection
from gleaner.client.errors import ClientError
from gleaner.client.steps import Steps, Work
from gleaner.control.input_errors import one_line


class _Skipped(Exception):
    """The reason for leaving out one file."""


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

    The archive is unpacked to its end before the first file gets its name, so an incomplete archive changes nothing.
    Raises `ClientError`, even if the disk or the archive is faulty.
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
    except (Hostile, *MALFORMED) as error:
        raise ClientError(f"job {job}: the output is not a whole archive: {one_line(str(error))}") from error


def _extract(spool: IO[bytes], folder: Path, *, job: int, overwrite: bool) -> Fetched:
    links: Links = []
    files, size_bytes, skipped = 0, 0, list[str]()
    with (
        openat.closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root,
        stage_folder(root, job, os.urandom(8).hex()) as stage,
    ):
        modes = _modes(stage)
        source = TarSource(iter(lambda: spool.read(openat.CHUNK_BYTES), b""))
        unpack(source, stage, Policy(SizeLimit(math.inf, math.inf), has_holes=True, links=links))
        source.finish()
        for inside, names in staged_files(stage, modes):
            try:
                with _folder(root, names[:-1]) as target:
                    _check_free(names[-1], target, overwrite=overwrite)
                    size_bytes += os.stat(names[-1], dir_fd=inside).st_size
                    os.rename(names[-1], names[-1], src_dir_fd=inside, dst_dir_fd=target)
                files += 1
            except _Skipped as why:
                skipped.append(f"{one_line('/'.join(names))}: {why}")
    skipped += [f"{one_line(name)}: a link" for name, *_ in links]
    return Fetched(job=job, folder=str(folder), files=files, size_bytes=size_bytes, skipped=tuple(skipped))


def _modes(stage: int) -> int:
    """Return the mode bits that new files of this program have. Reading the umask itself would change it."""
    os.mkdir("modes", dir_fd=stage)
    modes = os.stat("modes", dir_fd=stage).st_mode
    os.rmdir("modes", dir_fd=stage)
    return stat.S_IMODE(modes) & 0o777


@contextmanager
def _folder(root: int, names: tuple[str, ...]) -> Generator[int]:
    """Yield a folder below `root`. Missing folders are created, and links are not followed."""
    try:
        folder = openat.descend(root, names, 0o777)
    except OSError as error:
        if error.errno not in openat.NO_FOLDER:
            raise
        raise _Skipped(f"{one_line('/'.join(names))} is there and is not a folder ({error.strerror})") from error
    with openat.closing_fd(folder):
        yield folder


def _check_free(name: str, folder: int, *, overwrite: bool) -> None:
    """Raise `_Skipped` if a file with this name must not be put into the folder."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not overwrite:
        raise _Skipped("already there; --force overwrites")
    if stat.S_ISDIR(there):
        raise _Skipped("a folder of that name is there")
