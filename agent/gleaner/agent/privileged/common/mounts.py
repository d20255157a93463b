"""Read the mounted file systems, and remove folders even if something is mounted below them."""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from ...system import openat

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNMOUNT_WITHIN_S = 30
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system, as in the kernel's table (proc(5), mountinfo)."""

    place: str
    kind: str
    options: str  # the options of the file system, separated by commas


def remove_tree(path: str) -> bool:
    """Remove a folder that root owns and others could write to, such as a container's layer or an unpacked image.

    Return True if it no longer exists. Entries that cannot be removed stay, and so do folders that are mounted inside,
    such as a job's folder.
    """
    try:
        unmount_below(path)
        with openat.closing_fd(os.open(path, openat.FOLDER)) as top:
            openat.empty(top)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def unmount_below(path: str) -> None:
    """Unmount everything below a path. CRIU leaves the machine's cgroups mounted there when it is killed."""
    for place in sorted((place for place in mount_points("self") if place.startswith(f"{path}/")), reverse=True):
        subprocess.run(["umount", "-l", place], check=False, timeout=_UNMOUNT_WITHIN_S)


def mount_id(descriptor: int) -> int:
    """Return the number of the mount through which a descriptor was opened.

    Two mounts of one disk have different numbers, though they have the same device.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def mount_points(process: int | str) -> list[str]:
    """Return the paths of all mount points, as a process sees them, in the order of mounting."""
    return [mount.place for mount in parse(table(process))]


def mount_options(place: str, kind: str) -> dict[str, str]:
    """Return the options of the file system of this kind that is mounted at a path, or nothing (proc(5))."""
    at_place = [mount for mount in parse(table()) if mount.place == place]
    if not at_place or at_place[-1].kind != kind:  # the last one hides the earlier ones
        return {}
    words = at_place[-1].options.split(",")
    return {name: _plain(value) for name, _, value in (word.partition("=") for word in words)}


def table(process: int | str = "self") -> str:
    """Return the kernel's table of mounts, as a process sees it."""
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def parse(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts in the kernel's table, in the order of mounting."""
    for line in mountinfo.split("\n"):
        mount, _, file_system = line.partition(" - ")
        words, kind_source_options = mount.split(" "), file_system.split(" ")
        if len(words) > 4 and len(kind_source_options) > 2:
            yield Mount(_plain(words[4]), kind_source_options[0], kind_source_options[2])


def _plain(path: str) -> str:
    """Return a path with its blanks, which mountinfo writes as octal escapes."""
    return _OCTAL.sub(lambda octal: chr(int(octal.group(1), 8)), path)
