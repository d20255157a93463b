"""Check the folders of a node that jobs can mount read-only, such as a software tree or calibration data.

The privileged settings list these folders (`config.Config.mounts`), and no others can be mounted. A job must write one
of these paths exactly as it is listed. Only root can change what such a path leads to (`system.listed_folders`). The
folder at the end of the path can belong to any account.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
from collections.abc import Sequence

from ...system.listed_folders import FolderRefused, open_listed
from . import system_programs

MOST = 16
"""The maximum number of folders that one job can mount."""
_PATH = re.compile(r"(/[A-Za-z0-9._+@-]+)+\Z")
_LONGEST = 255
_OF_CONTAINER = ("/job", "/inputs", "/proc", "/sys", "/dev", "/etc", "/tmp")  # noqa: S108 - CRIU has its own /tmp
_ANSWER_WITHIN_S = 10.0


def fault(path: str) -> str:
    """Return why a folder with this path cannot be mounted, or "" if it can. Pure.

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
    """Return why these folders cannot be mounted together in one container, or "" if they can. Pure.

    >>> fault_of_list(["/data", "/data/calib"])
    '/data/calib is in /data: name one of the two'
    >>> fault_of_list(["/data", "/data"])
    '/data is named twice'
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
    """Return one line about the first path that shows or hides one of Gleaner's own paths, or "" if there is no such
    path.

    Pure.

    >>> conflict(["/cvmfs", "/var/lib"], ["/var/lib/gleaner/work"])
    "/var/lib is in the way of /var/lib/gleaner/work, which is Gleaner's own"
    """
    for path in paths:
        for one in own:
            if is_in(path, one) or is_in(one, path):
                return f"{path} is in the way of {one}, which is Gleaner's own"
    return ""


def is_in(path: str, folder: str) -> bool:
    """Return True if a path is that of the folder, or of an entry below it. Pure."""
    return path == folder or path.startswith(f"{folder}/")


def check(path: str, own: Sequence[str] = ()) -> None:
    """Check that a folder can be mounted now, and is not in the way of `own`. Raises `FolderRefused`.

    A file system that does not answer blocks only a child process, for which we stop waiting after a while.
    """
    try:
        is_there = system_programs.run(["test", "-d", f"{path}/."], within_s=_ANSWER_WITHIN_S).status == 0
    except TimeoutError:
        raise FolderRefused(f"{path}: it does not answer within {_ANSWER_WITHIN_S:.0f} s") from None
    except OSError as error:
        raise FolderRefused(f"{path}: it cannot be looked at: {error}") from error
    if not is_there:
        raise FolderRefused(f"{path}: there is no such folder")
    os.close(open_listed(path, owners=(0,), own=own))
