"""Deleted files and folders that a container's processes hold, and the check that CRIU may save them.

CRIU keeps such a file under the path that the kernel tells, and makes it anew by that path when it restores, as root.
The kernel tells the path that the file had. Since then its folders may have been replaced by symbolic links, which
would lead CRIU out of the container. Where a folder is missing, CRIU takes the one above it: so each folder that is
there counts. A container that holds a file with such a link in its path is not saved.

A file that has lost this name and has another one (a hard link) gets a third one from CRIU (--link-remap), under which
CRIU looks for it when it restores. That name travels with the checkpoint only where CRIU itself saves the files: in
/dev/shm, where Python's multiprocessing keeps its semaphores. Elsewhere the container is not saved.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from . import credential_check
from .reasons import Reason, shown

_DELETED = " (deleted)"
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = ("/[aio]", "/secretmem")
"""Files of the kernel's own, which count as having a name and never had one."""


def refused(init_pid: int) -> Reason | None:
    """Return the reason why a container that stands still must not be saved, in one line; None if it may be.

    A process that cannot be looked at must not be saved either.
    """
    try:
        for pid in credential_check.family(init_pid):
            if _has_sent_files(pid):
                return Reason(
                    "it has sent an open file through a socket, which nobody has received yet, so nobody can look at"
                    " it: it can be saved when that has been received",
                    lasts=False,
                )
            for path, has_other_name in sorted(_held(pid)):
                link = link_on_the_way(f"/proc/{pid}/root", path)
                if link is not None:
                    return Reason(
                        f"it holds {shown(path)} open, which is deleted, and {shown(link)} is a symbolic link by now:"
                        " it can be saved when the job has closed the one or removed the other",
                        lasts=True,
                    )
                if has_other_name:
                    return Reason(
                        f"it holds {shown(path)} open, which is deleted, and the file has another name by now (a hard"
                        " link): it can be saved when the job has closed the file",
                        lasts=True,
                    )
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return Reason(
                "it has a file or folder open whose path is too long (4096 bytes): it can be saved without that",
                lasts=True,
            )
        return Reason(f"its deleted files cannot be looked at, so it is not saved: {error}", lasts=False)
    return None


def _held(pid: int) -> set[tuple[str, bool]]:
    """Return the paths of all files and folders that a process holds and that are deleted.

    With each goes True if the file has another name outside of /dev/shm.
    """
    about = f"/proc/{pid}"
    entries = [f"{about}/{name}" for name in ("cwd", "root", "exe")]
    for folder in ("fd", "map_files"):
        entries += [f"{about}/{folder}/{name}" for name in os.listdir(f"{about}/{folder}")]
    return {found for entry in entries for found in _deleted(entry, f"{about}/root")}


def _has_sent_files(pid: int) -> bool:
    """Return True if files are on their way in one of its sockets: CRIU saves them, and no process holds them."""
    about = f"/proc/{pid}"
    for name in os.listdir(f"{about}/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"{about}/fd/{name}").startswith("socket:") and holds_sent_files(about, name):
                return True
    return False


def holds_sent_files(about: str, name: str) -> bool:
    """Return True if files are on their way in the socket `fd/NAME` below `/proc/PID` (unix(7), SCM_RIGHTS)."""
    with open(f"{about}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
        return any(line.startswith("scm_fds:") and line.split()[1] != "0" for line in file)


def _deleted(entry: str, root: str) -> Iterator[tuple[str, bool]]:
    """Yield the path that a deleted file had, without the kernel's remark, and True if the file has another name.

    Yield nothing if the file is not deleted. In /dev/shm another name does not count.
    """
    with suppress(FileNotFoundError):  # a zombie's, or an entry that is no longer mapped
        path = os.readlink(entry)
        if not path.startswith("/"):
            return
        names = os.stat(entry).st_nlink
        if path.endswith(_DELETED):
            gone = path[: -len(_DELETED)]
            yield (
                gone,
                names > 0
                and gone not in _NAMELESS
                and not _is_in_shm(entry, root)
                and not _is_there(entry, root, path),
            )
        elif names == 0:
            yield path, False


def _is_in_shm(entry: str, root: str) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(entry).st_dev == os.lstat(f"{root}/dev/shm").st_dev  # noqa: S108 - the container's own
    return False


def _is_there(entry: str, root: str, path: str) -> bool:
    """Return True for a file that is not deleted, whose name says so itself."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return link_on_the_way(root, path) is None and os.path.samestat(os.stat(entry), os.lstat(root + path))
    return False


def link_on_the_way(root: str, path: str) -> str | None:
    """Return the first symbolic link in the place of one of a path's folders, seen from `root`; None if there is none.

    >>> link_on_the_way("/", "/proc/self/root/x")
    '/proc/self'
    """
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        steps = path.strip("/").split("/")[:-1]
        for number, step in enumerate(steps):
            try:
                below = os.open(step, _PLACE, dir_fd=at)
            except (FileNotFoundError, NotADirectoryError):
                return None
            os.close(at)
            at = below
            if stat.S_ISLNK(os.fstat(at).st_mode):
                return "/" + "/".join(steps[: number + 1])
    finally:
        os.close(at)
    return None
