"""The agents' token files: `agents/NAME/token` in the storage folder, which only the folder's owner can read.

A token is in no command line, no environment and no batch script. Its file is written before the agent is
submitted, and removed when the agent has ended.
"""

import errno
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gleaner.agent.privileged.common.agent_leftovers import LOG_AGE_S
from gleaner.agent.system import atomic


def token_file(folder: Path, name: str) -> Path:
    """Return the file in which this agent finds its token."""
    return folder / name / "token"


def write(folder: Path, name: str, secret: str) -> Path:
    """Write an agent's token file as a whole, synced, and return its path. Raises `OSError`."""
    path = token_file(folder, name)
    atomic.make_folders(path.parent, within=folder.parent)
    atomic.write(path, secret.encode())
    return path


def remove(folder: Path, name: str) -> None:
    """Remove an agent's token file, and the agent's folder unless the folder holds reports.

    A file or folder that is not there is no error.

    Raises `OSError`.
    """
    path = token_file(folder, name)
    for one in (path, path.with_suffix(".new")):
        one.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        try:
            path.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # the agent's reports there may still be needed
                raise


def names(folder: Path) -> list[str]:
    """Return the names of the agents that have a token file, or a part of one."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def sweep(folder: Path, found: Collection[str], *, living: Collection[str], now_s: float) -> int:
    """Remove old logs, and the token files of the agents in `found` that are not `living`.

    Return the number of agents whose token files were removed. `found` must have been listed before `living` was read,
    or a fresh agent would lose its token.
    """
    gone = [name for name in found if name not in living]
    for name in gone:
        remove(folder, name)
    for log in folder.glob("*.log") if folder.is_dir() else ():
        if log.stat().st_mtime < now_s - LOG_AGE_S:
            log.unlink()
    return len(gone)
