"""Remove all symbolic links that CRIU could follow while it restores a user job.

CRIU opens, as root, the paths that are named in its images, and recreates some of the files, partly in the node's own
mount namespace. If the user has replaced a folder with a link since the save, the link could lead CRIU to any file of
the node. The paths came from the kernel, so they contained no links, and a restore needs none. So before CRIU starts,
all links are removed from the job's folder and from the container's written layer. The links are restored before the
processes continue. Until then the folders belong to root, so the user cannot add anything to them, whatever descriptors
the user has open.
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
import stat
from contextlib import suppress
from typing import Any

from ...system import openat
from . import mounts

_FILE = "links.json"
_ACL = "system.posix_acl_access"
_MOST = 1_000_000

FolderRecord = dict[str, Any]
"""The changes to one folder, as JSON.

`at` is the folder, and `folders` and `links` contain everything that is put back.
"""


class Foreign(Exception):
    """The folder contains something that no job of the user could have made. The message is one line."""


def freeze(place: str, uid: int, *, disk: str) -> FolderRecord:
    """Remove the links from a user's folder, and make root its owner.

    All changes are undone before `Foreign` is raised. `disk` is a folder that belongs to root, and the user's folder
    must be on the same file system. A file system that a user mounts could report anything about its files, owners and
    links, even after all of them have been checked.
    """
    record: FolderRecord = {"at": place, "folders": [], "links": []}
    with openat.closing_fd(os.open(place, openat.FOLDER)) as top:
        try:
            on, waiting = (os.lstat(disk).st_dev, mounts.mount_id(top)), [""]
            while waiting:
                # Every folder on the way belongs to root by now, and was checked to be a real folder.
                waiting += _freeze_folder(top, waiting.pop(), record, uid=uid, on=on)
        except (OSError, Foreign) as error:
            thaw(record)
            if isinstance(error, Foreign):
                raise
            raise Foreign(f"the job's folder cannot be looked through: {error}") from error
    return record


def _freeze_folder(top: int, path: str, record: FolderRecord, *, uid: int, on: tuple[int, int]) -> list[str]:
    """Make root the owner of one folder, and remove its links. Return its subfolders."""
    with openat.closing_fd(os.open(path or ".", openat.FOLDER, dir_fd=top)) as folder:
        facts = os.fstat(folder)
        if mounts.mount_id(folder) != on[1]:
            raise Foreign(_about_mount(path))
        _must_be_theirs(facts, path, uid=uid, device=on[0])
        times = [facts.st_atime_ns, facts.st_mtime_ns]
        record["folders"].append([path, facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode), times])
        os.fchown(folder, 0, 0)
        os.fchmod(folder, _mode_for_root_alone(folder, facts))
        below: list[str] = []
        for name in os.listdir(folder):
            inside = f"{path}/{name}" if path else name
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            _must_be_theirs(facts, inside, uid=uid, device=on[0])
            if len(record["folders"]) + len(record["links"]) + len(below) > _MOST:
                raise Foreign(f"there are more than {_MOST} folders and links in the job's folder")
            if stat.S_ISDIR(facts.st_mode):
                below.append(inside)
            elif stat.S_ISLNK(facts.st_mode):
                record["links"].append([inside, os.readlink(name, dir_fd=folder), facts.st_uid, facts.st_gid])
                os.unlink(name, dir_fd=folder)
        return below


def _mode_for_root_alone(folder: int, facts: os.stat_result) -> int:
    """Return a folder's mode changed so that only its owner, now root, can write in it.

    The other bits stay, because CRIU compares them.
    """
    forbidden = 0o022 if _ACL in os.listxattr(folder) else 0o002
    return stat.S_IMODE(facts.st_mode) & ~forbidden


def _must_be_theirs(facts: os.stat_result, path: str, *, uid: int, device: int) -> None:
    if facts.st_dev != device:
        raise Foreign(_about_mount(path))
    if facts.st_uid != uid:  # for example another user's file, to which the user has made a hard link
        raise Foreign(f"{path[:80]!r} in the job's folder belongs to another user")


def _about_mount(path: str) -> str:
    return (
        f"something is mounted at {path[:80]!r} in the job's folder"
        if path
        else "something is mounted on the job's folder"
    )


def thaw(record: FolderRecord) -> None:
    """Restore all links, owners, modes and times."""
    with openat.closing_fd(os.open(record["at"], openat.FOLDER)) as top:
        for path, target, uid, gid in record["links"]:
            with suppress(OSError, ValueError):  # the place is taken or gone, or the name is invalid
                _link(top, path, target, uid=uid, gid=gid)
        for path, uid, gid, mode, times in reversed(record["folders"]):
            with openat.closing_fd(os.open(path or ".", openat.FOLDER, dir_fd=top)) as folder:
                os.fchown(folder, uid, gid)
                os.fchmod(folder, mode)
                os.utime(folder, ns=(times[0], times[1]))


def _link(top: int, path: str, target: str, *, uid: int, gid: int) -> None:
    """Make one link, replacing any file of that name."""
    *above, name = path.split("/")
    with openat.walk(top, above) as at:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        os.symlink(target, name, dir_fd=at)
        os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)


def write_records(own: str, *record: FolderRecord) -> None:
    """Record the changes in a folder that belongs to root, for the program that undoes them."""
    with open(os.path.join(own, _FILE), "w", encoding="utf-8") as file:
        json.dump(record, file)


def put_back(own: str) -> None:
    """Undo the recorded changes, and delete the record."""
    if has_records(own):
        for record in read_records(own):
            thaw(record)
        os.unlink(os.path.join(own, _FILE))


def has_records(own: str) -> bool:
    """Return True if changes are recorded there."""
    return os.path.exists(os.path.join(own, _FILE))


def read_records(own: str) -> list[FolderRecord]:
    """Return the changes that are recorded there. Raises `FileNotFoundError`."""
    with open(os.path.join(own, _FILE), encoding="utf-8") as file:
        records: list[FolderRecord] = json.load(file)
    return records
