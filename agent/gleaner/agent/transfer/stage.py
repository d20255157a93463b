"""The files of a result on their way to their target."""

import hashlib
import io
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from gleaner.agent.system import openat

Names = tuple[str, ...]
SLOWEST_BYTES_PER_S = 2**20
"""A file system that syncs fewer bytes in a second, or a server that moves fewer, hangs."""
REPORTS_WHILE_SILENT = 4
"""So often progress is reported in the time in which something must be heard."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports that something was moved."""

    report: Callable[[], None]
    silent_s: float
    """The parent gives up when it has heard nothing for so long."""

    def work(self, call: Callable[[], object], size_bytes: int) -> None:
        """Report while a call works that reports nothing itself, for as long as a slow disk needs for the size."""
        every_s = self.silent_s / REPORTS_WHILE_SILENT
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(call)
            for _ in range(math.ceil(size_bytes / SLOWEST_BYTES_PER_S / every_s)):
                if wait([working], every_s).done:
                    break
                self.report()
        working.result()


class StagedFile(io.FileIO):
    """A file of a result. Its digest is computed while it is read."""

    def __init__(self, folder: int, name: str, progress: Progress) -> None:
        super().__init__(openat.open_plain(folder, name))
        self.folder, self.file_name, self.progress = folder, name, progress
        self.size_bytes = os.fstat(self.fileno()).st_size
        self.rewind()

    def rewind(self) -> None:
        """Begin at the first byte again."""
        self.seek(0)
        self.digest, self.read_bytes = hashlib.sha256(), 0

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size) or b""
        self.digest.update(chunk)
        self.read_bytes += len(chunk)
        if chunk:
            self.progress.report()
        return chunk
