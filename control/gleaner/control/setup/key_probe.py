"""A program that looks at the key for groups' secrets as the service account sees it. It prints no part of the key."""

import json
import os
import stat
import sys
from pathlib import Path

from gleaner.control.queue import secret_key
from gleaner.control.queue.errors import KeyFault
from gleaner.control.setup.storage_probe import become_owner


def probe(path: Path, storage: Path) -> dict[str, object]:
    """Return the facts of the key's file. Raises `OSError`."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return {"uid": 0, "mode": 0, "is_missing": True, "is_on_storage": False, "trouble": ""}
    facts: dict[str, object] = {"uid": found.st_uid, "mode": stat.S_IMODE(found.st_mode), "is_missing": False}
    is_on_storage = is_shared(path, storage)
    become_owner(storage, 0)
    try:
        secret_key.read(path)
    except KeyFault as error:
        return facts | {"is_on_storage": is_on_storage, "trouble": str(error)}
    return facts | {"is_on_storage": is_on_storage, "trouble": ""}


def is_shared(path: Path, storage: Path) -> bool:
    """Return True if the file is below the storage folder, or on the file system of a network on which that is."""
    try:
        if path.resolve().is_relative_to(storage.resolve()):
            return True
        mine, theirs, root = path.stat().st_dev, storage.stat().st_dev, Path("/").stat().st_dev
    except OSError:
        return False
    return mine == theirs != root and os.major(mine) == 0  # a disk of this machine has a number of its own


def main() -> None:
    """Print the facts, or the error."""
    try:
        answer = probe(Path(sys.argv[1]), Path(sys.argv[2]))
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
