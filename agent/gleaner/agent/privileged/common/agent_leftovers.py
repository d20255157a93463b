"""Remove what agents have left in folders of the service account, namely sockets with no listener and old logs.

The account owns these folders, and is not trusted. Each folder is opened without following a link, and is left alone
unless the account owns the opened folder. After that, every name is used relative to the open folder, where the account
could remove everything itself. So no name and no link that the account creates can lead this code anywhere else.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
from collections.abc import Callable

from ...system import openat
from . import config

LOG_AGE_S = 7 * 24 * 3600.0
"""The time for which the output of agents is kept, on the node and in the storage."""
SOCKET_AGE_S = 60.0
"""A younger socket stays, because its name exists a moment before the kernel lists it."""
_TABLES = ("/proc/1/net/unix", "/proc/self/net/unix")
"""The kernel's lists of bound sockets, for the node's network and for our own, in case they differ."""


def remove_all(settings: config.Config, now_s: float) -> int:
    """Remove what past agents have left on this node, and return the number of files removed. Raises `OSError`."""
    try:
        sockets = remove_dead_sockets(settings.handshakes, owner_uid=settings.agent_uid, now_s=now_s)
    finally:  # an error in one folder does not keep the other from being cleaned
        logs = remove_old_logs(settings.agent_logs, owner_uid=settings.agent_uid, now_s=now_s)
    return sockets + logs


def remove_dead_sockets(folder: str, *, owner_uid: int, now_s: float) -> int:
    """Remove a folder's sockets that no process has open any more, and return their number. Raises `OSError`.

    We do not try to connect, because an agent would take the connection for the shim's handshake.
    """
    live: set[bytes] = set()

    def is_dead(name: str, facts: os.stat_result) -> bool:
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_ctime >= now_s - SOCKET_AGE_S:
            return False
        if not live:  # read after the folder, and only if it is needed
            live.update(_live_sockets())
        return os.fsencode(os.path.join(folder, name)) not in live

    return _remove_each(folder, owner_uid, is_dead)


def remove_old_logs(folder: str, *, owner_uid: int, now_s: float) -> int:
    """Remove the logs of a folder that have not been written to for a long time, and return their number.

    Raises `OSError`.
    """

    def is_old_log(name: str, facts: os.stat_result) -> bool:
        return name.endswith(".log") and stat.S_ISREG(facts.st_mode) and facts.st_mtime < now_s - LOG_AGE_S

    return _remove_each(folder, owner_uid, is_old_log)


def _remove_each(folder: str, owner_uid: int, is_leftover: Callable[[str, os.stat_result], bool]) -> int:
    try:
        file = os.open(folder, openat.FOLDER)
    except FileNotFoundError:  # no agent has been here
        return 0
    removed = 0
    with openat.closing_fd(file) as descriptor:
        if os.fstat(descriptor).st_uid != owner_uid:
            raise PermissionError(f"{folder} is not the service account's")
        for name in os.listdir(descriptor):
            try:
                if is_leftover(name, os.stat(name, dir_fd=descriptor, follow_symlinks=False)):
                    os.unlink(name, dir_fd=descriptor)
                    removed += 1
            except FileNotFoundError:  # the socket's agent has just removed it
                continue
    return removed


def _live_sockets() -> set[bytes]:
    """Return the paths of all sockets that any process has open."""
    live: set[bytes] = set()
    for table in _TABLES:
        with open(table, "rb") as file:
            fields = [line.rstrip(b"\n").split(None, 7) for line in file]
        live.update(words[7] for words in fields if len(words) == 8)
    return live
