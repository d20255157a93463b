"""Where checkpoint generations and results are kept, from the agent's side.

A *parcel* is a set of named parts under one key, with a manifest that lists each part's size and digest. A part is
stored in blocks, and a block that is known from an older parcel is not stored again. A parcel becomes visible as a
whole, by one rename after everything is written and synced; what is visible is never changed. The digest of the
manifest names the content: control keeps it, and whoever opens the parcel must present it, so that nobody can slip
in another one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

BytesLike = bytes | bytearray | memoryview


class StorageError(Exception):
    """The storage refuses or has failed; the message names the place and what to do."""


class StorageFull(StorageError):
    """There is no room (or no quota) left. Nothing was published."""


class ParcelBroken(StorageError):
    """The parcel is missing, incomplete, or not the one whose digest was given."""


class ParcelMissing(ParcelBroken):
    """There is nothing at that key, as far as this node sees: it may not see yet what another one has written."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of a parcel.

    `digest` is `sha256:` and the SHA-256, in hexadecimal digits, of the part's size (8 bytes, little endian) followed
    by the SHA-256 of each of its blocks. It stands for the content, but is not the content's own SHA-256.
    """

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Published:
    """A parcel that is now visible. `digest` is that of its manifest.

    `size_bytes` is what it holds; `stored_bytes` is what was written for it, without zeros and what was known,
    compressed where that was worth it.
    """

    key: str
    digest: str
    size_bytes: int
    stored_bytes: int


class PartWriter(Protocol):
    """One part being written, by one thread at a time. An error inside its context leaves no part."""

    def __enter__(self) -> "PartWriter": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def write(self, chunk: BytesLike) -> None:
        """Write on; `chunk` may be changed afterwards. Waits while the storage is slower than its writers.

        Raises `StorageFull` or `StorageError`, also for what was written before and by other writers of the draft,
        which has then failed as a whole.
        """
        ...

    def close(self) -> Part:
        """The part is complete. Raises like `write`. Closing again returns the same; leaving the context closes."""
        ...

    def abort(self) -> None:
        """Give the part up: there is none, and its name is free again. One that is closed stays."""
        ...


class Draft(Protocol):
    """A parcel being written. Nobody else can see it. Any number of parts may be written at once, each in a thread."""

    def part(self, name: str) -> PartWriter:
        """A writer for a new part."""
        ...

    def add(self, name: str, chunks: Iterable[BytesLike]) -> Part:
        """Write one part. Raises `StorageFull` or `StorageError`."""
        ...

    def publish(self, facts: Mapping[str, object]) -> Published:
        """Write the manifest with `facts` (plain JSON values) in it, sync, and make all visible at once.

        All writers must have been closed.
        Publishing again under a key that is already visible raises `StorageError`, unless exactly this parcel is
        what is visible: so one that failed may be tried again with a new draft.
        """
        ...


class Parcel(Protocol):
    """A published parcel whose manifest was found to be the expected one."""

    @property
    def parts(self) -> Mapping[str, Part]: ...

    @property
    def facts(self) -> Mapping[str, object]: ...

    def rely_on_all(self) -> None:
        """Take all blocks for read well: who calls this has just written them, and has no time to read them."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """The part's content in chunks, each compared with its digest before it is given out.

        Raises `ParcelBroken` at the first that is not as it was written. Some are read ahead; several parts, or one
        part several times, may be read at once.
        """
        ...


class Storage(Protocol):
    """A place that outlives nodes and agents. Keys are relative paths of plain names, like `jobs/7/3/gen-1`.

    Every method may raise `StorageError`.
    """

    def draft(self, key: str, before: Parcel | None = None) -> AbstractContextManager[Draft]:
        """A new draft; at the end of the context an unpublished one is removed.

        Blocks that are in the parcel `before`, of this storage, are not stored again, once it has been seen that they
        are there as they should be, and deleting that one does no harm. If it is gone or cannot be shared, all is
        stored.
        """
        ...

    def open(self, key: str, digest: str) -> Parcel:
        """The parcel at `key`. Raises `ParcelBroken` unless its manifest has this digest."""
        ...

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys of all visible parcels below `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove a parcel. One that is not there is no error."""
        ...

    def set_aside(self, key: str) -> None:
        """Move a broken parcel out of the way, where an admin can look at it."""
        ...

    def writers(self) -> Collection[str]:
        """The names of those whose drafts are there."""
        ...

    def sweep(self, *, before_s: float, ended: Collection[str] = ()) -> int:
        """Remove the drafts, left behind by programs that died, of writers that have `ended`, and those that nobody
        has written to since `before_s` (seconds since the epoch); how many there were."""
        ...


def generation_key(job: int, attempt: int, number: int) -> str:
    """The key of one checkpoint generation.

    >>> generation_key(7, 3, 1)
    'jobs/7/attempt-3/generation-1'
    """
    return f"jobs/{job}/attempt-{attempt}/generation-{number}"


def output_key(job: int, attempt: int) -> str:
    """The key of the folder that a completed attempt left.

    >>> output_key(7, 3)
    'jobs/7/attempt-3/output'
    """
    return f"jobs/{job}/attempt-{attempt}/output"
