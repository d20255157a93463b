"""Find the reasons why a container cannot be saved or restored, as lines in the format of CRIU's log.

At the place where CRIU names one of its source files, such a line has a mark that tells the agent whether the reason is
permanent.

Processes: CRIU cannot stop some of them, or would restore them as something else. Such processes are searched for
before CRIU is called, while the container is stopped.

Deleted files and folders: CRIU keeps such a file under the path that the kernel reports, and recreates the file at that
path, as root, when it restores the container. The kernel reports the path that the file had. Since then, symbolic links
might have replaced its folders, and they would lead CRIU out of the container. Where a folder is missing, CRIU uses the
one above it, so each existing folder is checked. A container that holds a file with such a link in its path is not
saved.

If a file has lost this name but has another one (a hard link), CRIU gives it a third one (--link-remap), under which
CRIU searches for it when it restores. That name is part of the checkpoint only where CRIU itself saves the files. This
is the case in /dev/shm, where Python's multiprocessing keeps its semaphores. With such a file elsewhere, the container
is not saved.

Folders: CRIU keeps the position in an open folder as a number. The meaning of the number depends on the file system. On
another node the job has a copy of the folder, in which the same number leads to other names, so that some names appear
twice and others never. So a container that has read part of a folder is not saved. Folders in /proc and /sys are
excepted, because they are not copied.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ..common.processes import family, status

LASTS, PASSES = "gleaner/lasts", "gleaner/passes"
_LONGEST_PATH = 80
_EVENTS = "anon_inode:[eventfd]"
_DELETED = " (deleted)"
_THREAD_FILE = re.compile(r"/proc/(?P<pid>[0-9]+)/task/(?P<tid>[0-9]+)(/|\Z)")
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPIES = ("/proc", "/sys")
_NAMELESS = ("/[aio]", "/secretmem")
"""The kernel's own files, which count as having a name although they never had one."""


class Reason(NamedTuple):
    """A reason in one line.

    With `lasts`, the reason persists unless the program changes, so the result is the same on every node and in every
    attempt. A reason that can disappear while the program continues does not last. An example is a message that has not
    been received yet.
    """

    text: str
    lasts: bool = True


def log_line(reason: Reason) -> str:
    r"""Return the line of the log.

    >>> log_line(Reason("it is stopped", lasts=False))
    '(00.000000) Error (gleaner/passes:0): it is stopped\n'
    """
    return f"(00.000000) Error ({LASTS if reason.lasts else PASSES}:0): {reason.text}\n"


def shown(path: str) -> str:
    """Return a path in quotation marks, with at most 80 characters.

    A long path is shortened to its beginning and its end.

    >>> shown("/job/x"), shown("/job/" + "x" * 4000)[:8], len(shown("/job/" + "x" * 4000))
    ("'/job/x'", "'/job/xx", 80)
    """
    text = repr(path)
    half = (_LONGEST_PATH - 3) // 2
    return text if len(text) <= _LONGEST_PATH else f"{text[: half + 1]}...{text[-half:]}"


def refused(init_pid: int, freezer: str) -> Reason | None:
    """Return the reason why a container must not be saved, in one line, or None if it can be saved.

    `freezer` is the folder of the cgroup that keeps the container frozen. A process that cannot be checked must not be
    saved either.
    """
    is_version_1 = os.path.exists(os.path.join(freezer, "freezer.state"))
    try:
        for pid in family(init_pid):
            for is_so, reason in _KINDS:
                if is_so(pid) and (is_version_1 or is_so is not _is_stopped):
                    return _about(pid, reason)
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Reason(f"its processes cannot be looked at, so it is not saved: {error}", lasts=False)
    return None


def _about(pid: int, reason: Reason) -> Reason:
    about = status(f"/proc/{pid}/status")
    return Reason(f"its process {about['NSpid'][-1]} ({' '.join(about['Name'])!r}) {reason.text}", reason.lasts)


def _has_no_main_thread(pid: int) -> bool:
    """Return True if the main thread has ended and others continue, because CRIU does not save such a process."""
    about = status(f"/proc/{pid}/status")
    return about["State"][0] == "Z" and int(about["Threads"][0]) > 1


