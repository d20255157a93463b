"""A program that looks at the key for groups' secrets as the service account sees it.

It prints no part of the key, and none of a secret."""

import json
import os
import sqlite3
import stat
import sys
from pathlib import Path

from cryptography.fernet import InvalidToken, MultiFernet

from gleaner.agent.privileged.common import mounts
from gleaner.control.queue import secret_key
from gleaner.control.queue.errors import KeyFault
from gleaner.control.setup.sqlite_reading import opened
from gleaner.control.setup.storage_probe import become_owner

MOST_SECRETS = 500
"""So many of the newest secrets are tried; a try takes far less than a millisecond."""
_PATIENCE_S = 2.0

_OF_THIS_MACHINE = frozenset({"tmpfs", "ramfs", "overlay", "btrfs", "zfs"})
"""Kinds of file systems that have no disk's number either, and that no other machine sees."""


def probe(path: Path, storage: Path, database: Path | None) -> dict[str, object]:
    """Return the facts of the key's file. Raises `OSError`."""
    nothing: dict[str, object] = {"trouble": "", "tried": 0, "unopened": 0}
    try:
        found = path.stat()
    except FileNotFoundError:
        return {"uid": 0, "mode": 0, "is_missing": True, "is_on_storage": False, **nothing}
    facts: dict[str, object] = {"uid": found.st_uid, "mode": stat.S_IMODE(found.st_mode), "is_missing": False}
    facts |= nothing | {"is_on_storage": is_shared(path, storage)}
    become_owner(storage, 0)
    try:
        keys = secret_key.read(path)
    except KeyFault as error:
        return facts | {"trouble": str(error)}
    return facts | (_tried(keys, database) if database is not None else {})


def _tried(keys: MultiFernet, database: Path) -> dict[str, object]:
    """Return how many stored secrets were tried with the keys, and how many the keys do not open."""
    try:
        with opened(database, _PATIENCE_S) as queue:
            rows = queue.execute("SELECT sealed FROM secret ORDER BY set_s DESC LIMIT ?", (MOST_SECRETS,)).fetchall()
    except sqlite3.Error:  # another check says what is wrong with the database
        return {}
    return {"tried": len(rows), "unopened": sum(not _opens(keys, bytes(sealed)) for (sealed,) in rows)}


def _opens(keys: MultiFernet, sealed: bytes) -> bool:
    try:
        keys.decrypt(sealed)
    except InvalidToken:
        return False
    return True


def is_shared(path: Path, storage: Path) -> bool:
    """Return True if the file is below the storage folder, or on the file system of a network on which that is."""
    try:
        if path.resolve().is_relative_to(storage.resolve()):
            return True
        mine, theirs, root = path.stat().st_dev, storage.stat().st_dev, Path("/").stat().st_dev
    except OSError:
        return False
    if mine != theirs or mine == root or os.major(mine) != 0:  # a disk of this machine has a number of its own
        return False
    return kind_of_file_system(path.resolve(), mounts.table()) not in _OF_THIS_MACHINE


def kind_of_file_system(path: Path, mountinfo: str) -> str:
    r"""Return the kind of the file system that a file is on, by the kernel's table of mounts; "" if that is unknown.

    >>> table = "1 0 0:1 / / rw - overlay o rw\n2 1 0:9 / /srv rw - nfs4 filer:/srv rw"
    >>> kind_of_file_system(Path("/srv/gleaner/secrets.key"), table), kind_of_file_system(Path("/var/key"), table)
    ('nfs4', 'overlay')
    """
    above = [mount for mount in mounts.parse(mountinfo) if path.is_relative_to(mount.place)]
    return max(reversed(above), key=lambda mount: len(mount.place)).kind if above else ""


def main() -> None:
    """Print the facts, or the error."""
    try:
        answer = probe(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else None)
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
