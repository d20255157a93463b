"""A result that is unpacked in a folder of its own, which nobody else can enter, on its way to its target."""

import hashlib
import math
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress

from gleaner.agent.system import openat

Names = tuple[str, ...]
SLOWEST_BYTES_PER_S = 2**20
"""A file system that syncs fewer bytes in a second, or a server that moves fewer, hangs."""
SAYS_WHILE_SILENT = 4
"""So often progress is said in the time in which something must be heard."""


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
        _remove(parent, name)


def remove_stages(parent: int, job: int) -> None:
    """Remove the folders of all tries to deliver a job's result."""
    for old in openat.entries(parent):
        if old.startswith(f".gleaner-{job}-"):
            with suppress(OSError):  # somebody else's folder may stay
                _remove(parent, old)


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


def read_staged(file: int, progress: Callable[[], None]) -> tuple[str, int]:
    """Read a staged file; return its SHA-256 and its size."""
    hashed, size_bytes = hashlib.sha256(), 0
    while chunk := os.read(file, openat.CHUNK_BYTES):
        hashed.update(chunk)
        size_bytes += len(chunk)
        progress()
    return hashed.hexdigest(), size_bytes


def sync_staged(file: int, size_bytes: int, progress: Callable[[], None], *, say_every_s: float) -> None:
    """Sync a file. Meanwhile progress is said, for as long as a slow disk may need for its size."""
    with while_saying(progress, say_every_s, most_s=size_bytes / SLOWEST_BYTES_PER_S):
        os.fsync(file)


@contextmanager
def while_saying(progress: Callable[[], None], every_s: float, *, most_s: float) -> Generator[None]:
    """Say progress while something works that says nothing itself, for so long at most."""
    is_done = threading.Event()

    def say() -> None:
        for _ in range(math.ceil(most_s / every_s)):
            if is_done.wait(every_s):
                return
            progress()

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    try:
        yield
    finally:
        is_done.set()
        saying.join()
    progress()


def passing_name(job: int, number: int, name: str) -> str:
    """Return the name of a file on a server until it is whole. All tries use two: each removes that of the other.

    So no number of tries leaves more, and an agent that control has given up does not write into the next one's file.

    >>> passing_name(7, 1, "a.root") == passing_name(7, 3, "a.root") != passing_name(7, 2, "a.root")
    True
    >>> passing_name(7, 1, "a.root")
    '.gleaner-7-1-05ac5882be239e64'
    """
    return f".gleaner-{job}-{number % 2}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


def note_name(job: int) -> str:
    """Return the name of a file beside a job's stage folders, for the upload that is under way. It goes with them."""
    return f".gleaner-{job}-upload"


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


def _remove(parent: int, name: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=parent)
        except (IsADirectoryError, PermissionError):
            _change_mode(parent, name, 0o700)
            with openat.walk(parent, (name,)) as folder:
                openat.empty(folder)
            os.rmdir(name, dir_fd=parent)
