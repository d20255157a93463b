"""Unpack a job's result, which is not trusted.

A user's workload wrote the archive. While it arrives, it is unpacked into a folder that only the caller can enter. Only
regular files and their folders are created. Links are neither created nor followed, including links that existed
before. The members that are left out are reported by name.

One rename gives the whole folder its name. The folder then contains a record of the files that were fetched. So a fetch
that was killed leaves no partial folder, and the next one continues with the missing results.
"""

import fcntl
import fnmatch
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gleaner.agent.checkpoints.interface import FOLDER_PART, StorageError, output_key
from gleaner.agent.system import openat
from gleaner.agent.system.keep_patterns import Keep
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Links, Policy, SizeLimit
from gleaner.agent.system.tar_unpack import TarSource, unpack
from gleaner.agent.transfer.stage import remove_stage, stage_folder, staged_files
from gleaner.client.connection import Connection
from gleaner.client.errors import ClientError
from gleaner.client.steps import Steps, Work
from gleaner.control.input_errors import one_line
from gleaner.control.models.outputs import ResultRow

RECORD = ".gleaner-result"
"""The file in a job's folder that identifies the result. A workload's own file of this name is left out."""
_ANY_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Fetched:
    """One job's result on the local disk. `skipped` contains the files that were left out, each with the reason."""

    job: int
    folder: str
    files: int
    size_bytes: int
    skipped: tuple[str, ...] = ()
    is_new: bool = True
    """False if it was there already, so that nothing was fetched."""


class _Record(BaseModel):
    """A record of the result that was fetched into a folder. `only` are the patterns of its files, or () for all."""

    job: int
    attempt: int
    digest: str
    only: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0

    def includes(self, wanted: "_Record") -> bool:
        """Return True if all wanted files are there."""
        has_all = not self.only or (bool(wanted.only) and set(wanted.only) <= set(self.only))
        return has_all and self.digest == wanted.digest


def fetch(
    connection: Connection, result: ResultRow, folder: Path, *, only: Sequence[str], on_bytes: Callable[[int], None]
) -> Steps[Fetched]:
    """Unpack a job's result into `folder`, unless it is already there. `only` are patterns of the files to fetch.

    The result is read from the storage if the caller can read it there, and is otherwise sent by control. An error
    changes nothing. Raises `ClientError`, also if the disk or the archive is faulty.
    """
    wanted = _Record(job=result.job, attempt=result.attempt, digest=result.digest or "", only=tuple(only))
    done: list[Fetched] = []

    def counted(chunk: bytes) -> bytes:
        on_bytes(len(chunk))
        return chunk

    def receive(chunks: Iterator[bytes]) -> None:
        done.append(_receive(map(counted, chunks), folder, wanted))

    def look() -> None:
        """Look for the result here, and otherwise read it from control's storage with the caller's rights.

        Its digest is checked, and no link is followed. After a failure, control sends the result, or the reason why it
        cannot do so.
        """
        done.extend(_there(folder, wanted))
        with suppress(StorageError, ImportError):  # zstandard might be missing where only `glean` is installed
            from gleaner.agent.checkpoints.folder_storage import FolderStorage

            if not done and os.path.realpath(result.storage) == result.storage:
                storage, key = FolderStorage(Path(result.storage)), output_key(result.job, result.attempt)
                receive(storage.open(key, wanted.digest).read(FOLDER_PART))

    try:
        yield Work(look)
        if not done:
            yield from connection.download(f"/v1/jobs/{result.job}/output", receive=receive)
        return done[0]
    except OSError as error:
        raise ClientError(f"cannot write to {error.filename or folder}: {error.strerror}") from error
    except (Hostile, *MALFORMED) as error:
        raise ClientError(f"job {result.job}: the output is not a complete archive: {one_line(str(error))}") from error


def _record_of(folder: Path, job: int) -> _Record | None:
    """Return the record of an earlier fetch into the folder; None if it is empty or missing. Raises `ClientError`."""
    with suppress(OSError, ValidationError), openat.closing_fd(os.open(folder, openat.FOLDER)) as there:
        if not openat.entries(there):
            return None
        record = _Record.model_validate_json(openat.read_all(there, RECORD, most_bytes=openat.CHUNK_BYTES))
        if record.job == job:
            return record
    if not os.path.lexists(folder):
        return None
    raise ClientError(f"job {job}: {folder} contains other files: move them away, or choose another folder")


def _there(folder: Path, wanted: _Record) -> list[Fetched]:
    """Return a list with the result if the folder contains it, and remove the remains of killed fetches beside the
    folder."""
    with suppress(FileNotFoundError):
        _remove_dead_stages(str(folder.absolute().parent))
    if (there := _record_of(folder, wanted.job)) is None or not there.includes(wanted):
        return []
    return [Fetched(wanted.job, str(folder), there.files, there.size_bytes, is_new=False)]


