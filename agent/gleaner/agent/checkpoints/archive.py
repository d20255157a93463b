"""Open and read published archives. Opening verifies the manifest and the index, and reading verifies each block."""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.checkpoints.chunking import (
    FOOTER_BYTES,
    MOST_BYTES,
    PACKS,
    Block,
    Blocks,
    Damaged,
    index_bytes,
    parse_index,
    part_digest,
)
from gleaner.agent.checkpoints.interface import ArchiveBroken, ArchiveMissing, Part
from gleaner.agent.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_MOST_BYTES,
    ManifestPart,
    manifest_digest,
    names_of,
    parse_manifest,
)
from gleaner.agent.checkpoints.storage_root import open_root, translate_errors
from gleaner.agent.checkpoints.workers import BATCH_BYTES, Workers
from gleaner.agent.system.openat import closing_fd, open_plain, pread_all, read_all, walk

_AHEAD = 4
"""The number of batches of one part that are read ahead."""


def pack_name(number: int) -> str:
    """Return the file name of an archive's own pack, which is number 0, or of a pack shared with older archives."""
    return f"pack-{number}" if number else "blocks.pack"


@dataclass(frozen=True, slots=True)
class Layout:
    """An archive's place in storage. `pack_bytes` are the sizes of its packs by number, with 0 for a missing one."""

    blocks: Mapping[str, Blocks]
    pack_bytes: Sequence[int]
    footer: bytes


