"""Storage in a folder that all nodes share (NFS, Lustre, GPFS, or a local disk where there is one node).

    ROOT/.drafts/UUID/          parcels being written, and deleted ones on their way out
    ROOT/.broken/KEY--UUID/     what was set aside
    ROOT/jobs/7/attempt-3/generation-1/{memory.tar,...,manifest.json}

A parcel is written in `.drafts`, every file and folder of it synced, the manifest last; one rename makes it
visible. Nothing that is visible is ever changed. The manifest is made of nothing but the parts and the facts, so a
publication that is tried again after an error finds out whether it has been made. Everything is made for the
owner alone (0700, 0600), since checkpoints hold a process's secrets. All paths are walked from the root without
following symbolic links.

The folder must have been set up once (`prepare`): a node on which the shared file system is not mounted then
says so, instead of finding every parcel missing or keeping its own on the local disk.
"""

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from gleaner.agent.storage.inside import (
    CHUNK_BYTES,
    DRAFTS,
    create,
    entries,
    last_written_s,
    made,
    open_root,
    opened,
    read_all,
    remove_tree,
    subfolders,
    translated,
    walk,
    write_all,
)
from gleaner.agent.storage.protocol import (
    Draft,
    Parcel,
    ParcelBroken,
    Part,
    Published,
    Storage,
    StorageError,
)

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
MANIFEST_MOST_BYTES = 16 * 2**20

_BROKEN = ".broken"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RACES = 20
"""How often a publication tries again when a deletion removes the empty parent folder under it."""


