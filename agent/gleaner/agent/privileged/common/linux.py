"""System calls that Python's library lacks."""

from __future__ import annotations  # the node may have Python 3.9

import ctypes
import fcntl
import os
import signal
import socket
import struct

from ...system import openat

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x04000000, 0x08000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SLAVE = 0x1000, 0x4000, 0x40000, 0x80000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MOUNT_SETATTR = 442  # the same number on every architecture
_PIDFD_GETFD = 438  # the same
_CLONE3, _CLONE_FILES = 435, 0x400
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
READ_ONLY, NO_SETUID, NO_DEVICES, NO_LINKS = 0x1, 0x2, 0x4, 0x200000
"""Attributes of a mount, for `change_mount`.

They forbid writing, ignore setuid bits, forbid opening devices, and follow no symbolic links.
"""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.splice.restype = ctypes.c_ssize_t


def become_subreaper() -> None:
    """Adopt all descendants that lose their parent, so that we are told when they end."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def own_namespaces() -> None:
    """Leave the machine's namespaces for mounts, network and inter-process communication, and enter new ones."""
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWNET), "unshare")


def gain_no_rights() -> None:
    """Keep programs from giving this process additional rights, and have it end when its parent ends."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def own_mounts(*, sees_outside: bool) -> None:
    """Enter a new mount namespace, whose mounts cannot be seen from outside.

    The mounts disappear with the namespace's last process. With `sees_outside`, mounts that are made outside later also
    appear here.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _check(_libc.mount(None, b"/", None, _MS_REC | (_MS_SLAVE if sees_outside else _MS_PRIVATE), None), "mount /")


def enter_mounts(namespace: int) -> None:
    """Enter another process's mount namespace. Only a process with one thread can do so."""
    _check(_libc.setns(namespace, _CLONE_NEWNS), "setns")


def start_loopback(pid: int) -> None:
    """Switch on the loopback device in the network namespace of a process.

    This thread enters that namespace for a moment.
    """
    with open("/proc/thread-self/ns/net", "rb") as own, open(f"/proc/{pid}/ns/net", "rb") as other:
        _check(_libc.setns(other.fileno(), _CLONE_NEWNET), "setns")
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
                fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        finally:
            _check(_libc.setns(own.fileno(), _CLONE_NEWNET), "setns")


def change_mount(target: str, *, on: int = 0, off: int = 0, with_below: bool = False) -> None:
    """Change attributes of a mount point, only in this mount namespace. Needs Linux 5.14."""
    attributes = struct.pack("=4Q", on, off, 0, 0)
    flags = _AT_RECURSIVE if with_below else 0
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(result, f"mount_setattr {target}")


def splice(source: int, sink: int, most: int) -> int:
    """Move bytes from one pipe to another without copying them.

    Return their number, which is 0 at the end of the input. (Python has had this function since 3.10.)
    """
    count: int = _libc.splice(source, None, sink, None, ctypes.c_size_t(most), ctypes.c_uint(0))
    _check(min(count, 0), "splice")
    return count


def mount_empty(target: str) -> None:
    """Mount an empty folder in memory that only root can enter."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, b"mode=700,size=64m"), f"mount {target}")


def mount_itself(target: str) -> None:
    """Make a folder a mount point, so that it can have its own attributes."""
    path = os.fsencode(target)
    _check(_libc.mount(path, path, None, _MS_BIND, None), f"mount {target}")


def mount_overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Mount the files of `lower`, with all changes stored in `upper`.

    The kernel's other ways to store a change are switched off.
    """
    options = f"lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off,index=off,metacopy=off"
    _check(_libc.mount(b"overlay", os.fsencode(target), b"overlay", 0, os.fsencode(options)), f"mount {target}")


def bind(descriptor: int, target: str) -> None:
    """Mount the very folder that the descriptor refers to.

    File systems that are mounted on that folder later are not visible here.
    """
    source = f"/proc/self/fd/{descriptor}".encode()
    _check(_libc.mount(source, os.fsencode(target), None, _MS_BIND, None), f"mount {target}")
    _check(_libc.mount(None, os.fsencode(target), None, _MS_PRIVATE, None), f"mount {target}")


def take_file(process: int, number: int) -> int:
    """Return a descriptor of the file that another process (a pidfd) has open under this number. Needs Linux 5.6."""
    descriptor: int = _libc.syscall(ctypes.c_long(_PIDFD_GETFD), process, number, 0)
    _check(min(descriptor, 0), "pidfd_getfd")
    return descriptor


def fork_sharing_descriptors() -> int:
    """Fork with one table of descriptors for both processes, so that opening or closing one affects both.

    Return the child's pid, and 0 in the child. Call this only while this process has one thread.
    """
    arguments = struct.pack("=8Q", _CLONE_FILES, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid: int = _libc.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
    _check(min(pid, 0), "clone3")
    return pid


def set_timer(timer: int, *, first_ns: int, period: tuple[int, int]) -> None:
    """Set a timerfd so that it expires after `first_ns`, and then once in each `period` (seconds, nanoseconds)."""
    _check(_libc.timerfd_settime(timer, 0, struct.pack("@4l", *period, 0, first_ns), None), "timerfd_settime")


def sync(folder: str) -> None:
    """Write the folder's whole file system to the disk, but no other file system, because others might hang."""
    with openat.closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        _check(_libc.syncfs(descriptor), "syncfs")


def _check(result: int, doing: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
