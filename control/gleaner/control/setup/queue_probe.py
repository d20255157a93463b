"""Look whether the service account can write the queue's SQLite database, as a program of its own. It writes nothing.

    python -P -m gleaner.control.setup.queue_probe FILE UID

SQLite's locks are locks of the kernel's, so the kernel names who holds one (F_GETLK): a trial transaction would make
files, of the wrong owner if root runs it. It is a program of its own since closing a file drops all locks that a
process has on it, also those of SQLite. Root becomes the account UID first. Standard library only. Prints one line of
JSON.
"""

import fcntl
import json
import os
import pwd
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WATCH_S = 2.0
"""A lock that is held for so long without a gap keeps control from its work. A transaction of control's takes less."""
_LOOK_EVERY_S = 0.01
_WRITE_LOCK = (120, 1)
"""The lock of the writer in the file -shm: its first byte and length (sqlite.org/walformat.html, 2.3.2)."""
_RESERVED_LOCK, _SHARED_LOCK = (0x40000001, 1), (0x40000002, 510)
"""Those in the database itself, if it is not in WAL mode or one program has all of it (sqlite.org/fileformat2.html)."""
_FLOCK = "@hhqqi"
_OUR_PROGRAMS = {b"glean", b"gleaner-control"}


def probe(path: Path, uid: int, *, watch_s: float = WATCH_S) -> dict[str, Any]:
    """Return the facts of the database. Raises `OSError` if it cannot be looked at."""
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm")]
    shared = files[2]
    with path.open("rb", buffering=0) as database:
        if not shared.exists():
            return _become(uid) | _refusal(path.parent, files) | _holder(watch_s, ((database.fileno(), False),))
        with shared.open("rb", buffering=0) as shm:
            places = ((database.fileno(), False), (shm.fileno(), True))
            return _become(uid) | _refusal(path.parent, files) | _holder(watch_s, places)


def _become(uid: int) -> dict[str, Any]:
    if os.geteuid() == 0 and uid > 0:
        account = pwd.getpwuid(uid)
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(uid)
    return {}


def _refusal(folder: Path, files: list[Path]) -> dict[str, Any]:
    """Return the first place that this account cannot write. SQLite makes files in the folder, too."""
    for place in (folder, *files):
        try:
            facts = place.stat()
        except FileNotFoundError:
            continue
        if not os.access(place, os.W_OK | (os.X_OK if stat.S_ISDIR(facts.st_mode) else 0)):
            is_read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
            mode = stat.S_IMODE(facts.st_mode)
            return {"refused": str(place), "uid": facts.st_uid, "mode": mode, "is_read_only": is_read_only}
    return {"refused": "", "uid": 0, "mode": 0, "is_read_only": False}


def _holder(watch_s: float, places: tuple[tuple[int, bool], ...]) -> dict[str, Any]:
    """Return the one program that has held a lock all the time; none if there was a gap, or another came."""
    end_s = time.monotonic() + watch_s
    first: int | None = None
    while True:
        found = next((pid for descriptor, is_shm in places for pid in _holders(descriptor, is_shm)), None)
        if found is None or (first is not None and first != found):
            return {"holder_pid": 0, "holder": "", "is_holder_ours": False}
        first = found
        if time.monotonic() >= end_s:
            return {"holder_pid": found, **_name(found)}
        time.sleep(_LOOK_EVERY_S)


def _holders(descriptor: int, is_shm: bool) -> Iterator[int]:
    """Yield who keeps others from writing. Readers of the database hold its shared lock; only a writer counts there."""
    if is_shm:
        asked: tuple[tuple[int, tuple[int, int]], ...] = ((fcntl.F_WRLCK, _WRITE_LOCK),)
    else:
        asked = ((fcntl.F_WRLCK, _RESERVED_LOCK), (fcntl.F_RDLCK, _SHARED_LOCK))
    for kind, (start, length) in asked:
        lock = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
        found, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, lock))
        if found != fcntl.F_UNLCK:
            yield pid


def _name(pid: int) -> dict[str, Any]:
    """Return the name of a process. Its other words may be secret."""
    process = Path("/proc") / str(pid)
    try:
        words = process.joinpath("cmdline").read_bytes().split(b"\0")[:2]
        name = process.joinpath("comm").read_text("utf-8", "replace").strip()
    except OSError:
        return {"holder": "a program", "is_holder_ours": False}
    is_ours = any(word.rpartition(b"/")[2] in _OUR_PROGRAMS for word in words)
    return {"holder": "glean" if is_ours else name, "is_holder_ours": is_ours}


def main() -> None:
    """Print the facts, or the error."""
    try:
        answer = probe(Path(sys.argv[1]), int(sys.argv[2]))
    except OSError as error:
        answer = {"error": error.strerror or str(error), "is_missing": isinstance(error, FileNotFoundError)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
