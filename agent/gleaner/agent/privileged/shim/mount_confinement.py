"""Set up the mount namespace in which CRIU restores, so that nothing on the node can be written in it.

CRIU recreates files that were open but deleted at the save. It does so as root, and at paths that the job has chosen.
It works in its own mount namespace, whose root is the node's. So this namespace is read-only, except for the
container's root, CRIU's working folder, and an empty `/tmp`. While CRIU recreates such files, no symbolic link of the
container is followed, because a link to `/proc/1/root` would lead to a place where the node can be written.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import sys

from ...system import openat
from ..common import linux, mounts

_YARD = "/tmp/.criu.mntns."  # noqa: S108 - the folder below which CRIU makes the container's mounts


class NotConfined(Exception):
    """CRIU cannot be confined to the container. The message is one line."""


def enter(root: str, work: str) -> None:
    """Enter a new namespace of this kind. `root` is the path at which the container's root is mounted. Raises
    `OSError`."""
    linux.own_mounts(sees_outside=False)
    linux.mount_itself(work)
    linux.mount_empty("/tmp")  # noqa: S108 - the folder has to be /tmp
    linux.change_mount("/", on=linux.READ_ONLY, with_below=True)
    for path in (root, work, "/tmp", "/proc"):  # noqa: S108 - CRIU sets a process's attributes in /proc
        linux.change_mount(path, off=linux.READ_ONLY)


def follow_no_links(pid: int) -> None:
    """From now on, keep CRIU from following symbolic links when it creates files. Raises `NotConfined`.

    CRIU makes all the container's mounts, one by one, in the namespace in which the container's first process (`pid`)
    starts. The container's own mounts are copies of these, and stay unchanged.
    """
    with openat.closing_fd(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)) as namespace:
        places = [place for place in mounts.mount_points(pid) if place.startswith(_YARD)]
        if not places:
            raise NotConfined("CRIU does not mount the container's files where it is known to")
        child = os.fork()
        if child == 0:
            _end_after_change(namespace, places)
        _, status = os.waitpid(child, 0)
    if status != 0:
        raise NotConfined("symbolic links cannot be ruled out: Linux 5.14 or newer is needed to restore here")


def _end_after_change(namespace: int, places: list[str]) -> None:
    """Change these mounts in that namespace, and exit.

    This needs a separate process, because a process that enters the namespace cannot leave it again.
    """
    try:
        linux.enter_mounts(namespace)
        for place in places:
            linux.change_mount(place, on=linux.NO_LINKS)
    except BaseException as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    os._exit(0)
