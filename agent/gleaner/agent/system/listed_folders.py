"""Open a folder that an admin lists: a target for results, a folder from which inputs are read, or one that jobs mount.

The path is walked from the root by descriptors, and no symbolic link is followed. Every folder on the way belongs to
root, or to the agents' account where that is enough, and others cannot replace what is in it. So no user can put another
folder in the place of the listed one, neither before a check nor after it.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator, Sequence

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC  # this also mounts what is mounted on demand
_Identity = tuple[int, int]
_NOTHING = (-1, -1)
"""The identity of a folder that is not there."""


class FolderRefused(Exception):
    """A listed folder is not there, or must not be used; one line without its path."""


def open_listed(path: str, *, owners: Collection[int], own: Sequence[str] = (), for_writing: bool = False) -> int:
    """Return a descriptor (`O_PATH`) of the folder. Raises `FolderRefused`.

    The folders on the way may belong to `owners`. A folder that is only read may be anybody's at its end. A folder
    inside one of `own`, which are Gleaner's own folders, or above one, is refused.
    """
    try:
        with contextlib.ExitStack() as opened:
            folder, way = _step("/", None, opened), list[_Identity]()
            for name in filter(None, path.split("/")):
                is_shared = _is_shared(folder, owners)
                folder = _step(name, folder, opened)
                way.append(_identity(os.fstat(folder)))
                if is_shared and os.fstat(folder).st_uid not in owners:  # its owner can replace it
                    raise FolderRefused(_replaceable(folder, owners))
            if for_writing and _is_shared(folder, owners):
                raise FolderRefused(_replaceable(folder, owners))
            for one in own:
                places = list(_places(one))
                if _identity(os.fstat(folder)) in places or not set(places[:1]).isdisjoint(way):
                    raise FolderRefused(f"it is in the way of {one}, which is Gleaner's own")
            return os.dup(folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise FolderRefused("it leads through a file or a symbolic link: list the folder itself") from error
        raise FolderRefused(f"it cannot be entered: {error.strerror}") from error


def _step(name: str, folder: int | None, opened: contextlib.ExitStack) -> int:
    below = os.open(name, _STEP, dir_fd=folder)
    opened.callback(os.close, below)
    return below


def _is_shared(folder: int, owners: Collection[int]) -> bool:
    """Return True if others can add to the folder, but not replace what is there. Raises `FolderRefused` if they can."""
    facts = os.fstat(folder)
    others_write = bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if facts.st_uid not in owners or (others_write and not facts.st_mode & stat.S_ISVTX):
        raise FolderRefused(_replaceable(folder, owners))
    return others_write


def _replaceable(folder: int, owners: Collection[int]) -> str:
    whose = "root's" if set(owners) == {0} else "root's or Gleaner's"
    return f"others could replace it: {os.readlink(f'/proc/self/fd/{folder}')} is not {whose} alone"


def _places(path: str) -> Iterator[_Identity]:
    """Yield the identity of the file of this path, wherever its links lead, and of all folders above it."""
    place = os.path.realpath(path)
    while True:
        try:
            yield _identity(os.stat(place))
        except FileNotFoundError:
            yield _NOTHING
        if place == "/":
            return
        place = os.path.dirname(place)


def _identity(facts: os.stat_result) -> _Identity:
    return facts.st_dev, facts.st_ino
