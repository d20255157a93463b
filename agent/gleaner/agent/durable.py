"""Files that are still there after a power cut: each is synced, then renamed, and then its folder is synced.

A rename is on the disk only when the folder is. Whoever deletes something because its successor has been written must
have synced the successor's folder first.
"""

import errno
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """See that what the folder lists is on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folders(folder: Path, *, within: Path | None = None) -> None:
    """Make a folder for the owner alone, and those above it that are missing; all of them are on the disk then.

    Raises `FileNotFoundError` if there is no folder `within`: a storage that is not mounted is not made anew.
    """
    if within is not None and not within.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(within))
    missing = [folder, *folder.parents]
    made = missing[: next((depth for depth, one in enumerate(missing) if one.is_dir()), len(missing))]
    for one in reversed(made):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_folder(one.parent)


def write_draft(path: Path, content: bytes, *, draft: Path) -> None:
    """Write a synced file under a passing name and rename it. The caller syncs the folder when all is there."""
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as writing:
        os.fchmod(writing.fileno(), 0o600)
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())
    draft.rename(path)


def write_whole(path: Path, content: bytes, *, draft: Path) -> None:
    """Put a file into its place, whole and for the owner alone; it is on the disk when this returns."""
    write_draft(path, content, draft=draft)
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """See that a folder is on the disk with all that is in it; links are not followed."""
    for place, _folders, files in os.walk(folder):
        for name in files:
            try:
                file = os.open(Path(place) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:  # a link, a pipe, or nobody's to read: its name is what there is to keep
                continue
            try:
                os.fsync(file)
            finally:
                os.close(file)
        sync_folder(Path(place))