def _is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process.

    With cgroups of version 1, CRIU would wait in ptrace(2) indefinitely, because the kernel does not let it attach to a
    process that is both stopped and frozen (CRIU issue 1905). Since Linux 6.1 the state of such a process is reported
    as "D".
    """
    for thread in os.listdir(f"/proc/{pid}/task"):
        about = f"/proc/{pid}/task/{thread}"
        state = status(f"{about}/status")["State"][0]
        with open(f"{about}/wchan", encoding="ascii", errors="replace") as file:
            if state == "T" or file.read() == "do_signal_stop":
                return True
    return False


def _is_traced(pid: int) -> bool:
    """Return True if another process traces this one.

    A process can have only one tracer, and CRIU would be the second.
    """
    return any(
        status(f"/proc/{pid}/task/{thread}/status")["TracerPid"] != ["0"] for thread in os.listdir(f"/proc/{pid}/task")
    )


def _has_no_file(pid: int) -> bool:
    """Return True if a process runs a program that exists only in memory. CRIU 4 can save it, but cannot restore it."""
    with suppress(FileNotFoundError):  # a zombie
        return _link(f"/proc/{pid}/exe").startswith("/memfd:")
    return False


def _has_semaphore(pid: int) -> bool:
    """Return True if an eventfd is a semaphore, because CRIU 4 restores it as an ordinary one."""
    about = f"/proc/{pid}"
    for name in os.listdir(f"{about}/fd"):
        if _link(f"{about}/fd/{name}") == _EVENTS:
            with open(f"{about}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
                if any(line.split() == ["eventfd-semaphore:", "1"] for line in file):
                    return True
    return False


def _has_thread_file(pid: int) -> bool:
    """Return True if a process holds a file about a thread, because CRIU opens files before it makes the threads."""
    links = (_link(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
    return any(found["pid"] != found["tid"] for found in map(_THREAD_FILE.match, links) if found)


def _has_first_thread_timer(pid: int) -> bool:
    """Return True if a timer signals the first thread, because CRIU makes timers before that thread has its number."""
    with suppress(ProcessLookupError), open(f"/proc/{pid}/timers", encoding="ascii") as file:
        return f"notify: signal/tid.{pid}\n" in file
    return False


def _has_private_huge_pages(pid: int) -> bool:
    """Return True if private memory is in huge pages, because CRIU restores it only from files and not from pipes."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return any(line.endswith(" /anon_hugepage (deleted)\n") and line.split()[1].endswith("p") for line in file)


def _link(entry: str) -> str:
    try:
        return os.readlink(entry)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # `refused_files` reports it
            return ""
        raise


_NO_MAIN = "has no main thread any more (pthread_exit): it can be saved if its main thread waits for the others"
_STOPPED = "is stopped (by SIGSTOP or SIGTSTP): it can be saved when that process goes on (SIGCONT) or ends"
_TRACED = "is traced by another one, as by a debugger or strace: it can be saved when that has ended"
_OF_MEMFD = "runs a program that is in no file (memfd): it can be saved if the program is run from a file"
_SEMAPHORE = "holds an eventfd with EFD_SEMAPHORE, which CRIU does not keep: it can be saved without that"
_THREAD = "holds a file about a thread open (/proc/PID/task/TID/...): it can be saved when that file is closed"
_TIMER = "has a timer that signals its first thread (timer_create with SIGEV_THREAD_ID): it can be saved without that"
_HUGE = "has private memory in huge pages (MAP_HUGETLB): it can be saved with shared or with ordinary memory"
_KINDS = (
    (_has_no_main_thread, Reason(_NO_MAIN)),
    (_is_stopped, Reason(_STOPPED, lasts=False)),
    (_is_traced, Reason(_TRACED, lasts=False)),
    (_has_no_file, Reason(_OF_MEMFD)),
    (_has_semaphore, Reason(_SEMAPHORE)),
    (_has_thread_file, Reason(_THREAD)),
    (_has_first_thread_timer, Reason(_TIMER)),
    (_has_private_huge_pages, Reason(_HUGE)),
)


