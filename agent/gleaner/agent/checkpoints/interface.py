"""The storage of checkpoints and results, as the agent sees it.

An *archive* is a set of named parts under one key, with a manifest that lists each part's size and digest. A part is
stored in blocks, and a block that is known from an older archive is not stored again. An archive becomes visible as a
whole, by one rename after everything is written and synced; a visible archive is never changed. The digest of the
manifest names the content: control keeps the digest, and whoever opens the archive must present it, so that nobody can
substitute another archive.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

BytesLike = bytes | bytearray | memoryview


class StorageError(Exception):
    """The storage refuses or fails; the message names the place and what to do."""


class StorageFull(StorageError):
    """No room, or no quota, is left. Nothing was published."""


class ArchiveBroken(StorageError):
    """The archive is missing, incomplete, or another one than the digest says."""


class ArchiveMissing(ArchiveBroken):
    """Nothing is at that key, as far as this node sees; perhaps another node has just written it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of an archive.

    `digest` is `sha256:` and the SHA-256, in hexadecimal digits, of the part's size (8 bytes, little endian) followed
    by the SHA-256 of each of its blocks. It stands for the content, but is not the content's own SHA-256.
    """

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Published:
    """An archive that is now visible. `digest` is the digest of its manifest.

    `size_bytes` is the size of its content. `stored_bytes` was written for it: without zeros and known blocks, and
    partly compressed.
    """

    key: str
    digest: str
    size_bytes: int
    stored_bytes: int


class PartWriter(Protocol):
    """The writer of one part, for one thread at a time. An error inside its context leaves no part."""

    def __enter__(self) -> "PartWriter": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def write(self, chunk: BytesLike) -> None:
        """Append a chunk; its buffer may be used again afterwards. Waits while the storage is slower than its writers.

        Raises `StorageFull` or `StorageError`, also for earlier writes and those of the draft's other writers: the
        draft has then failed as a whole.
        """
        ...

    def close(self) -> Part:
        """Complete the part and return it; a second call returns it again. Raises like `write`.

        The end of the context closes the part, too.
        """
        ...

    def abort(self) -> None:
        """Drop the part: it is not in the draft, and its name is free again. A closed part stays."""
        ...


class Draft(Protocol):
    """An archive in the making. Nobody else can see it. Its parts may be written at once, each in a thread."""

    def part(self, name: str) -> PartWriter:
        """Return a writer for a new part."""
        ...

    def add(self, name: str, chunks: Iterable[BytesLike]) -> Part:
        """Write one part. Raises `StorageFull` or `StorageError`."""
        ...

    def publish(self, facts: Mapping[str, object]) -> Published:
        """Write the manifest with `facts` (plain JSON values) in it, sync, and make all visible at once.

        All writers must have been closed. Raises `StorageError` if another archive is visible under the key. If exactly
        this archive is visible, there is no error: so a failed publication may be tried again with a new draft.
        """
        ...


class Archive(Protocol):
    """A published archive whose manifest has the expected digest."""

    @property
    def parts(self) -> Mapping[str, Part]: ...

    @property
    def facts(self) -> Mapping[str, object]: ...

    def rely_on_all(self) -> None:
        """Take all blocks as verified: the caller has just written them, and has no time to read them."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the part's content in chunks, each one verified by its digest first.

        Some chunks are read ahead. Several parts, or one part several times, may be read at once. Raises
        `ArchiveBroken` at the first chunk that is not as it was written.
        """
        ...


class Storage(Protocol):
    """A place that outlives nodes and agents. Every method may raise `StorageError`.

    Keys are relative paths of plain names, like `jobs/7/attempt-3/checkpoint-1`.
    """

    def draft(self, key: str, before: Archive | None = None) -> AbstractContextManager[Draft]:
        """Return a new draft. The end of its context removes a draft that was not published.

        Blocks that are in the archive `before`, of this storage, are checked and not stored again. A later deletion of
        `before` does no harm. If `before` is gone or cannot be shared, all blocks are stored.
        """
        ...

    def open(self, key: str, digest: str) -> Archive:
        """Return the archive at `key`. Raises `ArchiveBroken` unless its manifest has this digest."""
        ...

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys of all visible archives below `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove an archive. One that is not there is no error."""
        ...

    def set_aside(self, key: str) -> None:
        """Move a broken archive to a place where an admin can look at it."""
        ...

    def writers(self) -> Collection[str]:
        """Return the names of the writers whose drafts are there."""
        ...

    def sweep(self, *, before_s: float, ended_writers: Collection[str] = ()) -> int:
        """Remove the drafts that programs left when they died. Return how many there were.

        These are the drafts of `ended_writers`, and those that nobody has written to since `before_s` (seconds since
        the epoch).
        """
        ...


FOLDER_PART = "folder.tar"
"""The part with a job's folder, in its checkpoints and in its result."""


def checkpoint_key(job: int, attempt: int, number: int) -> str:
    """Return the key of one checkpoint.

    >>> checkpoint_key(7, 3, 1)
    'jobs/7/attempt-3/checkpoint-1'
    """
    return f"jobs/{job}/attempt-{attempt}/checkpoint-{number}"


def checkpoints_to_keep(chains: Sequence[str | None]) -> Sequence[int]:
    """Return the positions of the checkpoints to keep, from the chains of all whole ones of a job, the newest first.

    The newest two stay: if one is broken, only the work since the other is lost. The newest one of another chain stays
    too: it shares no file with the newest of all, and a rotten file breaks all checkpoints that share it.

    >>> checkpoints_to_keep(["1/8", "1/8", "1/4", "1/4"]), checkpoints_to_keep([None, "1/1", "1/1"])
    ([0, 1, 2], [0, 1])
    """
    independent = [at for at, chain in enumerate(chains) if chain != chains[0]]
    return sorted({*range(len(chains))[:2], *independent[:1]})


def output_key(job: int, attempt: int) -> str:
    """Return the key of the results of a completed attempt.

    >>> output_key(7, 3)
    'jobs/7/attempt-3/output'
    """
    return f"jobs/{job}/attempt-{attempt}/output"