class FolderArchive:
    """A published archive whose manifest and index have been verified."""

    def __init__(
        self,
        root: Path,
        key: str,
        *,
        workers: Workers,
        parts: Mapping[str, Part],
        facts: Mapping[str, object],
        layout: Layout,
    ) -> None:
        self.layout = layout
        self._root = root
        self._key = key
        self._workers = workers
        self._parts = parts
        self._facts = facts
        self._verified = {name: bytearray(len(blocks)) for name, blocks in layout.blocks.items()}

    @property
    def verified(self) -> bytes:
        """One byte for each block, in the layout's order. The byte is 1 if the block was read here and is correct."""
        return b"".join(self._verified.values())

    def rely_on_all(self) -> None:
        """Consider all blocks verified, because the caller has just written them and has no time to read them."""
        for flags in self._verified.values():
            flags[:] = b"\x01" * len(flags)

    @property
    def parts(self) -> Mapping[str, Part]:
        return self._parts

    @property
    def facts(self) -> Mapping[str, object]:
        return self._facts

    def read(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[bytes]:
        """Yield the part's content in chunks, each verified by its digest before it is yielded.

        With `numbers`, yield these blocks instead, one at a time, in this order. Some chunks are read ahead. Several
        parts, or one part several times, can be read at the same time. Raises `ArchiveBroken` at the first chunk that
        differs from what was written.
        """
        part = self._parts.get(name)
        if part is None:
            raise ArchiveBroken(f"{self._key} has no part {name!r}")
        return self._chunks(part, numbers)

    @contextmanager
    def folder(self) -> Generator[int]:
        """Yield a descriptor of the archive's folder. Raises `FileNotFoundError` if it no longer exists."""
        with open_root(self._root) as root, walk(root, names_of(self._key)) as folder:
            yield folder

    def _chunks(self, part: Part, numbers: Iterable[int] | None) -> Iterator[bytes]:
        blocks = self.layout.blocks[part.name]
        with ExitStack() as stack:
            try:
                with translate_errors(self._root):
                    files = self._open_packs(
                        stack, part, {pack for _, _, stored_bytes, _, pack in blocks.rows() if stored_bytes}
                    )
                batches = _batches(blocks) if numbers is None else ((one, [blocks[one]]) for one in numbers)
                yield from self._read_ahead(files, part.name, batches)
            except Damaged as error:
                raise ArchiveBroken(f"{self._key}: part {part.name!r} is not what was saved: {error}") from error

    def _open_packs(self, stack: ExitStack, part: Part, numbers: set[int]) -> dict[int, int]:
        if not numbers:
            return {}
        try:
            with self.folder() as folder:
                return {
                    number: stack.enter_context(closing_fd(open_pack(folder, number, self.layout.pack_bytes[number])))
                    for number in sorted(numbers)
                }
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArchiveBroken(f"{self._key}: part {part.name!r} is gone") from error

    def _read_ahead(
        self, files: Mapping[int, int], name: str, batches: Iterable[tuple[int, Sequence[Block]]]
    ) -> Iterator[bytes]:
        tasks: deque[Future[list[bytes]]] = deque()
        try:
            for start, batch in batches:
                tasks.append(self._workers.submit(self._read, files, name, start, batch))
                if len(tasks) > _AHEAD:
                    yield from self._result(tasks.popleft())
            while tasks:
                yield from self._result(tasks.popleft())
        finally:  # the files must stay open as long as a thread reads them
            wait([task for task in tasks if not task.cancel()])

    def _result(self, task: Future[list[bytes]]) -> list[bytes]:
        with translate_errors(self._root):
            return task.result()

    def _read(self, files: Mapping[int, int], name: str, start: int, batch: Sequence[Block]) -> list[bytes]:
        content = [
            self._workers.decode(
                block, pread_all(files[block.pack], block.stored_bytes, block.offset) if block.stored_bytes else b""
            )
            for block in batch
        ]
        self._verified[name][start : start + len(batch)] = b"\x01" * len(batch)
        return content


def stored_digest(root: Path, key: str) -> str:
    """Return the digest of the manifest at this key, computed from the stored manifest itself.

    This is for a queue that has lost its own record of the digest. Raises `ArchiveMissing` or `StorageError`.
    """
    with translate_errors(root), open_root(root) as storage:
        try:
            with walk(storage, names_of(key)) as folder:
                return manifest_digest(read_all(folder, MANIFEST, most_bytes=MANIFEST_MOST_BYTES))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArchiveMissing(f"{key} is not in the storage folder {root}") from error


def open_archive(root: Path, key: str, digest: str, workers: Workers) -> FolderArchive:
    """Return the archive at `key`. Raises `ArchiveBroken` unless it has this digest and a matching index."""
    names = names_of(key)
    with translate_errors(root), open_root(root) as storage:
        try:
            with walk(storage, names) as folder:
                manifest = read_all(folder, MANIFEST, most_bytes=MANIFEST_MOST_BYTES)
                actual = manifest_digest(manifest)
                if actual != digest:
                    raise ArchiveBroken(f"{key}: the manifest's digest is {actual}, expected {digest}")
                parts, facts = parse_manifest(key, manifest)
                try:
                    layout = _layout(folder, parts)
                except FileNotFoundError as error:
                    raise ArchiveMissing(f"{key}: {pack_name(0)} is gone") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArchiveMissing(f"{key} is not in the storage folder {root}") from error
        except Damaged as error:
            raise ArchiveBroken(f"{key}: {error}") from error
    by_name = {one.part.name: one.part for one in parts}
    return FolderArchive(root, key, workers=workers, parts=by_name, facts=facts, layout=layout)


def _layout(folder: int, parts: Sequence[ManifestPart]) -> Layout:
    counts = [one.blocks for one in parts]
    size_bytes = index_bytes(sum(counts))
    with closing_fd(open_plain(folder, pack_name(0))) as file:
        file_bytes = os.fstat(file).st_size
        start = file_bytes - FOOTER_BYTES - size_bytes
        if start < 0:
            raise Damaged(f"{pack_name(0)} was cut off")
        index = pread_all(file, size_bytes, start)
        footer = footer_of(file, file_bytes)
    pack_bytes, blocks = parse_index(index, footer, counts)
    if pack_bytes[0] != file_bytes:
        raise Damaged(f"{pack_name(0)} has {file_bytes} bytes, {pack_bytes[0]} were written")
    for one, part in zip(parts, blocks, strict=True):
        if part_digest(part) != one.part.digest or not _is_sound(part, pack_bytes):
            raise Damaged(f"the index does not say what the manifest says of part {one.part.name!r}")
    return Layout({one.part.name: part for one, part in zip(parts, blocks, strict=True)}, pack_bytes, footer)


def footer_of(file: int, file_bytes: int) -> bytes:
    """Return the last bytes of a pack. They contain the digest of the index, so they identify the archive."""
    return pread_all(file, FOOTER_BYTES, file_bytes - FOOTER_BYTES)


def _is_sound(blocks: Blocks, pack_bytes: Sequence[int]) -> bool:
    """Return True if all blocks lie inside their packs. The system might reject an offset outside a pack."""
    return all(
        stored_bytes <= size_bytes <= MOST_BYTES
        and (not stored_bytes or (pack < PACKS and offset + stored_bytes <= pack_bytes[pack]))
        for _, offset, stored_bytes, size_bytes, pack in blocks.rows()
    )


def open_pack(folder: int, number: int, size_bytes: int) -> int:
    """Open a pack. Raises `Damaged` if the pack has a different size, and `FileNotFoundError` if it does not exist."""
    file = open_plain(folder, pack_name(number))
    actual_bytes = os.fstat(file).st_size
    if actual_bytes != size_bytes:
        os.close(file)
        raise Damaged(f"{pack_name(number)} has {actual_bytes} bytes, {size_bytes} were written")
    return file


def _batches(blocks: Blocks) -> Iterator[tuple[int, list[Block]]]:
    """Yield the blocks in order, in batches large enough for a task, each with the number of its first block."""
    batch: list[Block] = []
    size_bytes = 0
    for number, block in enumerate(blocks):
        if size_bytes + block.size_bytes > BATCH_BYTES:
            yield number - len(batch), batch
            batch, size_bytes = [], 0
        batch.append(block)
        size_bytes += block.size_bytes
    if batch:
        yield len(blocks) - len(batch), batch
