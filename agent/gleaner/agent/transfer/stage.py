"""A result that is unpacked in a folder of its own, which nobody else can enter, on its way to its target."""

import hashlib
import io
import math
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gleaner.agent.system import openat

Names = tuple[str, ...]
SLOWEST_BYTES_PER_S = 2**20
"""A file system that syncs fewer bytes in a second, or a server that moves fewer, hangs."""
REPORTS_WHILE_SILENT = 4
"""So often progress is reported in the time in which something must be heard."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports that something was moved."""

    report: Callable[[], None]
    silent_s: float
    """Who hears nothing for so long gives up."""

    @contextmanager
    def while_working(self, size_bytes: int) -> Generator[None]:
        """Report while a call works that reports nothing itself, for as long as a slow disk needs for the size."""
        is_done, every_s = threading.Event(), self.silent_s / REPORTS_WHILE_SILENT

        def repeat() -> None:
            for _ in range(math.ceil(size_bytes / SLOWEST_BYTES_PER_S / every_s)):
                if is_done.wait(every_s):
                    return
                self.report()

        repeating = threading.Thread(target=repeat, daemon=True)
        repeating.start()
        try:
            yield
        finally:
            is_done.set()
            repeating.join()


class StagedFile(io.FileIO):
    """A file of a result. Its digest is computed while it is read."""

    def __init__(self, folder: int, name: str, progress: Progress) -> None:
        super().__init__(openat.open_plain(folder, name))
        self.folder, self.file_name, self.progress = folder, name, progress
        self.size_bytes = os.fstat(self.fileno()).st_size
        self.rewind()

    def rewind(self) -> None:
        """Begin at the first byte again."""
        self.seek(0)
        self.digest, self.read_bytes = hashlib.sha256(), 0

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size) or b""
        self.digest.update(chunk)
        self.read_bytes += len(chunk)
        if chunk:
            self.progress.report()
        return chunk


@contextmanager
def stage_folder(parent: int, job: int, number: int) -> Generator[int]:
    """Make the folder for a try to deliver a job's result, and remove it at the end. Those of older tries go, too."""
    remove_stages(parent, job)
    name = f".gleaner-{job}-{number}"
    os.mkdir(name, 0o700, dir_fd=parent)
    try:
        with openat.walk(parent, (name,)) as folder:
            yield folder
    finally:
        remove_stages(parent, job, str(number))


def remove_stages(parent: int, job: int, number: str = "") -> None:
    """Remove the folders of all tries to deliver a job's result, or of this one."""
    for name in openat.entries(parent):
        if name.startswith(f".gleaner-{job}-{number}"):
            with suppress(OSError):  # somebody else's folder may stay
                _change_mode(parent, name, 0o700)
                with openat.walk(parent, (name,)) as folder:
                    openat.empty(folder)
                os.rmdir(name, dir_fd=parent)


def staged_files(stage: int) -> Iterator[tuple[int, Names]]:
    """Yield the files in a fixed order, each with its open folder. Links and pipes are passed over.

    What the job has forbidden its owner is allowed again: the result is to be read and moved.
    """
    waiting: list[Names] = [()]
    while waiting:
        above = waiting.pop()
        with openat.walk(stage, above) as folder:
            os.fchmod(folder, 0o700)
            inner: list[Names] = []
            for name in sorted(openat.entries(folder), key=os.fsencode):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    _change_mode(folder, name, 0o700)
                    inner.append((*above, name))
                elif stat.S_ISREG(mode):
                    _change_mode(folder, name, 0o755 if mode & stat.S_IXUSR else 0o644)
                    yield folder, (*above, name)
            waiting.extend(reversed(inner))


def list_name(job: int) -> str:
    """Return the name of the list of a job's files, which comes last.

    >>> list_name(7)
    'job-7.sha256'
    """
    return f"job-{job}.sha256"


def list_line(digest: str, names: Names) -> bytes:
    r"""Return a file's line in a list that `sha256sum --check` reads.

    >>> list_line("0123", ("hist", "a.root")), list_line("0123", ("a\nb",))
    (b'0123  hist/a.root\n', b'\\0123  a\\nb\n')
    """
    plain = os.fsencode("/".join(names))
    escaped = plain.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != plain else b"") + digest.encode() + b"  " + escaped + b"\n"


def _change_mode(folder: int, name: str, mode: int) -> None:
    path_only = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with openat.closing_fd(os.open(name, path_only, dir_fd=folder)) as itself:
        openat.change_mode(itself, mode)
