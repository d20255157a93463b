"""Archives, and the errors of the storage that has them (`folder_storage`).

An *archive* is a set of named parts under one key, with a manifest that lists each part's size and digest. A part is
stored in blocks, and a block that is known from an older archive is not stored again. An archive becomes visible as a
whole, by one rename after everything is written and synced; a visible archive is never changed. The digest of the
manifest names the content: control keeps the digest, and whoever opens the archive must present it, so that nobody can
substitute another archive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
