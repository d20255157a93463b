"""The files of a result on their way to their target, for agents and for `glean results`."""

import hashlib
import io
import math
import os
import stat
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gleaner.agent.system import openat

Names = tuple[str, ...]
SLOWEST_BYTES_PER_S = 2**20
"""The rate, in bytes per second, below which a syncing file system or a server counts as hanging."""
REPORTS_WHILE_SILENT = 4
"""The number of progress reports within the time in which the parent expects one."""


@contextmanager
def stage_folder(parent: int, job: int, number: object) -> Generator[int]:
    """Make a private folder for one try to move a job's result, and remove it at the end."""
    name = f".gleaner-{job}-{number}"
    os.mkdir(name, 0o700, dir_fd=parent)
    try:
        with openat.walk(parent, (name,)) as folder:
            yield folder
    finally:
        remove_stage(parent, name)


def remove_stages(parent: int, job: int) -> None:
    """Remove the folders of all tries to move a job's result. Folders of other accounts might stay."""
    for name in openat.entries(parent):
        if name.startswith(f".gleaner-{job}-"):
            remove_stage(parent, name)


def remove_stage(parent: int, name: str) -> None:
    """Remove the folder of a try, as far as this account has the right to."""
    with suppress(OSError):
        with openat.closing_fd(os.open(name, os.O_PATH | openat.FOLDER, dir_fd=parent)) as found:
            Path(f"/proc/self/fd/{found}").chmod(0o700)  # not by its name, which might now be a link
        with openat.walk(parent, (name,)) as folder:
            openat.empty(folder)
        os.rmdir(name, dir_fd=parent)


def staged_files(stage: int, modes: int = 0o755) -> Iterator[tuple[int, Names]]:
    """Yield the files in a fixed order, each with its open folder. Links do not occur, and pipes are removed.

    Files that the job has made unreadable for their owner become readable, so that the result can be read and moved.
    `modes` is the mask for the modes of files, and the mode of folders.
    """
    os.fchmod(stage, 0o700)
    for above, folders, files, folder in os.fwalk(".", dir_fd=stage):
        folders.sort(key=os.fsencode)
        for name in folders:
            os.chmod(name, modes | 0o700, dir_fd=folder)
        for name in sorted(files, key=os.fsencode):
            mode = os.stat(name, dir_fd=folder).st_mode
            if stat.S_ISREG(mode):
                os.chmod(name, modes & (0o777 if mode & stat.S_IXUSR else 0o666), dir_fd=folder)
                yield folder, (*PurePosixPath(above).parts, name)
            else:
                os.unlink(name, dir_fd=folder)


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports that something was moved."""

    report: Callable[[], None]
    silent_s: float
    """The time without a report after which the parent gives up."""

    def work(self, call: Callable[[], object], size_bytes: int) -> None:
        """Report progress during a call that reports none itself, for as long as a slow disk needs for this size."""
        every_s = self.silent_s / REPORTS_WHILE_SILENT
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(call)
            for _ in range(math.ceil(size_bytes / SLOWEST_BYTES_PER_S / every_s)):
                if wait([working], every_s).done:
                    break
                self.report()
        working.result()


class StagedFile(io.FileIO):
    """A file of a result. Its digest is computed while it is read."""

    def __init__(self, folder: int, name: str, progress: Progress) -> None:
        super().__init__(openat.open_plain(folder, name))
        self.folder, self.file_name, self.progress = folder, name, progress
        self.size_bytes = os.fstat(self.fileno()).st_size
        self.rewind()

    def rewind(self) -> None:
        """Return to the first byte."""
        self.seek(0)
        self.digest, self.read_bytes = hashlib.sha256(), 0

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size) or b""
        self.digest.update(chunk)
        self.read_bytes += len(chunk)
        if chunk:
            self.progress.report()
        return chunk