def _receive(chunks: Iterator[bytes], folder: Path, wanted: _Record) -> Fetched:
    """Unpack the archive beside the folder, and give the new folder its name at the end."""
    before = _record_of(folder, wanted.job)
    adds = before is not None and before.digest == wanted.digest
    only = (*before.only, *wanted.only) if before is not None and adds and wanted.only else wanted.only
    wanted = wanted.model_copy(update={"only": tuple(dict.fromkeys(only))})
    place = folder.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ending:
        parent = ending.enter_context(openat.closing_fd(os.open(place.parent, _ANY_FOLDER)))
        _lock(parent, fcntl.LOCK_EX)  # so that no other fetch mistakes the new folder for that of a dead fetch
        stage = ending.enter_context(stage_folder(parent, wanted.job, f"fetch-{os.urandom(8).hex()}"))
        _lock(stage, fcntl.LOCK_EX)
        _lock(parent, fcntl.LOCK_UN)
        os.mkdir("new", dir_fd=stage)
        with openat.walk(stage, ("new",)) as new:
            modes = stat.S_IMODE(os.fstat(new).st_mode)  # reading the umask itself would change it
            skipped = tuple(_unpack(chunks, new, wanted, modes))
            os.fchmod(new, modes)
            if adds:
                _add(new, folder, modes)
        if before is not None and not adds:
            ends = (f".attempt-{before.attempt}{more}" for more in ("", *(f"-{number}" for number in range(2, 100))))
            folder.rename(next(f"{folder}{end}" for end in ends if not os.path.lexists(f"{folder}{end}")))
        try:
            if not adds:
                os.rename("new", place.name, src_dir_fd=stage, dst_dir_fd=parent)
        except OSError:  # another fetch was faster, or there are other files now
            if not (there := _there(folder, wanted)):
                raise
            return there[0]
    return Fetched(wanted.job, str(folder), wanted.files, wanted.size_bytes, skipped)


def _unpack(chunks: Iterator[bytes], new: int, wanted: _Record, modes: int) -> Iterator[str]:
    """Unpack the wanted files and write the record. Yield a line for each file that is left out."""
    links: Links = []
    source, keeps = TarSource(chunks), Keep(wanted.only) if wanted.only else None
    unpack(source, new, Policy(SizeLimit(math.inf, math.inf), has_holes=True, links=links, keeps=keeps))
    source.finish()
    for inside, names in staged_files(new, modes):
        if names[0] != RECORD:
            wanted.files += 1
            wanted.size_bytes += os.stat(names[-1], dir_fd=inside).st_size
    openat.remove_tree(new, RECORD)
    for _, folders, _, inside in os.fwalk(".", topdown=False, dir_fd=new):
        for name in folders:
            with suppress(OSError):  # it is not empty
                os.rmdir(name, dir_fd=inside)
    with openat.closing_fd(os.open(RECORD, openat.NEW_FILE, modes & 0o666, dir_fd=new)) as file:
        openat.write_all(file, wanted.model_dump_json().encode())
    yield from (f"{one_line(name)}: a link" for name, *_ in links)


def _add(new: int, folder: Path, modes: int) -> None:
    """Add the missing files to a folder with files of the same result, and then add the record."""
    with openat.closing_fd(os.open(folder, openat.FOLDER)) as target:
        for inside, names in staged_files(new, modes):
            with openat.closing_fd(openat.descend(target, names[:-1], 0o777)) as place:
                try:
                    os.stat(names[-1], dir_fd=place, follow_symlinks=False)
                except FileNotFoundError:
                    os.rename(names[-1], names[-1], src_dir_fd=inside, dst_dir_fd=place)
        os.rename(RECORD, RECORD, src_dir_fd=new, dst_dir_fd=target)


@lru_cache(maxsize=256)
def _remove_dead_stages(parent: str) -> None:
    """Remove the folders of killed fetches, once in this process. A live fetch holds a lock on its folder."""
    with openat.closing_fd(os.open(parent, _ANY_FOLDER)) as folder:
        _lock(folder, fcntl.LOCK_EX)
        for name in fnmatch.filter(openat.entries(folder), ".gleaner-*-fetch-*"):
            with suppress(OSError), openat.walk(folder, (name,)) as stage:
                fcntl.flock(stage, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_stage(folder, name)


def _lock(folder: int, how: int) -> None:
    with suppress(OSError):  # a file system without locks
        fcntl.flock(folder, how)
