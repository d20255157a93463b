"""Store archives in a folder that all nodes share (NFS, Lustre, GPFS, or a local disk if there is only one node).

    ROOT/.drafts/WRITER--UUID/  archives being written, by the agent of that name
    ROOT/.drafts/UUID/          archives being written by others, and deleted archives before their files are removed
    ROOT/.broken/KEY--UUID/     archives that were set aside
    ROOT/jobs/7/attempt-3/checkpoint-1/{blocks.pack,pack-1,...,manifest.json}

An archive is written in `.drafts`. All its files and folders are synced, and the manifest is written last. One rename
makes the archive visible. Nothing visible is ever changed, so archives can share a pack, to which each has a hard link.
Only the owner has access to the files (0700, 0600), since checkpoints contain the secrets of processes. All paths are
walked from the root without following symbolic links.

The folder must have been set up once (`prepare`). A node on which the shared file system is not mounted therefore
reports an error. Otherwise it would find every archive missing, or keep its own archives on the local disk.
"""

import errno
import os
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from gleaner.agent.checkpoints.archive import FolderArchive, open_archive, stored_digest
from gleaner.agent.checkpoints.draft import FolderDraft, writer_of
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.checkpoints.manifest import MANIFEST, is_plain, names_of
from gleaner.agent.checkpoints.storage_root import DRAFTS, STORAGE_ID, open_root, translate_errors
from gleaner.agent.checkpoints.workers import Workers
from gleaner.agent.system import atomic
from gleaner.agent.system.openat import (
    closing_fd,
    entries,
    remove_tree,
    subfolders,
    walk,
)

_BROKEN = ".broken"


