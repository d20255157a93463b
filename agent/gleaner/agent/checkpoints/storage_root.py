"""The storage's root folder. This module translates the system's errors into the storage's."""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gleaner.agent.checkpoints.interface import StorageError, StorageFull
from gleaner.agent.system.openat import closing_fd, entries

DRAFTS = ".drafts"
STORAGE_ID = ".storage-id"
"""A file with a number of the folder's own: a machine that has it sees this folder, and no other of that name."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translate_errors(root: Path, missing: str = "is the file system mounted?") -> Generator[None]:
    """Turn the system's errors into the storage's. This is the one place that does so."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            line = f"the storage folder {root} is full ({error.strerror}): free some space or raise the quota"
            raise StorageFull(line) from error
        hint = f": {missing}" if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE) else ""
        raise StorageError(f"the storage folder {root} fails ({error.strerror}){hint}") from error


def storage_id(root: Path) -> str:
    """Return the folder's own number; empty if the folder was set up before there were numbers.

    Raises `StorageError`.
    """
    with translate_errors(root):
        try:
            return (root / STORAGE_ID).read_text("ascii", "replace")[:64].strip()
        except FileNotFoundError:
            return ""


@contextmanager
def open_root(root: Path) -> Generator[int]:
    """Yield the storage's root, if it is there, is set up, and only its owner may write to it."""
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
