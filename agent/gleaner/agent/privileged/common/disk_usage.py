"""Count the disk space and the inodes that a folder uses, in bounded time and memory, even while the folder changes.

Every step starts at an open folder and follows no link, and only folders are opened. The count stops as soon as it has
passed its limits, so a folder with very many files costs no more than one that is just too large. If a folder is
renamed or moved during the count, the result is a lower bound.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
import time
from contextlib import suppress
from typing import NamedTuple

from ...system import openat

_MOST_OPEN = 200
"""The maximum number of folders on the way down that are held open. Those above them are opened again from below."""
_LOOK_EVERY = 256
BLOCK_BYTES = 512
_OPEN_TO_OWNER = stat.S_IRUSR | stat.S_IXUSR
MOST_INODES = 10_000_000


class DiskUse(NamedTuple):
    """The counted space, which is all that the folder takes if `is_whole`, and otherwise a lower bound."""

    size_bytes: int = 0
    inodes: int = 0
    is_whole: bool = True

    def plus(self, other: DiskUse) -> DiskUse:
        """Return the sum of both."""
        return DiskUse(self.size_bytes + other.size_bytes, self.inodes + other.inodes, self.is_whole and other.is_whole)


def count_disk_use(
    folder: str, *, within_s: float, most_bytes: int | None = None, most_inodes: int = MOST_INODES, own: bool = False
) -> DiskUse:
    """Count the folder and everything in it. Return zeros if there is no such folder.

    A file with several names counts once. Holes in files and mounted file systems do not count. With `own`, a folder of
    our own whose mode locks out even its owner is made accessible for the duration of the count.
    """
    try:
        top = os.lstat(folder)
    except FileNotFoundError:
        return DiskUse()
    except OSError:
        return DiskUse(is_whole=False)
    count = _Count(top, most_bytes, most_inodes, time.monotonic() + within_s, own=own)
    try:
        count.enter(None, folder)
        while count.levels and count.goes_on():
            count.step()
    finally:
        while count.levels:
            count.leave()
    return DiskUse(count.size_bytes, count.inodes, count.is_whole)


class _Level:
    def __init__(self, folder: int, mode: int | None) -> None:
        self.folder: int | None = folder
        self.mode = mode
        """The folder's original mode, if the mode was changed for the count."""
        self.facts = os.fstat(folder)
        self.waiting: list[tuple[str, int]] = []
        """The folders in this one that have not been entered: names and inodes."""


class _Count:
    def __init__(
        self, top: os.stat_result, most_bytes: int | None, most_inodes: int, end_s: float, *, own: bool
    ) -> None:
        self.size_bytes, self.inodes, self.is_whole = BLOCK_BYTES * top.st_blocks, 1, True
        self.levels: list[_Level] = []
        self._device, self._several = top.st_dev, set[int]()
        self._most_bytes, self._most_inodes, self._end_s, self._own = most_bytes, most_inodes, end_s, own

    def goes_on(self) -> bool:
        """Return True if there is time left and no limit has been passed."""
        is_over = self.inodes > self._most_inodes or (
            self._most_bytes is not None and self.size_bytes > self._most_bytes
        )
        if is_over or time.monotonic() > self._end_s:
            self.is_whole = False
            return False
        return True

    def step(self) -> None:
        """Enter the next folder below, or leave this one."""
        here = self.levels[-1]
        if here.folder is not None and here.waiting:
            name, inode = here.waiting.pop()
            if not self.enter(here.folder, name):  # it was removed, or renamed
                self.is_whole = self.is_whole and not _holds(here.folder, inode)
        else:
            self.is_whole = self.is_whole and not here.waiting
            self.leave()

    def enter(self, parent: int | None, name: str) -> bool:
        """Open a folder and count its entries. Return False if there is no longer a folder of this name."""
        try:
            level = self._open(parent, name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            self.is_whole = False
            return True
        if len(self.levels) >= _MOST_OPEN:
            above = self.levels[-_MOST_OPEN]
            if above.folder is not None:
                os.close(above.folder)
                above.folder = None
        self.levels.append(level)
        try:
            self._scan(level)
        except OSError:
            self.is_whole = False
        return True

    def _open(self, parent: int | None, name: str) -> _Level:
        if not self._own:
            return _Level(os.open(name, openat.FOLDER, dir_fd=parent), None)
        with openat.closing_fd(os.open(name, os.O_PATH | openat.FOLDER, dir_fd=parent)) as itself:
            link = f"/proc/self/fd/{itself}"  # it leads to the very folder that the descriptor stands for
            mode = stat.S_IMODE(os.fstat(itself).st_mode)
            if mode & _OPEN_TO_OWNER == _OPEN_TO_OWNER:
                return _Level(os.open(link, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), None)
            openat.change_mode(itself, mode | _OPEN_TO_OWNER)
            return _Level(os.open(link, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode)

    def _scan(self, level: _Level) -> None:
        with os.scandir(level.folder) as entries:
            for number, entry in enumerate(entries, 1):
                with suppress(FileNotFoundError):
                    self._count_entry(level, entry.name, entry.stat(follow_symlinks=False))
                if number % _LOOK_EVERY == 0 and not self.goes_on():
                    return

    def _count_entry(self, level: _Level, name: str, facts: os.stat_result) -> None:
        if facts.st_dev != self._device:
            return
        if stat.S_ISDIR(facts.st_mode):
            level.waiting.append((name, facts.st_ino))
        elif facts.st_nlink > 1:
            if facts.st_ino in self._several:
                return
            self._several.add(facts.st_ino)
        self.inodes += 1
        self.size_bytes += BLOCK_BYTES * facts.st_blocks

    def leave(self) -> None:
        """Close the folder and restore its mode. Open the folder above again, unless this one has moved."""
        level = self.levels.pop()
        if level.folder is None:
            return
        if self.levels and self.levels[-1].folder is None:
            self.levels[-1].folder = _above(level.folder, self.levels[-1].facts)
        if level.mode is not None:
            with suppress(OSError):
                if stat.S_IMODE(os.fstat(level.folder).st_mode) == level.mode | _OPEN_TO_OWNER:  # unchanged by others
                    os.fchmod(level.folder, level.mode)
        os.close(level.folder)


def _holds(folder: int, inode: int) -> bool:
    """Return True if an entry of the folder has this inode, or if the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.inode() == inode for entry in entries)
    except OSError:
        return True


def _above(folder: int, expected: os.stat_result) -> int | None:
    """Return a descriptor of the folder above, or None if that is no longer the expected one."""
    try:
        parent = os.open("..", openat.FOLDER, dir_fd=folder)
    except OSError:
        return None
    if os.path.samestat(os.fstat(parent), expected):
        return parent
    os.close(parent)
    return None
