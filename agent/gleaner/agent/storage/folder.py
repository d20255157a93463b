"""Storage in a folder that all nodes share (NFS, Lustre, GPFS, or a local disk where there is one node).

    ROOT/.drafts/WRITER--UUID/  parcels being written, by the agent of that name
    ROOT/.drafts/UUID/          the same by others, and deleted ones on their way out
    ROOT/.broken/KEY--UUID/     what was set aside
    ROOT/jobs/7/attempt-3/generation-1/{blocks.pack,pack-1,...,manifest.json}

A parcel is written in `.drafts`, every file and folder of it synced, the manifest last; one rename makes it
visible. Nothing that is visible is ever changed, so parcels can share a pack: each has a hard link to it. Everything
is made for the owner alone (0700, 0600), since checkpoints hold a process's secrets. All paths are walked from the
root without following symbolic links.

The folder must have been set up once (`prepare`): a node on which the shared file system is not mounted then
says so, instead of finding every parcel missing or keeping its own on the local disk.
"""

import errno
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.storage.draft import FolderDraft, writer_of
from gleaner.agent.storage.inside import (
    DRAFTS,
    entries,
    last_written_s,
    open_root,
    opened,
    remove_tree,
    subfolders,
    translated,
    walk,
)
from gleaner.agent.storage.manifest import MANIFEST, is_plain, names_of
from gleaner.agent.storage.parcel import FolderParcel, open_parcel
from gleaner.agent.storage.protocol import Draft, Parcel, Storage, StorageError
from gleaner.agent.storage.workers import Workers

_BROKEN = ".broken"


class FolderStorage:
    """A `Storage` below one folder. Safe for any number of processes on any number of nodes at once.

    `writer` is the plain name under which its drafts are known, if it has one.
    """

    def __init__(self, root: Path, writer: str = "") -> None:
        if writer and not is_plain(writer):
            raise StorageError(f"{writer!r} cannot be the name of a writer")
        self._root = root
        self._writer = writer
        self._workers = Workers()

    def prepare(self) -> None:
        """Set the folder up, once in its life; doing it again changes nothing.

        For an admin's command, not for every start: where the shared file system is missing, this would turn
        the empty mount point into a storage folder.
        """
        with translated(self._root):
            self._root.mkdir(mode=0o700, exist_ok=True)
            for name in (DRAFTS, _BROKEN):
                (self._root / name).mkdir(mode=0o700, exist_ok=True)
            self._root.chmod(0o700)
            for folder in (self._root, self._root.parent):
                with opened(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as file:
                    os.fsync(file)

    def draft(self, key: str, before: Parcel | None = None) -> AbstractContextManager[Draft]:
        """A new draft. Refuses a key inside a parcel; whether the key itself is free shows when it is published."""
        older = before if isinstance(before, FolderParcel) else None
        return FolderDraft(self._root, key, self._workers, older, self._writer)

    def open(self, key: str, digest: str) -> Parcel:
        """The parcel at `key`, manifest and index verified; the blocks are verified as they are read."""
        return open_parcel(self._root, key, digest, self._workers)

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys of all visible parcels below `prefix`, sorted; an empty prefix means all."""
        names = names_of(prefix) if prefix else ()
        with translated(self._root), open_root(self._root) as root:
            try:
                with walk(root, names) as folder:
                    return sorted(_parcels(folder, "/".join(names)))
            except FileNotFoundError:
                return []

    def delete(self, key: str) -> None:
        """Remove a parcel: at once for readers, then its files. One that is not there is no error."""
        hidden = f"{DRAFTS}/{secrets.token_hex(16)}"
        if self._move_away(key, hidden):
            with translated(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
                remove_tree(drafts, hidden.removeprefix(f"{DRAFTS}/"))

    def set_aside(self, key: str) -> None:
        """Move a broken parcel to `.broken`. One that is not there is no error."""
        if self._move_away(key, f"{_BROKEN}/{key.replace('/', '--')}--{secrets.token_hex(4)}"):
            with translated(self._root), open_root(self._root) as root, walk(root, (_BROKEN,)) as broken:
                os.fsync(broken)

    def remove_set_aside(self, folder: str) -> None:
        """Remove what was set aside of the parcels whose keys begin with `folder/`."""
        mine = f"{folder}/".replace("/", "--")
        with translated(self._root), open_root(self._root) as root, walk(root, (_BROKEN,)) as broken:
            for name in entries(broken):
                if name.startswith(mine):
                    remove_tree(broken, name)

    def writers(self) -> Collection[str]:
        """Whose drafts are there, as far as they have names."""
        with translated(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            return {writer for name in entries(drafts) if (writer := writer_of(name))}

    def sweep(self, *, before_s: float, ended: Collection[str] = ()) -> int:
        """Remove what was left in `.drafts` by programs that died: all of the writers that have `ended`, and all not
        written to since `before_s` (seconds since the epoch, the file server's clock). How many were removed.

        A writer that wakes up after that gets a `StorageError` and has published nothing.
        """
        with translated(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            stale = [
                name for name in entries(drafts) if writer_of(name) in ended or last_written_s(drafts, name) < before_s
            ]
            for name in stale:
                hidden = secrets.token_hex(16)
                with suppress(FileNotFoundError):  # published or given up just now
                    os.rename(name, hidden, src_dir_fd=drafts, dst_dir_fd=drafts)
                    try:
                        remove_tree(drafts, hidden)
                    except OSError as error:
                        if error.errno != errno.ENOTEMPTY:
                            raise
                        # Its writer lives, and has put a file there just now: what is left goes by its age.
            return len(stale)

    def _move_away(self, key: str, target: str) -> bool:
        names = names_of(key)
        with translated(self._root), open_root(self._root) as root:
            try:
                with walk(root, names) as folder:
                    if MANIFEST not in entries(folder) and any(subfolders(folder)):
                        raise StorageError(f"{key} is no parcel, but a folder of them, in {self._root}")
                with walk(root, names[:-1]) as parent:
                    os.rename(names[-1], target, src_dir_fd=parent, dst_dir_fd=root)
                    os.fsync(parent)
            except (FileNotFoundError, NotADirectoryError):
                return False
            for depth in range(len(names) - 1, 0, -1):  # folders that are empty now; the first that is not ends it
                try:
                    with walk(root, names[: depth - 1]) as parent:
                        os.rmdir(names[depth - 1], dir_fd=parent)
                except OSError:
                    break
            return True


def _parcels(folder: int, key: str) -> Iterator[str]:
    if MANIFEST in entries(folder):
        yield key
        return
    for name in list(subfolders(folder)):
        if is_plain(name):
            with suppress(FileNotFoundError), walk(folder, (name,)) as inner:
                yield from _parcels(inner, f"{key}/{name}" if key else name)


if TYPE_CHECKING:
    _storage: type[Storage] = FolderStorage
