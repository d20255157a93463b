"""The agents' token files: `agents/NAME/token` in the storage folder, readable for the owner alone.

A token is in no command line, no environment and no batch script. Its file is written before the agent is
submitted and removed when the agent has ended.
"""

import errno
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gleaner.agent.durable import make_folders, write_whole
from gleaner.agent.leftovers import LOG_AGE_S


def token_file(folder: Path, name: str) -> Path:
    """Where this agent finds its token."""
    return folder / name / "token"


def write(folder: Path, name: str, secret: str) -> Path:
    """Write an agent's token file as a whole, synced; its path. Raises `OSError`."""
    path = token_file(folder, name)
    make_folders(path.parent, within=folder.parent)
    write_whole(path, secret.encode(), draft=path.with_suffix(".new"))
    return path


def remove(folder: Path, name: str) -> None:
    """Remove an agent's token file, and its folder unless it holds reports. What is not there is no error.

    Raises `OSError`.
    """
    path = token_file(folder, name)
    for one in (path, path.with_suffix(".new")):
        one.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        try:
            path.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # what the agent left there may still be needed
                raise


def names(folder: Path) -> list[str]:
    """The agents that have a token file, or a part of one."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []


def sweep(folder: Path, found: Collection[str], *, living: Collection[str], now_s: float) -> int:
    """Remove what is left of the agents in `found` that are not `living`, and old logs; how many token files.

    `found` must have been listed before `living` was read, or a fresh agent would lose its token.
    """
    gone = [name for name in found if name not in living]
    for name in gone:
        remove(folder, name)
    for log in folder.glob("*.log") if folder.is_dir() else ():
        if log.stat().st_mtime < now_s - LOG_AGE_S:
            log.unlink()
    return len(gone)