def refused_files(init_pid: int) -> Reason | None:
    """Return the reason why a stopped container must not be saved, in one line, or None if it can be saved.

    A process that cannot be checked must not be saved either.
    """
    try:
        for pid in family(init_pid):
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
                    )
                if has_other_name:
                    return Reason(
                        f"it holds {shown(path)} open, which is deleted, and the file has another name by now (a hard"
                        " link): it can be saved when the job has closed the file",
                    )
            for folder in _half_read(pid):
                return Reason(
                    f"it is reading the folder {shown(folder)} and has not come to its end: it can be saved when it has"
                    " read it (os.listdir reads at once) or closed it",
                    lasts=False,
                )
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return Reason(
                "it has a file or folder open whose path is too long (4096 bytes): it can be saved without that",
            )
        return Reason(f"its open files cannot be looked at, so it is not saved: {error}", lasts=False)
    return None


def _held(pid: int) -> set[tuple[str, bool]]:
    """Return the paths of all deleted files and folders that a process holds.

    Each path is paired with True if the file has another name outside /dev/shm.
    """
    about = f"/proc/{pid}"
    entries = [f"{about}/{name}" for name in ("cwd", "root", "exe")]
    for folder in ("fd", "map_files"):
        entries += [f"{about}/{folder}/{name}" for name in os.listdir(f"{about}/{folder}")]
    return {found for entry in entries for found in _deleted(entry, f"{about}/root")}


def _has_sent_files(pid: int) -> bool:
    """Return True if one of the process's sockets carries unreceived files.

    CRIU saves them, although no process holds them.
    """
    about = f"/proc/{pid}"
    for name in os.listdir(f"{about}/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"{about}/fd/{name}").startswith("socket:") and holds_sent_files(about, name):
                return True
    return False


def holds_sent_files(about: str, name: str) -> bool:
    """Return True if the socket `fd/NAME` below `/proc/PID` carries unreceived files (unix(7), SCM_RIGHTS)."""
    with open(f"{about}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
        return any(line.startswith("scm_fds:") and line.split()[1] != "0" for line in file)


def _half_read(pid: int) -> Iterator[str]:
    """Yield the path of each folder that a process has read in part, so that more names follow its position."""
    about = f"/proc/{pid}"
    for name in os.listdir(f"{about}/fd"):
        entry = f"{about}/fd/{name}"
        with suppress(FileNotFoundError):
            path = os.readlink(entry)
            position = _position_in_folder(entry, f"{about}/fdinfo/{name}")
            is_no_copy = path.startswith(tuple(f"{one}/" for one in _NO_COPIES)) or path in _NO_COPIES
            if position and not is_no_copy and _has_names_from(entry, position):
                yield path


def _position_in_folder(entry: str, facts: str) -> int:
    """Return the position in an open folder, or 0 if the entry is not a folder."""
    if not stat.S_ISDIR(os.stat(entry).st_mode):
        return 0
    with open(facts, encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("pos:"))


def _has_names_from(entry: str, position: int) -> bool:
    """Return True if names follow at this position of a folder. The process's own position is not changed."""
    folder = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME | os.O_CLOEXEC)
    try:
        os.lseek(folder, position, os.SEEK_SET)
        with os.scandir(folder) as names:  # this asks the kernel for a few names at a time
            return next(names, None) is not None
    finally:
        os.close(folder)


def _deleted(entry: str, root: str) -> Iterator[tuple[str, bool]]:
    """Yield the path that a deleted file had, without the kernel's mark, and True if the file has another name.

    Yield nothing if the file is not deleted. Another name in /dev/shm does not count.
    """
    with suppress(FileNotFoundError):  # a zombie's entry, or one that is no longer mapped
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
    """Return True for a file that is not deleted, but whose real name ends with the text of the kernel's mark."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return link_on_the_way(root, path) is None and os.path.samestat(os.stat(entry), os.lstat(root + path))
    return False


def link_on_the_way(root: str, path: str) -> str | None:
    """Return the first symbolic link that stands in for one of a path's folders, seen from `root`, or None.

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
