"""Try the storage folder, as a program of its own: a storage that hangs must hang nobody else.

    python -P -m gleaner.control.setup.storage_probe FOLDER UID

Root becomes the folder's owner first (or UID, if the folder cannot be looked at), since root may have no rights in the
storage. The trial is one folder in `.drafts` that is removed again; if the program is killed, control removes it a day
later, as a draft that nobody writes to. Standard library only. Prints one line of JSON.
"""

import json
import os
import shutil
import stat
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.checkpoints.storage_root import DRAFTS, KEY_NOTE, StorageNumber, storage_number

_NOTES_S = 0.5
_MOST_NOTES = 1000
_LONGEST_NOTE = 64
_OURS = (DRAFTS, ".broken", "agents", "jobs", "images", "inputs")


def probe(root: Path) -> dict[str, Any]:
    """Return the facts of the folder. Raises `OSError` if it cannot be looked at."""
    facts = os.stat(f"{root}/.")  # noqa: PTH116 - with the dot it fails for whoever may not look into the folder
    space = os.statvfs(root)
    found: dict[str, Any] = {
        "uid": facts.st_uid,
        "mode": stat.S_IMODE(facts.st_mode),
        "is_set_up": (root / DRAFTS).is_dir(),
        "free_bytes": space.f_bavail * space.f_frsize,
        # Some file systems have no number of files that they can hold, and say 0 of 0.
        "free_files": space.f_favail if space.f_files else sys.maxsize,
        "trouble": "",
        "wrote_s": 0.0,
    }
    number = StorageNumber()
    for name in _OURS:
        with suppress(OSError):
            owner = (root / name).lstat().st_uid
            if owner != facts.st_uid:
                found |= {"foreign": name, "foreign_uid": owner}
                break
    with suppress(StorageError):
        number = storage_number(root)
    found |= {"id": number.id, "inode": number.inode, "changed_s": number.changed_s}
    found["key_notes"] = key_notes(root / "agents")
    if found["is_set_up"]:
        began_s = time.monotonic()
        found["trouble"] = try_writes(root / DRAFTS)
        found["wrote_s"] = time.monotonic() - began_s
    return found


def key_notes(folder: Path) -> dict[str, tuple[str, float]]:
    """Return the notes of nodes on their keys of user jobs, as many as can be read in a moment.

    By node, the fingerprint of its key, and the time of the note in seconds since the epoch.
    """
    notes: dict[str, tuple[str, float]] = {}
    ends_s = time.monotonic() + _NOTES_S
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > ends_s or len(notes) == _MOST_NOTES:
                break
            if entry.name.endswith(KEY_NOTE):
                with suppress(OSError):
                    notes[entry.name.removesuffix(KEY_NOTE)] = _note(entry.path)
    return notes


def _note(path: str) -> tuple[str, float]:
    """Return a plain file's first letters, and its time. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is no plain file")
        return os.read(descriptor, _LONGEST_NOTE).decode("ascii", "replace"), facts.st_mtime
    finally:
        os.close(descriptor)


def try_writes(drafts: Path) -> str:
    """Return which of the steps of a save fails in this folder, and why; empty if none does."""
    step = "make a folder"
    folder = drafts / uuid.uuid4().hex
    renamed = folder.with_name(f"{folder.name}0")
    try:
        folder.mkdir(0o700)
        try:
            step = "write a file"
            with (folder / "a").open("xb", buffering=0) as file:
                file.write(b"a trial of glean doctor\n")
                step = "sync a file"
                os.fsync(file)
            step = "make a hard link"
            (folder / "b").hardlink_to(folder / "a")
            step = "rename a folder"
            folder.rename(renamed)
            step = "sync a folder"
            descriptor = os.open(renamed, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            for place in (folder, renamed):
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        return f"cannot {step}: {error.strerror}"
    return ""


def become_owner(root: Path, otherwise: int) -> None:
    """Act as the owner of a folder from now on, if this is root."""
    try:
        facts = root.stat()
        uid, gid = facts.st_uid, facts.st_gid
    except OSError:
        uid = gid = otherwise
    if os.geteuid() == 0 and uid > 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def main() -> None:
    """Print the facts, or the error."""
    root = Path(sys.argv[1])
    try:
        become_owner(root, int(sys.argv[2]))
        answer = probe(root)
    except OSError as error:
        answer = {"error": error.strerror or str(error), "is_missing": isinstance(error, FileNotFoundError)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
