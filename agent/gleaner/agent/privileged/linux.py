"""The few calls to the kernel that Python's library lacks."""

from __future__ import annotations  # the node may have Python 3.9

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Whoever loses its parent below us becomes our child, so that we hear of its end."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def own_mounts() -> None:
    """What is mounted from here on is seen by nobody outside, and gone when the last process in here has ended."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")


def mount_overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Files of `lower`, with all changes in `upper`. The kernel's further ways to store a change are off."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off,index=off,metacopy=off"
    _checked(_libc.mount(b"overlay", os.fsencode(target), b"overlay", 0, os.fsencode(options)), f"mount {target}")


def bind(descriptor: int, target: str) -> None:
    """Mount the very folder that the descriptor stands for."""
    source = f"/proc/self/fd/{descriptor}".encode()
    _checked(_libc.mount(source, os.fsencode(target), None, _MS_BIND, None), f"mount {target}")


def sync(folder: str) -> None:
    """Have all of the folder's file system on the disk; of no other one, which may be a storage that hangs."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _checked(_libc.syncfs(descriptor), "syncfs")
    finally:
        os.close(descriptor)


def _checked(result: int, doing: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
