"""Write an archive as a draft in a folder, until one rename makes it visible."""

import errno
import os
import secrets
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from gleaner.agent.checkpoints.archive import FolderArchive, pack_name
from gleaner.agent.checkpoints.chunking import FOOTER_BYTES, PACKS, Blocks, Damaged, index_bytes, index_of
from gleaner.agent.checkpoints.dedup import KnownBlocks, link_packs
from gleaner.agent.checkpoints.interface import BytesLike, Part, Published, StorageError
from gleaner.agent.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_MOST_BYTES,
    ManifestPart,
    is_plain,
    make_manifest,
    manifest_digest,
    names_of,
)
from gleaner.agent.checkpoints.pack_writer import Pack, PartWriter, find_nothing
from gleaner.agent.checkpoints.storage_root import DRAFTS, open_root, translate_errors
from gleaner.agent.checkpoints.workers import Workers
from gleaner.agent.system.openat import (
    closing_fd,
    create,
    read_all,
    remove_tree,
    walk,
    walk_and_make,
    write_all,
)

_RACES = 20
"""The maximum number of tries to publish. A deletion might remove the empty parent folder at the same time."""


def draft_name(writer: str) -> str:
    """Return a name for a new draft, which begins with the writer's name."""
    return f"{writer}--{secrets.token_hex(16)}" if writer else secrets.token_hex(16)


def writer_of(name: str) -> str:
    """Return the writer whose draft has this name, or "" if the name has no writer.

    >>> writer_of("gleaner-1790000000-1f2e--00112233445566778899aabbccddeeff"), writer_of("0011")
    ('gleaner-1790000000-1f2e', '')
    """
    writer = name.rpartition("--")[0]
    return writer if is_plain(writer) else ""


