"""The folders of a node that jobs may mount, read-only: a software tree, calibration data.

Root's settings name them (`config.Config.mounts`), and nothing else can be mounted: a job asks for one of these paths,
letter by letter. Symbolic links on such a path are followed, and so nobody but root may be able to change what the path
leads to: every folder in which one of its names is looked up must be root's, and closed to writing by others. The
folder at its end may be anybody's.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
import stat
from collections.abc import Sequence

from ...system import openat
from . import system_programs

MOST = 16
"""The most folders that one job mounts."""
_PATH = re.compile(r"(/[A-Za-z0-9._+@-]+)+\Z")
_LONGEST = 255
_OF_CONTAINER = ("/job", "/inputs", "/proc", "/sys", "/dev", "/etc", "/tmp")  # noqa: S108 - CRIU has its own there
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_STEPS = 100
_ANSWER_WITHIN_S = 10.0


class Missing(Exception):
    """A folder is not there, or somebody else than root could put another in its place; one line without its path."""


def fault(path: str) -> str:
    """Return why no folder of this path can be mounted; "" if one can. Pure.

    >>> fault("/cvmfs/atlas.cern.ch"), fault("/data/../etc"), fault("/job/data")
    ('', 'must be a full path without . and .. in it', "is in the way of /job, which is the container's own")
    """
    if len(path) > _LONGEST or not _PATH.match(path):
        return "must be a full path of at most 255 letters, digits and . _ + @ - /"
    if not {".", ".."}.isdisjoint(path.split("/")):
        return "must be a full path without . and .. in it"
    for own in _OF_CONTAINER:
        if is_in(path, own) or is_in(own, path):
            return f"is in the way of {own}, which is the container's own"
    return ""


def fault_of_list(paths: list[str]) -> str:
    """Return why these folders cannot be mounted together in one container; "" if they can. Pure.

    >>> fault_of_list(["/data", "/data/calib"])
    '/data/calib is in /data: name one of the two'
    """
    for number, path in enumerate(paths):
        if why := fault(path):
            return f"{path[:_LONGEST]!r} {why}"
        for other in paths[:number]:
            if path == other:
                return f"{path} is named twice"
            if is_in(path, other) or is_in(other, path):
                inner, outer = sorted((path, other), key=len, reverse=True)
                return f"{inner} is in {outer}: name one of the two"
    return ""


def conflict(paths: Sequence[str], own: Sequence[str]) -> str:
    """Return one line about the first of these paths that shows, or hides, one of Gleaner's own; "" if none does. Pure.

    >>> conflict(["/cvmfs", "/var/lib"], ["/var/lib/gleaner/work"])
    "/var/lib is in the way of /var/lib/gleaner/work, which is Gleaner's own"
    """
    for path in paths:
        for one in own:
            if is_in(path, one) or is_in(one, path):
                return f"{path} is in the way of {one}, which is Gleaner's own"
    return ""


def is_in(path: str, folder: str) -> bool:
    """Return True if a path is that of the folder, or of something in it. Pure."""
    return path == folder or path.startswith(f"{folder}/")


def check(path: str) -> None:
    """Check that a folder can be mounted now. Raises `Missing`.

    A file system that does not answer keeps a process of its own waiting, and us only for a while.
    """
    try:
        is_there = system_programs.run(["test", "-d", f"{path}/."], within_s=_ANSWER_WITHIN_S).status == 0
    except TimeoutError:
        raise Missing(f"it does not answer within {_ANSWER_WITHIN_S:.0f} s") from None
    except OSError as error:
        raise Missing(f"it cannot be looked at: {error}") from error
    if not is_there:
        raise Missing("there is no such folder")
    os.close(open_folder(path))


def open_folder(path: str) -> int:
    """Return a descriptor (`O_PATH`) of the folder. Raises `Missing`."""
    try:
        return _walk(path)
    except OSError as error:
        raise Missing(f"it cannot be entered: {error.strerror}") from error


def _walk(path: str) -> int:
    """Walk a path by descriptors, with its links. Nobody but root can change the way, so it has no race."""
    at = os.open("/", _STEP | os.O_DIRECTORY)
    names, steps = list(reversed(path.strip("/").split("/"))), 0
    while names:
        with openat.closing_fd(at):
            facts = os.fstat(at)
            if facts.st_uid != 0 or facts.st_mode & 0o022:
                raise Missing(
                    f"others than root could replace it: {os.readlink(f'/proc/self/fd/{at}')} is not root's alone"
                )
            if (steps := steps + 1) > _MOST_STEPS:
                raise Missing("it has too many symbolic links")
            name = names.pop()
            link = _link(at, name)
            if link is None:
                below = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at)  # this also mounts what is mounted on demand
            else:
                below = os.open("/" if link.startswith("/") else ".", _STEP | os.O_DIRECTORY, dir_fd=at)
                names += [step for step in reversed(link.split("/")) if step not in ("", ".")]
        at = below
    return at


def _link(folder: int, name: str) -> str | None:
    """Return where a name leads to if it is a symbolic link, else None."""
    if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return None
    return os.readlink(name, dir_fd=folder)
