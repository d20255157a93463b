"""Open a folder that an admin lists: a target for results, a source of inputs, or a folder that jobs mount.

The path is walked from the root through descriptors, and no symbolic link is followed. Every folder on the way must
belong to root or, where that suffices, to the agents' account, and others must not be able to replace its entries. So
no user can put another folder in place of the listed one, either before or after a check.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC  # also mounts what is mounted on demand
_STARTS_AT_ROOT = -1  # ignored, because the first name is a whole path
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FolderRefused(Exception):
    """A listed folder does not exist, or must not be used. The message is one line that begins with its path."""


def open_listed(path: str, *, owners: Collection[int], own: Sequence[str] = (), for_writing: bool = False) -> int:
    """Return a descriptor (`O_PATH`) of the folder. Raises `FolderRefused`.

    The folders on the way must belong to `owners`, and no other user can write into them, unless a sticky bit protects
    their entries. If the folder is only read, it can itself belong to any user. A folder inside or above one of `own`,
    which are Gleaner's own folders, is refused.
    """
    names, way, is_shared = ["/", *filter(None, path.split("/"))], list[tuple[int, int]](), False
    try:
        with contextlib.ExitStack() as opened:
            folder = _STARTS_AT_ROOT
            for depth, name in enumerate(names, 1):
                folder = os.open(name, _STEP, dir_fd=folder)
                opened.callback(os.close, folder)
                facts, is_last = os.fstat(folder), depth == len(names)
                is_protected = facts.st_mode & stat.S_ISVTX and not is_last
                is_open = facts.st_mode & _OTHERS_WRITE and not is_protected
                may_be_anybodys = is_last and not for_writing
                if (is_open and not may_be_anybodys) or (
                    facts.st_uid not in owners and (is_shared or not may_be_anybodys)
                ):
                    whose = "root's" if set(owners) == {0} else "root's or Gleaner's"
                    place = os.readlink(f"/proc/self/fd/{folder}")
                    raise FolderRefused(f"{path}: others could replace it: {place} is not {whose} alone")
                is_shared = bool(facts.st_mode & _OTHERS_WRITE)
                way.append((facts.st_dev, facts.st_ino))
            for one in own:
                itself, *above = _identities(one)
                if itself in way or way[-1] in above:
                    raise FolderRefused(f"{path}: it is in the way of {one}, which is Gleaner's own")
            return os.dup(folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FolderRefused(f"{path}: it leads through a file or a link: list the folder itself") from error
        raise FolderRefused(f"{path}: it cannot be entered: {error.strerror}") from error


def _identities(path: str) -> Iterator[tuple[int, int]]:
    """Yield the device and inode of a path's real file and of each folder above it, or (0, 0) for a missing one."""
    real = Path(path).resolve()
    for place in (real, *real.parents):
        try:
            facts = place.stat()
        except FileNotFoundError:
            yield 0, 0
        else:
            yield facts.st_dev, facts.st_ino
