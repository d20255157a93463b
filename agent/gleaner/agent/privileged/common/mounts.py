"""Mounted file systems, and how folders are removed below which something may be mounted."""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
import subprocess
from typing import TYPE_CHECKING

from ...system import openat

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNMOUNT_WITHIN_S = 30
_OCTAL = re.compile(r"\\([0-7]{3})")


def remove_tree(path: str) -> bool:
    """Remove a folder of root's in which others could write: a container's layer, an unpacked container image.

    Return True if it is gone. What cannot be removed stays, and so does what is mounted in it, like a job's folder.
    """
    try:
        unmount_below(path)
        with openat.opened(os.open(path, openat.FOLDER)) as top:
            openat.empty(top)
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