class FolderStorage:
    """The storage below one folder. It outlives nodes and agents, and is safe for any number of processes on them.

    Keys are relative paths of plain names, such as `jobs/7/attempt-3/checkpoint-1`. Every method can raise
    `StorageError`. `writer` is the plain name under which this object makes its drafts, if it has one.
    """

    def __init__(self, root: Path, writer: str = "") -> None:
        if writer and not is_plain(writer):
            raise StorageError(f"{writer!r} cannot be the name of a writer")
        self._root = root
        self._writer = writer
        self._workers = Workers()

    def prepare(self) -> None:
        """Set up the folder, which is needed only once. A second call changes nothing, even at the same time.

        This is called by an admin's command and not at every start, because it would turn an empty mount point into a
        storage folder if the shared file system were missing.
        """
        with translate_errors(self._root):
            self._root.mkdir(mode=0o700, exist_ok=True)
            for name in (DRAFTS, _BROKEN):
                (self._root / name).mkdir(mode=0o700, exist_ok=True)
            self._root.chmod(0o700)
            if not (self._root / STORAGE_ID).exists():
                number = secrets.token_hex(16)
                own = self._root / f"{STORAGE_ID}-{number}"
                atomic.write(own, f"{number}\n".encode())
                with suppress(FileExistsError):  # two runs can begin at the same time, and the first number stays
                    os.link(own, self._root / STORAGE_ID)
                own.unlink()
            for folder in (self._root, self._root.parent):
                with closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as file:
                    os.fsync(file)

    def draft(self, key: str, before: FolderArchive | None = None) -> AbstractContextManager[FolderDraft]:
        """Return a new draft. At the end of its context, a draft that was not published is removed.

        A key inside an archive is refused here, and a key that is in use is refused by `publish`. Blocks that the
        archive `before` contains are checked and not stored again. Deleting `before` later does no harm. If `before` no
        longer exists or cannot be shared, all blocks are stored.
        """
        return FolderDraft(self._root, key, self._workers, before, self._writer)

    def open(self, key: str, digest: str) -> FolderArchive:
        """Return the archive at `key` with its manifest and index verified. Each block is verified when it is read.

        Raises `ArchiveBroken` unless its manifest has this digest.
        """
        return open_archive(self._root, key, digest, self._workers)

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys of all visible archives below `prefix`, sorted. An empty prefix means all archives."""
        names = names_of(prefix) if prefix else ()
        with translate_errors(self._root), open_root(self._root) as root:
            try:
                with walk(root, names) as folder:
                    return sorted(_archives(folder, "/".join(names)))
            except FileNotFoundError:
                return []

    def delete(self, key: str) -> None:
        """Hide an archive from readers immediately, and then remove its files. If the archive does not exist, nothing
        happens.
        """
        hidden = f"{DRAFTS}/{secrets.token_hex(16)}"
        if self._move_away(key, hidden):
            with translate_errors(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
                remove_tree(drafts, hidden.removeprefix(f"{DRAFTS}/"))

    def stored_digest(self, key: str) -> str:
        """Return the digest of the archive at this key, computed from the stored manifest itself.

        Raises `ArchiveMissing`.
        """
        return stored_digest(self._root, key)

    def set_aside(self, key: str) -> None:
        """Move a broken archive to `.broken`. If the archive does not exist, nothing happens."""
        if self._move_away(key, f"{_BROKEN}/{key.replace('/', '--')}--{secrets.token_hex(4)}"):
            with translate_errors(self._root), open_root(self._root) as root, walk(root, (_BROKEN,)) as broken:
                os.fsync(broken)

    def remove_set_aside(self, folder: str) -> None:
        """Remove the archives that were set aside and whose keys begin with `folder/`."""
        mine = f"{folder}/".replace("/", "--")
        with translate_errors(self._root), open_root(self._root) as root, walk(root, (_BROKEN,)) as broken:
            for name in entries(broken):
                if name.startswith(mine):
                    remove_tree(broken, name)

    def writers(self) -> Collection[str]:
        """Return the names of the writers that have drafts. Drafts without a writer's name are left out."""
        with translate_errors(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            return {writer for name in entries(drafts) if (writer := writer_of(name))}

    def sweep(self, *, before_s: float, ended_writers: Collection[str] = ()) -> int:
        """Remove the drafts that programs left when they died. Return their number.

        These are all drafts of `ended_writers`, and all drafts that have not been written to since `before_s` (seconds
        since the epoch, by the file server's clock). If such a draft's writer resumes after that, its calls raise
        `StorageError`, and nothing is published.
        """
        with translate_errors(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            stale = [
                name
                for name in entries(drafts)
                if writer_of(name) in ended_writers or _last_written_s(drafts, name) < before_s
            ]
            for name in stale:
                hidden = secrets.token_hex(16)
                with suppress(FileNotFoundError):  # it has just been published or given up
                    os.rename(name, hidden, src_dir_fd=drafts, dst_dir_fd=drafts)
                    try:
                        remove_tree(drafts, hidden)
                    except OSError as error:
                        if error.errno != errno.ENOTEMPTY:
                            raise
                        # Its writer lives, and has just put a file there. A later sweep removes the rest because of its
                        # age.
            return len(stale)

    def _move_away(self, key: str, target: str) -> bool:
        names = names_of(key)
        with translate_errors(self._root), open_root(self._root) as root:
            try:
                with walk(root, names) as folder:
                    if MANIFEST not in entries(folder) and any(subfolders(folder)):
                        raise StorageError(f"{key} is no archive, but a folder of them, in {self._root}")
                with walk(root, names[:-1]) as parent:
                    os.rename(names[-1], target, src_dir_fd=parent, dst_dir_fd=root)
                    os.fsync(parent)
            except (FileNotFoundError, NotADirectoryError):
                return False
            for depth in range(len(names) - 1, 0, -1):  # remove empty folders up to the first that is not
                try:
                    with walk(root, names[: depth - 1]) as parent:
                        os.rmdir(names[depth - 1], dir_fd=parent)
                except OSError:
                    break
            return True


def _archives(folder: int, key: str) -> Iterator[str]:
    if MANIFEST in entries(folder):
        yield key
        return
    for name in list(subfolders(folder)):
        if is_plain(name):
            with suppress(FileNotFoundError), walk(folder, (name,)) as inner:
                yield from _archives(inner, f"{key}/{name}" if key else name)


def _last_written_s(folder: int, name: str) -> float:
    """Return the time of the latest change in a draft, or now if the draft disappears during the check."""
    try:
        latest_s = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        with suppress(NotADirectoryError), walk(folder, (name,)) as draft:
            for inner in entries(draft):
                latest_s = max(latest_s, os.stat(inner, dir_fd=draft, follow_symlinks=False).st_mtime)
        return latest_s
    except FileNotFoundError:
        return time.time()
