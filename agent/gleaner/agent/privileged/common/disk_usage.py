"""Count what a folder takes on the disk, in bounded time and memory, whatever happens in the folder meanwhile.

Every step starts at an open folder and follows no link; only folders are opened. The count stops as soon as it has
passed its limits, so that a folder with very many files costs no more than one that is just too large.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
import time
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = 200
"""The most folders on the way that are held open; those above them are found again from below."""
_MOST_TRIES = 1000
"""The most searches, in one count, for folders that were renamed meanwhile."""
_LOOK_EVERY = 256
_BLOCK_BYTES = 512
MOST_INODES = 10_000_000


class Taken(NamedTuple):
    """The room that was counted: all that the folder takes if `is_whole`, else a lower bound."""

    size_bytes: int = 0
    inodes: int = 0
    is_whole: bool = True

    def plus(self, other: Taken) -> Taken:
        """Return the sum of both."""
        return Taken(self.size_bytes + other.size_bytes, self.inodes + other.inodes, self.is_whole and other.is_whole)


def taken(
    folder: str, *, within_s: float, most_bytes: int | None = None, most_inodes: int = MOST_INODES, own: bool = False
) -> Taken:
    """Count the folder and all that is in it. Return zeros if there is no such folder.

    A file with several names counts once; holes do not count, nor does what is mounted there. With `own`, a folder of
    one's own whose mode keeps even its owner out is opened for the time of the count.
    """
    try:
        top = os.lstat(folder)
    except FileNotFoundError:
        return Taken()
    except OSError:
        return Taken(is_whole=False)
    count = _Count(top, most_bytes, most_inodes, time.monotonic() + within_s, own=own)
    try:
        count.enter(None, folder)
        while count.levels and count.goes_on():
            count.step()
    finally:
        count.close()
    return Taken(count.size_bytes, count.inodes, count.is_whole)


class _Level:
    def __init__(self, folder: int, locked: tuple[int, int] | None = None) -> None:
        self.folder: int | None = folder
        self.waiting: list[tuple[str, int]] = []
        """The folders in this one that have not been entered: names and inodes."""
        self.locked = locked
        """Of a folder whose mode was changed: a descriptor through which to change it back, and the original mode."""
        facts = os.fstat(folder)
        self.is_itself = (facts.st_dev, facts.st_ino)


class _Count:
    def __init__(
        self, top: os.stat_result, most_bytes: int | None, most_inodes: int, end_s: float, *, own: bool
    ) -> None:
        self.size_bytes, self.inodes, self.is_whole = _BLOCK_BYTES * top.st_blocks, 1, True
        self.levels: list[_Level] = []
        self._tries = self._locked = 0
        self._device, self._several = top.st_dev, set[int]()
        self._most_bytes, self._most_inodes, self._end_s, self._own = most_bytes, most_inodes, end_s, own

    def goes_on(self) -> bool:
        """Return True if there is time, and anything left to find out."""
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
        if not here.waiting:
            self._leave()
            return
        if here.folder is None or self._locked > _HELD:  # it cannot be found again, or too many would be held open
            here.waiting.clear()
            self.is_whole = False
            return
        name, inode = here.waiting.pop()
        if not self.enter(here.folder, name) and (again := self._other_name(here, inode)) is not None:
            here.waiting.append((again, inode))

    def enter(self, parent: int | None, name: str) -> bool:
        """Open a folder and count what is in it. Return False if there is no folder of this name by now."""
        try:
            level = _Level(os.open(name, _FOLDER, dir_fd=parent))
        except PermissionError:
            opened = self._unlocked(parent, name) if self._own else None
            if opened is None:
                self.is_whole = False
                return True
            level = opened
            self._locked += 1
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            self.is_whole = False
            return True
        if len(self.levels) >= _HELD:
            above = self.levels[-_HELD]
            if above.folder is not None:
                os.close(above.folder)
                above.folder = None
        self.levels.append(level)
        try:
            self._look_through(level)
        except PermissionError:  # the folder can be listed, but not searched
            self._look_through_anyway(level)
        except OSError:
            self.is_whole = False
        return True

    def _look_through_anyway(self, level: _Level) -> None:
        if level.locked is not None or level.folder is None or not self._own:
            self.is_whole = False
            return
        mode = stat.S_IMODE(os.fstat(level.folder).st_mode)
        level.locked = (os.dup(level.folder), mode)
        self._locked += 1
        try:
            os.fchmod(level.folder, mode | 0o500)
            self._look_through(level)
        except OSError:
            self.is_whole = False

    def _other_name(self, level: _Level, inode: int) -> str | None:
        """Return the name that a folder has by now; None if it has gone. A job may rename it without an end."""
        self._tries += 1
        if self._tries > _MOST_TRIES:
            self.is_whole = False
            return None
        try:
            with os.scandir(level.folder) as found:
                return next((entry.name for entry in found if entry.inode() == inode), None)
        except OSError:
            self.is_whole = False
            return None

    def _look_through(self, level: _Level) -> None:
        before = (self.size_bytes, self.inodes)
        with os.scandir(level.folder) as found:
            for number, entry in enumerate(found, 1):
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:  # all of it or nothing: the folder will be looked through once more
                    self.size_bytes, self.inodes = before
                    level.waiting.clear()
                    raise
                self._one(level, entry.name, facts)
                if number % _LOOK_EVERY == 0 and not self.goes_on():
                    return

    def _one(self, level: _Level, name: str, facts: os.stat_result) -> None:
        if facts.st_dev != self._device:
            return
        if stat.S_ISDIR(facts.st_mode):
            level.waiting.append((name, facts.st_ino))
        elif facts.st_nlink > 1:
            if facts.st_ino in self._several:
                return
            self._several.add(facts.st_ino)
        self.inodes += 1
        self.size_bytes += _BLOCK_BYTES * facts.st_blocks

    @staticmethod
    def _unlocked(parent: int | None, name: str) -> _Level | None:
        """Open a folder in spite of its mode. Return None if that is impossible, or if it is no folder."""
        try:
            itself = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return None
        locked = (itself, stat.S_IMODE(os.fstat(itself).st_mode))
        try:
            if stat.S_ISDIR(os.fstat(itself).st_mode):
                # No mode can be set through an O_PATH descriptor; this link leads to the very folder it stands for.
                os.chmod(f"/proc/self/fd/{itself}", locked[1] | 0o500)
                opened = os.open(f"/proc/self/fd/{itself}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                return _Level(opened, locked)
        except OSError:
            pass
        _lock(locked)
        return None

    def _leave(self) -> None:
        left = self.levels.pop()
        if self.levels and left.folder is not None and self.levels[-1].folder is None:
            self._find_again(self.levels[-1], left.folder)
        if left.folder is not None:
            os.close(left.folder)
        if left.locked is not None:
            self._locked -= 1
            _lock(left.locked)

    def _find_again(self, level: _Level, below: int) -> None:
        """Open the folder above again, unless the one below was moved away from it."""
        try:
            level.folder = os.open("..", _FOLDER, dir_fd=below)
            facts = os.fstat(level.folder)
            if (facts.st_dev, facts.st_ino) == level.is_itself:
                return
            os.close(level.folder)
        except OSError:
            pass
        level.folder, self.is_whole = None, False

    def close(self) -> None:
        """Close all folders, and give them the modes that they had."""
        while self.levels:
            self._leave()


def _lock(locked: tuple[int, int]) -> None:
    """Give a folder its mode back, unless somebody has changed it meanwhile."""
    itself, mode = locked
    try:
        if stat.S_IMODE(os.fstat(itself).st_mode) == mode | 0o500:
            os.chmod(f"/proc/self/fd/{itself}", mode)
    except OSError:
        pass
    finally:
        os.close(itself)