class FolderStorage:
    """A `Storage` below one folder. Safe for any number of processes on any number of nodes at once."""

    def __init__(self, root: Path) -> None:
        self._root = root

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
            with opened(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
                os.fsync(root)

    def draft(self, key: str) -> AbstractContextManager[Draft]:
        """A new draft. Refuses a key inside a parcel; whether the key itself is free shows when it is published."""
        return FolderDraft(self._root, key)

    def open(self, key: str, digest: str) -> Parcel:
        """The parcel at `key`, its manifest verified; the parts are verified as they are read."""
        names = _names(key)
        with translated(self._root), open_root(self._root) as root:
            try:
                with walk(root, names) as folder:
                    manifest = read_all(folder, MANIFEST, most_bytes=MANIFEST_MOST_BYTES)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ParcelBroken(f"{key} is not in the storage folder {self._root}") from error
        found = _digest(manifest)
        if found != digest:
            raise ParcelBroken(f"{key}: the manifest's digest is {found}, expected {digest}")
        parts, facts = _parse(key, manifest)
        return FolderParcel(self._root, key, parts, facts)

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys of all visible parcels below `prefix`, sorted; an empty prefix means all."""
        names = _names(prefix) if prefix else ()
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
        self._move_away(key, f"{_BROKEN}/{key.replace('/', '--')}--{secrets.token_hex(4)}")

    def sweep(self, *, before_s: float) -> int:
        """Remove what was left in `.drafts` by programs that died: all not written to since `before_s`
        (seconds since the epoch, the file server's clock). How many were removed.

        A writer that wakes up after that gets a `StorageError` and has published nothing.
        """
        with translated(self._root), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            stale = [name for name in entries(drafts) if last_written_s(drafts, name) < before_s]
            for name in stale:
                remove_tree(drafts, name)
            return len(stale)

    def _move_away(self, key: str, target: str) -> bool:
        names = _names(key)
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


class FolderDraft:
    """A parcel being written. Different parts may be added from different threads."""

    def __init__(self, root: Path, key: str) -> None:
        self._root = root
        self._key = key
        self._names = _names(key)
        self._draft = secrets.token_hex(16)
        self._parts: dict[str, Part] = {}
        self._published = False

    def __enter__(self) -> "FolderDraft":
        with translated(self._root), open_root(self._root) as root:
            self._refuse_visible(root, self._names[:-1])
            with walk(root, (DRAFTS,)) as drafts:
                os.mkdir(self._draft, 0o700, dir_fd=drafts)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, StorageError), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            remove_tree(drafts, self._draft)

    def add(self, name: str, chunks: Iterable[bytes]) -> Part:
        if not _PLAIN_NAME.fullmatch(name) or name == MANIFEST:
            raise StorageError(f"{name!r} cannot be the name of a part")
        if self._published or name in self._parts:
            raise StorageError(f"{self._key}: part {name!r} cannot be added (again)")
        hashed = hashlib.sha256()
        size_bytes = 0
        with self._folder() as folder:
            with translated(self._root):
                file = create(folder, name)
            with self._removed_on_failure(folder, name), opened(file, self._root):
                for chunk in chunks:  # the source's own errors pass through untranslated
                    hashed.update(chunk)
                    size_bytes += len(chunk)
                    with translated(self._root):
                        write_all(file, chunk)
                with translated(self._root):
                    os.fsync(file)
        part = Part(name=name, size_bytes=size_bytes, digest=f"sha256:{hashed.hexdigest()}")
        self._parts[name] = part
        return part

    def publish(self, facts: Mapping[str, object]) -> Published:
        if self._published:
            raise StorageError(f"{self._key} has been published")
        parts = [self._parts[name] for name in sorted(self._parts)]
        manifest = _manifest(self._key, parts, facts)
        digest = _digest(manifest)
        with translated(self._root), self._folder() as folder:
            for part in parts:
                self._verify(folder, part)
            with opened(create(folder, MANIFEST), self._root) as file:
                write_all(file, manifest)
                os.fsync(file)
            os.fsync(folder)
        with translated(self._root), open_root(self._root) as root:
            self._make_visible(root, manifest)
        self._published = True
        size_bytes = sum(part.size_bytes for part in parts) + len(manifest)
        return Published(key=self._key, digest=digest, size_bytes=size_bytes)

    def _verify(self, folder: int, part: Part) -> None:
        """Read a part back: what is published was found whole on the storage, not only sent there."""
        file = os.open(part.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with opened(file, self._root), open(file, "rb", closefd=False) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if f"sha256:{found}" != part.digest:
            raise StorageError(f"{self._key}: part {part.name!r} is not on the storage as it was written")

    def _make_visible(self, root: int, manifest: bytes) -> None:
        for chance in range(_RACES):
            try:
                with made(root, self._names[:-1]) as parent:
                    if not self._was_renamed(parent, manifest):  # else by a try before, which failed after that
                        self._rename(root, parent, manifest)
                    os.fsync(parent)
                    return
            except FileNotFoundError:
                if chance == _RACES - 1:
                    raise

    def _rename(self, root: int, parent: int, manifest: bytes) -> None:
        self._refuse_visible(root, self._names)
        try:
            os.rename(f"{DRAFTS}/{self._draft}", self._names[-1], src_dir_fd=root, dst_dir_fd=parent)
        except OSError as error:
            if self._was_renamed(parent, manifest):  # NFS may have done it and lost the answer
                return
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise StorageError(f"{self._key} is already published in {self._root}") from error
            raise

    def _was_renamed(self, parent: int, manifest: bytes) -> bool:
        try:
            with walk(parent, self._names[-1:]) as folder:
                return read_all(folder, MANIFEST, most_bytes=MANIFEST_MOST_BYTES) == manifest
        except OSError:
            return False

    def _refuse_visible(self, root: int, names: tuple[str, ...]) -> None:
        """Raise if this folder, or one above it, is a parcel."""
        for depth in range(1, len(names) + 1):
            try:
                with walk(root, names[:depth]) as folder:
                    os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            raise StorageError(f"{'/'.join(names[:depth])} is already published in {self._root}")

    @contextmanager
    def _removed_on_failure(self, folder: int, name: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise

    @contextmanager
    def _folder(self) -> Generator[int]:
        with (
            translated(self._root, "the draft was removed"),
            open_root(self._root) as root,
            walk(root, (DRAFTS, self._draft)) as folder,
        ):
            file = os.dup(folder)
        with opened(file):
            yield file


class FolderParcel:
    """A published parcel whose manifest has been verified."""

    def __init__(self, root: Path, key: str, parts: Mapping[str, Part], facts: Mapping[str, object]) -> None:
        self._root = root
        self._key = key
        self._parts = parts
        self._facts = facts

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._parts

    @property
    def facts(self) -> Mapping[str, object]:
        return self._facts

    def read(self, name: str) -> Iterator[bytes]:
        part = self._parts.get(name)
        if part is None:
            raise ParcelBroken(f"{self._key} has no part {name!r}")
        return self._chunks(part)

    def _chunks(self, part: Part) -> Iterator[bytes]:
        hashed = hashlib.sha256()
        size_bytes = 0
        with opened(self._open_part(part)) as file:
            while True:
                with translated(self._root):
                    chunk = os.read(file, CHUNK_BYTES)
                if not chunk:
                    break
                hashed.update(chunk)
                size_bytes += len(chunk)
                if size_bytes > part.size_bytes:
                    break
                yield chunk
        if size_bytes != part.size_bytes or f"sha256:{hashed.hexdigest()}" != part.digest:
            raise ParcelBroken(
                f"{self._key}: part {part.name!r} is not what was saved ({size_bytes} bytes read, "
                f"{part.size_bytes} expected; digest {'differs' if size_bytes == part.size_bytes else 'not compared'})"
            )

    def _open_part(self, part: Part) -> int:
        with translated(self._root), open_root(self._root) as root:
            try:
                with walk(root, _names(self._key)) as folder:
                    return os.open(part.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ParcelBroken(f"{self._key}: part {part.name!r} is gone") from error


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _names(key: str) -> tuple[str, ...]:
    """The plain names that a key is made of: none begins with a dot, so none leads out or into our own folders."""
    names = tuple(key.split("/"))
    if not all(_PLAIN_NAME.fullmatch(name) for name in names) or MANIFEST in names:
        raise StorageError(f"{key!r} is no key: it must be plain names with slashes between them")
    return names


def _manifest(key: str, parts: Sequence[Part], facts: Mapping[str, object]) -> bytes:
    listed = [{"name": part.name, "size_bytes": part.size_bytes, "digest": part.digest} for part in parts]
    whole = {"format": MANIFEST_FORMAT, "key": key, "parts": listed, "facts": facts}
    try:
        return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise StorageError(f"{key}: the facts are no plain JSON values: {error}") from error


def _parse(key: str, manifest: bytes) -> tuple[dict[str, Part], dict[str, object]]:
    try:
        whole = cast("dict[str, Any]", json.loads(manifest))
        if whole["format"] != MANIFEST_FORMAT:
            raise ParcelBroken(f"{key}: the manifest has format {whole['format']!r}, known is {MANIFEST_FORMAT}")
        parts = {part["name"]: Part(part["name"], int(part["size_bytes"]), part["digest"]) for part in whole["parts"]}
        return parts, dict(whole["facts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ParcelBroken(f"{key}: the manifest cannot be read: {error}") from error


def _parcels(folder: int, key: str) -> Iterator[str]:
    if MANIFEST in entries(folder):
        yield key
        return
    for name in list(subfolders(folder)):
        if _PLAIN_NAME.fullmatch(name):
            with suppress(FileNotFoundError), walk(folder, (name,)) as inner:
                yield from _parcels(inner, f"{key}/{name}" if key else name)


if TYPE_CHECKING:
    _storage: type[Storage] = FolderStorage
    _draft: type[Draft] = FolderDraft
    _parcel: type[Parcel] = FolderParcel
