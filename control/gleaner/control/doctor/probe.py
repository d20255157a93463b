"""Run trials as the service account, in a separate program, because success as root proves nothing.

    python -P -m gleaner.control.doctor.probe NAME     with the arguments, a list in JSON, on its input

Each function below is one probe, and returns facts for `Look.probe`. Nothing is changed, except for a trial folder in
the storage, which is removed again, and a trial transaction in the queue.
"""

import json
import os
import shutil
import sqlite3
import stat
import sys
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

_LOCKED_S = 2.0
"""A lock that is held longer than this keeps control from its work."""


def storage(folder: str) -> dict[str, Any]:
    """Return the facts of the storage folder. `trouble` is the step of a save that fails, with the reason."""
    from gleaner.agent.checkpoints.interface import StorageError
    from gleaner.agent.checkpoints.storage_root import DRAFTS, StorageNumber, storage_number

    root = Path(folder)
    facts, space = os.stat(f"{root}/."), os.statvfs(root)  # noqa: PTH116 - the dot fails for whoever may not enter
    number = StorageNumber()
    with suppress(StorageError):
        number = storage_number(root)
    found: dict[str, Any] = {
        "uid": facts.st_uid, "mode": stat.S_IMODE(facts.st_mode), "is_set_up": (root / DRAFTS).is_dir(),
        "id": number.id, "inode": number.inode, "changed_s": number.changed_s,
        "free_bytes": space.f_bavail * space.f_frsize,
        # Some file systems have no limit on the number of files, and report 0 of 0.
        "free_files": space.f_favail if space.f_files else sys.maxsize,
        "foreign": [path.name for name in (DRAFTS, "agents", "jobs", "images", "inputs")
                    if (path := root / name).exists() and path.lstat().st_uid != facts.st_uid],
        "trouble": "", "wrote_s": 0.0,
    }  # fmt: skip
    if found["is_set_up"]:
        began_s = time.monotonic()
        found["trouble"] = _try_writes(root / DRAFTS)
        found["wrote_s"] = time.monotonic() - began_s
    return found


def _try_writes(drafts: Path) -> str:
    folder = drafts / uuid.uuid4().hex
    renamed = folder.with_name(f"{folder.name}0")
    step = "make a folder"
    try:
        folder.mkdir(0o700)
        step = "write and sync a file"
        with (folder / "a").open("xb", buffering=0) as file:
            file.write(b"a trial of glean doctor\n")
            os.fsync(file)
        step = "make a hard link"
        (folder / "b").hardlink_to(folder / "a")
        step = "rename a folder"
        folder.rename(renamed)
        step = "sync a folder"
        descriptor = os.open(renamed, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)
    except OSError as error:
        return f"cannot {step}: {error.strerror}"
    finally:
        for place in (folder, renamed):
            shutil.rmtree(place, ignore_errors=True)
    return ""


def database(url: str, path: str) -> dict[str, Any]:
    """Return the fault that prevents control from using its database. `path` is a SQLite database's file, or ""."""
    from gleaner.control.queue.database import check_schema, connect
    from gleaner.control.queue.errors import QueueError

    try:
        if path:
            uri = f"{Path(path).as_uri()}?mode=rw"  # without a file it is an error, and no file is created
            with closing(sqlite3.connect(uri, uri=True, timeout=_LOCKED_S, isolation_level=None)) as queue:
                queue.execute("BEGIN IMMEDIATE")
                queue.execute("CREATE TABLE trial_of_glean_doctor (x)")  # the first step that fails on a read-only file
                queue.execute("ROLLBACK")
        check_schema(connect(url))
    except (QueueError, sqlite3.Error) as error:
        return {"trouble": str(error)}
    return {"trouble": ""}


def helper(socket: str) -> dict[str, Any]:
    """Query the node helper, which answers only this account."""
    from gleaner.agent.runtime.helper_client import HelperClient
    from gleaner.agent.runtime.interface import RuntimeFault

    try:
        HelperClient(socket).ask("facts")
    except RuntimeFault as error:
        return {"trouble": str(error)}
    return {"trouble": ""}


PROBES = {each.__name__: each for each in (storage, database, helper)}


def main() -> None:
    """Print the facts, or the error."""
    try:
        answer = PROBES[sys.argv[1]](*json.load(sys.stdin))
    except OSError as error:
        answer = {"error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
