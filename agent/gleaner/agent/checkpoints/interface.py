"""Define archives, and the errors of the storage that contains them (`folder_storage`).

An *archive* is a set of named parts under one key, with a manifest that lists each part's size and digest. A part is
stored in blocks, and a block that is known from an older archive is not stored again. An archive becomes visible as a
whole, by one rename after everything has been written and synced. A visible archive is never changed. The digest of the
manifest identifies the content. Control keeps this digest, and a program that opens the archive must present it, so
that another archive cannot be substituted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BytesLike = bytes | bytearray | memoryview


class StorageError(Exception):
    """The storage refuses a request or fails. The message names the place and what to do."""


class StorageFull(StorageError):
    """There is no free space, or the quota is used up. Nothing was published."""


class ArchiveBroken(StorageError):
    """The archive is missing or incomplete, or does not have the given digest."""


class ArchiveMissing(ArchiveBroken):
    """There is nothing at that key, as far as this node can see. Another node might have just written it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of an archive.

    `digest` is `sha256:` and the SHA-256, in hexadecimal digits, of the part's size (8 bytes, little endian) followed
    by the SHA-256 of each of its blocks. It represents the content, but is not the content's own SHA-256.
    """

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Published:
    """An archive that is now visible. `digest` is the digest of its manifest.

    `size_bytes` is the size of its content. `stored_bytes` is the number of bytes written for it, partly compressed and
    without zeros and known blocks.
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
    """Return the positions of the checkpoints to keep, from the chains of all complete checkpoints, newest first.

    The newest two stay, so that if one is broken, only the work since the other is lost. The newest one of another
    chain also stays. It shares no file with the newest of all, and a damaged file breaks all checkpoints that share it.

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