class FolderDraft:
    """An archive that is being written, and that other programs cannot see.

    Several threads can write it at the same time, each a different part.
    """

    def __init__(self, root: Path, key: str, workers: Workers, before: FolderArchive | None, writer: str = "") -> None:
        self._root = root
        self._key = key
        self._names = names_of(key)
        self._workers = workers
        self._before = before
        self._draft = draft_name(writer)
        self._lock = threading.Lock()
        self._parts: dict[str, tuple[Part, Blocks] | None] = {}
        """Each part by name, or None while it is being written."""
        self._known_blocks: KnownBlocks | None = None
        self._pack: Pack | None = None
        self._is_over = False

    def __enter__(self) -> "FolderDraft":
        with translate_errors(self._root), open_root(self._root) as root:
            self._refuse_visible(root, self._names[:-1])
            with walk(root, (DRAFTS,)) as drafts:
                os.mkdir(self._draft, 0o700, dir_fd=drafts)
                try:
                    with walk(drafts, (self._draft,)) as folder:
                        if self._before is not None:
                            self._known_blocks = link_packs(folder, self._before, self._workers)
                        file = create(folder, pack_name(0))
                except BaseException:
                    if self._known_blocks is not None:
                        self._known_blocks.end()
                    remove_tree(drafts, self._draft)
                    raise
        find_block = self._known_blocks.find if self._known_blocks is not None else find_nothing
        self._pack = Pack(self._root, file, self._workers, find_block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._pack is not None:
            self._pack.end()
        if self._known_blocks is not None:
            self._known_blocks.end()
        with suppress(OSError, StorageError), open_root(self._root) as root, walk(root, (DRAFTS,)) as drafts:
            remove_tree(drafts, self._draft)

    def part(self, name: str) -> PartWriter:
        """Return a writer for a new part."""
        if not is_plain(name):
            raise StorageError(f"{name!r} cannot be the name of a part")
        with self._lock:
            if self._is_over or self._pack is None or name in self._parts:
                raise StorageError(f"{self._key}: part {name!r} cannot be added (again)")
            self._parts[name] = None
        return PartWriter(name, self._pack, self._end_part)

    def _end_part(self, name: str, part: Part | None, blocks: Blocks) -> None:
        with self._lock:
            if part is None:
                del self._parts[name]
            else:
                self._parts[name] = (part, blocks)

    def add(self, name: str, chunks: Iterable[BytesLike]) -> Part:
        """Write one part. Raises `StorageFull` or `StorageError`."""
        with self.part(name) as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.close()

    def publish(self, facts: Mapping[str, object]) -> Published:
        """Write the manifest with `facts` (plain JSON values), sync all files, and make the archive visible in one
        step.

        All writers must have been closed. Raises `StorageError` if another archive is visible under the key. If exactly
        this archive is visible, there is no error, so a failed publication can be tried again with a new draft.
        """
        with self._lock:
            parts = self._complete_parts()
            manifest = make_manifest(self._key, [ManifestPart(part, len(blocks)) for part, blocks in parts], facts)
            self._is_over = True
        with translate_errors(self._root), self._folder() as folder:
            stored_bytes = self._end_pack(folder, [blocks for _, blocks in parts])
            with closing_fd(create(folder, MANIFEST)) as file:
                write_all(file, manifest)
                os.fsync(file)
            os.fsync(folder)
        with translate_errors(self._root), open_root(self._root) as root:
            self._make_visible(root, manifest)
        return Published(
            key=self._key,
            digest=manifest_digest(manifest),
            size_bytes=sum(part.size_bytes for part, _ in parts) + len(manifest),
            stored_bytes=stored_bytes + len(manifest),
        )

    def _complete_parts(self) -> Sequence[tuple[Part, Blocks]]:
        """Return all parts, sorted by name."""
        if self._is_over:
            raise StorageError(f"{self._key} has been published or given up")
        complete = [part for _, part in sorted(self._parts.items()) if part is not None]
        if len(complete) < len(self._parts):
            raise StorageError(f"{self._key}: a part is still being written")
        return complete

    def _end_pack(self, folder: int, parts: Sequence[Blocks]) -> int:
        """Complete the pack and sync it to the disk. Return its size."""
        pack = self._pack
        assert pack is not None  # noqa: S101 - it was opened in __enter__
        pack.settle()
        shared_bytes = [0] * (PACKS - 1)
        if self._known_blocks is not None:
            try:
                shared_bytes = self._known_blocks.settle(folder, parts, pack)
            except Damaged as error:
                raise StorageError(f"{self._key}: the archive before is damaged ({error}); save without it") from error
        own_bytes = pack.size_bytes + index_bytes(sum(map(len, parts))) + FOOTER_BYTES
        for piece in index_of([own_bytes, *shared_bytes], parts):
            pack.append(piece)
        pack.sync()
        return own_bytes

    def _make_visible(self, root: int, manifest: bytes) -> None:
        for chance in range(_RACES):
            try:
                with walk_and_make(root, self._names[:-1]) as parent:
                    if not self._is_visible(parent, manifest):  # an earlier try can have failed after its rename
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
            if self._is_visible(parent, manifest):  # NFS might have renamed it and lost the answer
                return
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise StorageError(f"{self._key} is already published in {self._root}") from error
            raise

    def _is_visible(self, parent: int, manifest: bytes) -> bool:
        try:
            with walk(parent, self._names[-1:]) as folder:
                return read_all(folder, MANIFEST, most_bytes=MANIFEST_MOST_BYTES) == manifest
        except OSError:
            return False

    def _refuse_visible(self, root: int, names: tuple[str, ...]) -> None:
        """Raise `StorageError` if this folder, or one above it, is an archive."""
        for depth in range(1, len(names) + 1):
            try:
                with walk(root, names[:depth]) as folder:
                    os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            raise StorageError(f"{'/'.join(names[:depth])} is already published in {self._root}")

    @contextmanager
    def _folder(self) -> Generator[int]:
        with (
            translate_errors(self._root, "the draft was removed"),
            open_root(self._root) as root,
            walk(root, (DRAFTS, self._draft)) as folder,
        ):
            file = os.dup(folder)
        with closing_fd(file):
            yield file
