"""Remove folders of root's in which others could write: a container's layer, an unpacked container image.

Their content may be as deep as its maker liked, so nothing here recurses or puts long paths together. What is mounted
in them (a job's folder!) must survive, so each folder is renamed to the top before anything in it is touched: the
kernel renames no mount point, and nothing into another file system.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNMOUNT_WITHIN_S = 30
_OCTAL = re.compile(r"\\([0-7]{3})")


def remove(path: str) -> bool:
    """Remove a folder and all in it. Return True if it is gone. What cannot be removed stays, with the way to it."""
    try:
        unmount_below(path)
        top = os.open(path, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def unmount_below(path: str) -> None:
    """Unmount all that is mounted below a path: CRIU leaves the machine's cgroups mounted there when it is killed."""
    for place in sorted((place for place in mount_points("self") if place.startswith(f"{path}/")), reverse=True):
        subprocess.run(["umount", "-l", place], check=False, timeout=_UNMOUNT_WITHIN_S)


def mount_id(descriptor: int) -> int:
    """Return the number of the mount through which a descriptor was opened.

    Two mounts of one disk have different numbers, though they have the same device.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def mount_points(process: int | str) -> list[str]:
    """Return the paths at which something is mounted, as a process sees them, in the order of mounting."""
    return [place for place, *_ in _mounts(process)]


def mount_options(place: str, kind: str) -> dict[str, str]:
    """Return the options of the file system of this kind that is mounted at a path; none if none is (proc(5))."""
    at_place = [(system, options) for at, system, options in _mounts("self") if at == place]
    if not at_place or at_place[-1][0] != kind:  # the last one hides those before it
        return {}
    words = at_place[-1][1].split(",")
    return {name: _plain(value) for name, _, value in (word.partition("=") for word in words)}


def _mounts(process: int | str) -> Iterator[tuple[str, str, str]]:
    """Yield place, kind and options of each mounted file system, as a process sees them (proc(5), mountinfo)."""
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            about, _, mounted = line.partition(" - ")
            system, _, options = mounted.split(" ")[:3]
            yield _plain(about.split()[4]), system, options.rstrip("\n")


def _plain(path: str) -> str:
    """Return a path as it is; mountinfo writes its blanks as octal numbers."""
    return _OCTAL.sub(lambda found: chr(int(found.group(1), 8)), path)


def _empty(top: int) -> None:
    """Remove all in a folder that only root can reach. Raises `OSError` when something is left."""
    failed: OSError | None = None
    mark, number = os.urandom(6).hex(), 0
    waiting = os.listdir(top)
    while waiting:
        name = waiting.pop()
        try:
            if _is_unlinked(name, top):
                continue
            number += 1
            moved = f".{mark}-{number}"
            os.rename(name, moved, src_dir_fd=top, dst_dir_fd=top)
            folder = os.open(moved, _FOLDER, dir_fd=top)
            try:
                for inside in os.listdir(folder):
                    if not _is_unlinked(inside, folder):
                        number += 1
                        up = f".{mark}-{number}"
                        os.rename(inside, up, src_dir_fd=folder, dst_dir_fd=top)
                        waiting.append(up)
            finally:
                os.close(folder)
            os.rmdir(moved, dir_fd=top)
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def _is_unlinked(name: str, folder: int) -> bool:
    """Unlink what has this name. Return False if it is a folder, which stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True
