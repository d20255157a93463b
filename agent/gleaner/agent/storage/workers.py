"""The threads that hash, compress and read for all drafts and parcels of one storage, and the memory they may use."""

import ctypes
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

import zstandard

from gleaner.agent.storage.blocks import Block, Damaged, digest_of_zeros, zeros

BATCH_BYTES = 2**20
"""How much one piece of work is about."""
_IN_FLIGHT = 12
"""So many batches are on their way from a writer to the disk at most, over all drafts."""
_LEVEL = 1
_M_ARENA_MAX = -8
"""As in malloc.h."""
_SAMPLE_BYTES = 64 * 2**10
_WORTH_IT = 0.9
"""Only what shrinks to this is stored compressed."""

P = ParamSpec("P")
T = TypeVar("T")


def _share_heaps() -> None:
    """Let all threads take their memory from two heaps: by default glibc makes up to eight for each core, and each
    keeps what was freed in it. Saving 1 GiB then takes 80 MiB of memory rather than 95."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class Workers:
    """Threads start when there is work; hashing, zstd and the system's calls let the others run."""

    def __init__(self) -> None:
        _share_heaps()
        cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(min(cores, 4) + 1, thread_name_prefix="storage")
        self._room = threading.Semaphore(_IN_FLIGHT)
        self._free: deque[bytearray] = deque(maxlen=_IN_FLIGHT // 2)
        self._own = threading.local()

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._threads.submit(work, *args, **kwargs)

    def buffer(self) -> bytearray:
        """Room for one batch, with anything in it. Costs memory only as far as it is written to."""
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(BATCH_BYTES)

    def enter(self) -> None:
        """Wait until one more batch may be on its way."""
        self._room.acquire()

    def leave(self, buffer: bytearray) -> None:
        """A batch is done with, and nobody uses its buffer any more."""
        self._free.append(buffer)
        self._room.release()

    def compressed(self, content: memoryview) -> bytes | None:
        """A zstd frame; None if it would not be clearly smaller."""
        zstd = self._compressor()
        sample = content[:_SAMPLE_BYTES]
        frame = zstd.compress(sample)
        if len(frame) > len(sample) * _WORTH_IT:
            return None
        if len(sample) < len(content):
            frame = zstd.compress(content)
        return frame if len(frame) <= len(content) * _WORTH_IT else None

    def decoded(self, block: Block, stored: bytes) -> bytes:
        """The block's plain content, compared with its digest. Raises `Damaged`."""
        if len(stored) != block.stored_bytes:
            raise Damaged("it was cut off")
        content = stored
        if block.stored_bytes == 0:
            if block.digest != digest_of_zeros(block.size_bytes):
                raise Damaged("a block is missing")
            return zeros(block.size_bytes)
        if block.stored_bytes < block.size_bytes:
            try:
                if zstandard.frame_content_size(stored) != block.size_bytes:  # before memory is taken for it
                    raise Damaged("a block has another size")
                content = self._decompressor().decompress(stored)
            except zstandard.ZstdError as error:
                raise Damaged(f"a block cannot be decompressed: {error}") from error
        if len(content) != block.size_bytes or hashlib.sha256(content).digest() != block.digest:
            raise Damaged("a block's digest differs")
        return content

    def _compressor(self) -> zstandard.ZstdCompressor:
        if not hasattr(self._own, "compressor"):
            self._own.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        found: zstandard.ZstdCompressor = self._own.compressor
        return found

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        if not hasattr(self._own, "decompressor"):
            self._own.decompressor = zstandard.ZstdDecompressor()
        found: zstandard.ZstdDecompressor = self._own.decompressor
        return found
