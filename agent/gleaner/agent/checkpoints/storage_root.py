"""Open the storage's root folder, and translate the system's errors into those of the storage."""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.checkpoints.interface import StorageError, StorageFull
from gleaner.agent.system.openat import closing_fd, entries

DRAFTS = ".drafts"
STORAGE_ID = ".storage-id"
"""A file with a number that is unique to the folder.

If a machine finds the file, its path leads to this folder, and not to another one of the same name.
"""
_LONGEST_ID = 64
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translate_errors(root: Path, missing: str = "is the file system mounted?") -> Generator[None]:
    """Turn the system's errors into `StorageError`. This is the only place that does so."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            line = f"the storage folder {root} is full ({error.strerror}): free some space or raise the quota"
            raise StorageFull(line) from error
        hint = f": {missing}" if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) else ""
        raise StorageError(f"the storage folder {root} fails ({error.strerror}){hint}") from error


@dataclass(frozen=True, slots=True)
class StorageNumber:
    """The folder's unique number, and the file that contains it. A copy of the folder has it in another file."""

    id: str = ""
    """Empty if the folder was set up before numbers were introduced."""
    inode: int = 0
    changed_s: float = 0.0
    """The time of the file's last change (ctime), in seconds since the epoch. A copy cannot preserve it."""


def storage_number(root: Path) -> StorageNumber:
    """Return the folder's unique number. Raises `StorageError`."""
    with translate_errors(root):
        try:
            with (root / STORAGE_ID).open(encoding="ascii", errors="replace") as file:
                facts = os.fstat(file.fileno())
                return StorageNumber(file.read(_LONGEST_ID).strip(), facts.st_ino, facts.st_ctime)
        except FileNotFoundError:
            return StorageNumber()


@contextmanager
def open_root(root: Path) -> Generator[int]:
    """Yield the storage's root, if it exists, is set up, and can be written to only by its owner."""
    with translate_errors(root):
        file = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing_fd(file):
        with translate_errors(root):
            mode = os.fstat(file).st_mode
            is_set_up = DRAFTS in entries(file)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StorageError(f"others may write into the storage folder {root}: run `chmod 700 {root}`")
        if not is_set_up:
            raise StorageError(
                f"{root} is not a storage folder: is the file system mounted? For a new one: `glean control prepare`"
            )
        yield file
