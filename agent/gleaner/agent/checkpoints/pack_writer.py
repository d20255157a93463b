"""Write a draft's pack file. Blocks come from any thread, and one thread writes them in order.

    write() of any thread → batch of whole blocks → workers hash and compress → writing thread → syncing thread

The amount of data on its way to the writing thread is bounded. The syncing thread keeps the disk busy from the
beginning. Therefore the last sync has little to write, and we know how much the disk still has to write. Blocks of a
large archive are compressed only when the disk falls behind, because a disk that keeps up is faster without
compression.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple

from gleaner.agent.checkpoints.chunking import MOST_BYTES, Block, Blocks, cuts, digest_of_zeros, part_digest
from gleaner.agent.checkpoints.interface import BytesLike, Part, StorageError
from gleaner.agent.checkpoints.storage_root import translate_errors
from gleaner.agent.checkpoints.workers import BATCH_BYTES, Workers
from gleaner.agent.system.openat import writev_all

_ZEROS = memoryview(bytes(MOST_BYTES))
_SYNC_BYTES = 8 * 2**20
"""The number of bytes that are synced to the disk in one step."""
_BEHIND_BYTES = 32 * 2**20
"""If this much is left to write, the disk is slower than the arriving data."""
_LITTLE_BYTES = 4 * 2**20
"""Compressing this little takes no noticeable time."""

FindBlock = Callable[[bytes, bytearray, int], Block | None]
"""A function that finds the stored block with a digest, so that it need not be stored again, or returns None.

The block's content is in the buffer, starting at the given offset. The function verifies the stored block. Several
threads call it.
"""


def find_nothing(_digest: bytes, _buffer: bytearray, _start: int) -> None:
    """Return None, because every block is new."""


class PreparedBlock(NamedTuple):
    """A block before it is written. Without `stored` it needs no space, and its `block` is complete."""

    block: Block
    stored: bytes | memoryview | None


@dataclass(slots=True)
class Batch:
    """Whole blocks of one part in a buffer, with their ends."""

    buffer: bytearray
    ends: list[int]
    part: Blocks
    prepared: Future[list[PreparedBlock]] = field(init=False)
    is_written: threading.Event = field(default_factory=threading.Event)


class Pack:
    """The pack of one draft, which owns `file`. An error in one thread is raised in all threads that use the draft."""

    def __init__(self, root: Path, file: int, workers: Workers, find_block: FindBlock) -> None:
        self._root = root
        self._file = file
        self._workers = workers
        self._find_block = find_block
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._so_far_bytes = 0
        self._synced_bytes = 0
        self._is_over = False
        self._error: BaseException | None = None
        self.size_bytes = 0

    def buffer(self) -> bytearray:
        return self._workers.buffer()

    def put(self, batch: Batch) -> None:
        """Accept a batch. This waits while too much data is on its way."""
        self._workers.enter()
        try:
            with self._lock:
                self.check()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._write_all, name="storage pack", daemon=True)
                    self._thread.start()
                self._so_far_bytes += batch.ends[-1]
                batch.prepared = self._workers.submit(self._prepare, batch)
                self._queue.put(batch)
        except BaseException:
            self._workers.leave(batch.buffer)
            raise

    def check(self) -> None:
        """Raise the error if writing has failed, which means that the whole draft has failed."""
        if isinstance(self._error, OSError):
            with translate_errors(self._root):
                raise OSError(self._error.errno, self._error.strerror) from self._error
        if self._error is not None:
            raise StorageError(f"the draft cannot be written: {self._error}") from self._error

    def append(self, stored: bytes) -> int:
        """Append a stored block to the pack, while no part is being written. Return the offset."""
        offset = self.size_bytes
        writev_all(self._file, [stored])
        self.size_bytes += len(stored)
        return offset

    def settle(self) -> None:
        """Wait until everything is written, after which the writing thread has ended."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self.check()

    def sync(self) -> None:
        """Sync the pack to the disk, and check that it has the right size."""
        os.fsync(self._file)
        actual_bytes = os.fstat(self._file).st_size
        if actual_bytes != self.size_bytes:
            raise StorageError(f"the pack has {actual_bytes} bytes on the storage, {self.size_bytes} were written")

    def end(self) -> None:
        """End the thread and close the file, even after a failure or in the middle of writing."""
        with self._lock:
            self._error = self._error or StorageError("it has ended")
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        with suppress(OSError):
            os.close(self._file)

    def _prepare(self, batch: Batch) -> list[PreparedBlock]:
        waiting_bytes = self.size_bytes - self._synced_bytes
        compress = is_worth_compressing(so_far_bytes=self._so_far_bytes, waiting_bytes=waiting_bytes)
        return [self._prepare_block(batch, start, end, compress) for start, end in pairwise([0, *batch.ends])]

    def _prepare_block(self, batch: Batch, start: int, end: int, compress: bool) -> PreparedBlock:
        size_bytes = end - start
        if batch.buffer.startswith(_ZEROS[:size_bytes], start):
            return PreparedBlock(Block(digest_of_zeros(size_bytes), 0, 0, size_bytes, 0), None)
        content = memoryview(batch.buffer)[start:end]
        digest = hashlib.sha256(content).digest()
        if (known_block := self._find_block(digest, batch.buffer, start)) is not None:
            return PreparedBlock(known_block, None)
        stored = (self._workers.compress(content) if compress else None) or content
        return PreparedBlock(Block(digest, 0, len(stored), size_bytes, 0), stored)

    def _write_all(self) -> None:
        syncing = threading.Thread(target=self._sync_all, name="storage sync", daemon=True)
        syncing.start()
        while (batch := self._queue.get()) is not None:
            try:
                prepared = batch.prepared.result()
                if self._error is None:
                    self._write(batch, prepared)
            except BaseException as error:  # raised again by check()
                self._error = error
            self._workers.leave(batch.buffer)
            batch.is_written.set()
        with self._lock:
            self._is_over = True
            self._progress.notify()
        syncing.join()

    def _sync_all(self) -> None:
        while True:
            with self._lock:
                self._progress.wait_for(lambda: self._is_over or self.size_bytes >= self._synced_bytes + _SYNC_BYTES)
                if self._is_over:
                    return
                size_bytes = self.size_bytes
            try:
                os.fdatasync(self._file)
            except OSError as error:  # the system reports a lost write only once
                self._error = error
                return
            self._synced_bytes = size_bytes

    def _write(self, batch: Batch, prepared: list[PreparedBlock]) -> None:
        stored = [one.stored for one in prepared if one.stored is not None]
        writev_all(self._file, stored)
        offset = self.size_bytes
        for one in prepared:
            if one.stored is None:
                batch.part.append(one.block)
            else:
                batch.part.append(one.block._replace(offset=offset))
                offset += len(one.stored)
        with self._lock:
            self.size_bytes = offset
            self._progress.notify()


