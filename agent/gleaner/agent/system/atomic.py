"""Write a file completely or not at all, so that it survives a power failure.

The content is written to a draft beside the file, with `.new` after its name, and the draft is renamed. A file that
must survive a power failure is synced before the rename, and its folder after it, because a rename reaches the disk
only with the folder. Before you delete a file because its successor exists, sync the successor's folder.

Root's programs, the Slurm admin service, the agent and control all write through this module.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
from typing import Union

from . import openat

StrPath = Union[str, "os.PathLike[str]"]


def write(path: StrPath, content: bytes, *, mode: int = 0o600, with_folder: bool = True) -> None:
    """Write a whole file, which is on the disk when this returns.

    If you write several files, sync their folder once, after the last one, and set `with_folder` to False.
    """
    _write_whole(path, content, mode=mode, sync=True)
    if with_folder:
        sync_folder(os.path.dirname(path) or ".")


def replace(path: StrPath, content: bytes, *, mode: int = 0o600) -> None:
    """Write a whole file without waiting for the disk, so that a power failure might leave the file empty."""
    _write_whole(path, content, mode=mode, sync=False)


def _write_whole(path: StrPath, content: bytes, *, mode: int, sync: bool) -> None:
    draft = f"{os.fspath(path)}.new"
    with contextlib.suppress(FileNotFoundError):  # a writer that was killed might have left its draft
        os.unlink(draft)
    file = os.open(draft, openat.NEW_FILE, 0o600)
    try:
        with os.fdopen(file, "wb") as writing:
            os.fchmod(writing.fileno(), mode)
            writing.write(content)
            writing.flush()
            if sync:
                os.fsync(writing.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the draft would take space on a full disk
            os.unlink(draft)
        raise


def sync_folder(folder: StrPath) -> None:
    """Sync a folder, so that the names in it are on the disk."""
    with openat.closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as file:
        os.fsync(file)


def make_folders(folder: StrPath, *, within: StrPath | None = None) -> None:
    """Make a folder that only its owner can enter, and the missing ones above it, and sync all of them to the disk.

    Raises `FileNotFoundError` if the folder `within` does not exist, because the folders of a storage that is not
    mounted must not be made locally.
    """
    if within is not None and not os.path.isdir(within):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", os.fspath(within))
    missing: list[str] = []
    one = os.fspath(folder)
    while one and not os.path.isdir(one):
        missing.append(one)
        one = os.path.dirname(one)
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, 0o700)
        if not os.path.isdir(one):
            raise FileExistsError(errno.EEXIST, "it is no folder", one)
        sync_folder(os.path.dirname(one) or ".")


def sync_tree(folder: StrPath) -> None:
    """Sync a folder and everything in it to the disk, without following links."""
    for place, _folders, files in os.walk(folder):
        for name in files:
            try:
                file = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:  # for a link, a pipe or an unreadable file, its name suffices
                continue
            with openat.closing_fd(file):
                os.fsync(file)
        sync_folder(place)