def is_worth_compressing(*, so_far_bytes: int, waiting_bytes: int) -> bool:
    """Return True if little has been written so far, or if much waits for the disk, which is then the slower part."""
    return so_far_bytes <= _LITTLE_BYTES or waiting_bytes >= _BEHIND_BYTES


class PartWriter:
    """The writer of one part, for one thread at a time. If an error occurs inside its context, no part is left."""

    def __init__(self, name: str, pack: Pack, on_end: Callable[[str, Part | None, Blocks], None]) -> None:
        self._name = name
        self._pack = pack
        self._is_over = on_end
        self._blocks = Blocks()
        self._buffer: bytearray | None = None
        self._fill_bytes = 0
        self._size_bytes = 0
        self._latest: Batch | None = None
        self._part: Part | None = None
        self._open = True

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif self._open:
            self.close()

    def write(self, chunk: BytesLike) -> None:
        """Append a chunk, whose buffer can be reused afterwards.

        This waits while the storage is slower than its writers. Raises `StorageFull` or `StorageError`, also for
        earlier writes and those of the draft's other writers, because the draft has then failed as a whole.
        """
        if not self._open:
            raise StorageError(f"part {self._name!r} is closed")
        rest = memoryview(chunk).cast("B")
        self._size_bytes += len(rest)
        while rest:
            if self._buffer is None:
                self._buffer = self._pack.buffer()
            count = min(len(rest), BATCH_BYTES - self._fill_bytes)
            memoryview(self._buffer)[self._fill_bytes : self._fill_bytes + count] = rest[:count]
            self._fill_bytes += count
            rest = rest[count:]
            if self._fill_bytes == BATCH_BYTES:
                self._flush(last=False)

    def close(self) -> Part:
        """Complete the part and return it. A second call returns it again. Raises the same errors as `write`."""
        if self._part is not None:
            return self._part
        if not self._open:
            raise StorageError(f"part {self._name!r} was given up")
        try:
            self._flush(last=True)
            if self._latest is not None:
                self._latest.is_written.wait()
            self._pack.check()
        except BaseException:
            self.abort()
            raise
        self._open = False
        self._part = Part(self._name, self._size_bytes, part_digest(self._blocks))
        self._is_over(self._name, self._part, self._blocks)
        return self._part

    def abort(self) -> None:
        """Drop the part, so that its name is free again."""
        if self._open:
            self._open = False
            self._buffer = None
            self._is_over(self._name, None, self._blocks)

    def _flush(self, *, last: bool) -> None:
        if self._buffer is None:
            return
        full, content = self._buffer, memoryview(self._buffer)[: self._fill_bytes]
        ends = cuts(content, last=last)
        rest = content[ends[-1] :]
        self._buffer, self._fill_bytes = None, len(rest)
        if rest:
            self._buffer = self._pack.buffer()
            memoryview(self._buffer)[: len(rest)] = rest
        batch = Batch(full, ends, self._blocks)
        self._pack.put(batch)
        self._latest = batch
