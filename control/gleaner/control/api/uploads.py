"""The upload of images and inputs. Each is one file that is sent in parts.

    STORAGE/.uploads/KIND/GROUP/HEX     the received parts, until the file is stored

An image is named by its id and an input by the digest of its content. A received file does not count until the route
that stores it has read all of it and verified its name.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi import Path as InPath

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, BytesLike, StorageError
from gleaner.agent.job_spec import Digest, Name
from gleaner.agent.system.openat import CHUNK_BYTES
from gleaner.agent.system.tar_policy import Hostile
from gleaner.control.api.access import Caller, User
from gleaner.control.api.problems import documented
from gleaner.control.api.storage_threads import READS_STORAGE
from gleaner.control.models.uploads import MOST_BYTES, PART_BYTES, UPLOADS, Kind, Uploaded
from gleaner.control.queue import uploads
from gleaner.control.queue.errors import Conflict, Invalid

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

Group = Annotated[Name | None, Query(description="The group; only an admin may name another than the own one")]
Bytes = Annotated[int, Query(ge=0, le=MOST_BYTES)]
Part = Annotated[bytes, Body(media_type="application/octet-stream", max_length=PART_BYTES)]
Content = Annotated[
    Digest, InPath(description="An image's id, or the digest of an input", examples=["sha256:" + 64 * "0"])
]


@router.put("/{kind}/{content}", responses=documented(409, 413, 422, 502))
@READS_STORAGE
def put_part(
    caller: User,
    kind: Kind,
    content: Content,
    *,
    size_bytes: Bytes,
    at: Bytes = 0,
    group: Group = None,
    part: Part = b"",
) -> Uploaded:
    """Store a part of a file of `size_bytes` at its position. Return the size of the file so far.

    The part is not stored if an earlier one is missing.
    """
    return Uploaded(size_bytes=Upload(caller, kind, content, group, size_bytes).put(part, at))


class Upload:
    """The upload of a group's image or input. Every method can raise `StorageError`."""

    def __init__(self, caller: Caller, kind: Kind, content: str, group: str | None, size_bytes: int) -> None:
        settings = caller.state.settings
        if kind == "images" and not settings.images.push:
            raise HTTPException(403, "this site accepts no images from users ([images] push in control's settings)")
        if kind == "inputs" and not settings.inputs.group_gib:
            raise HTTPException(403, "this site stores no inputs ([inputs] group_gib in control's settings)")
        caller.state.check_leads()
        self.group = caller.acts_for(group)
        self._caller = caller
        self._kind: Kind = kind
        self._limits = settings.images if kind == "images" else settings.inputs
        self._path = settings.storage.folder / UPLOADS / kind / self.group / content.removeprefix("sha256:")
        self._content = content
        self._size_bytes = size_bytes
        if size_bytes > (most_bytes := self._limits.largest_bytes):
            said = f"{size_bytes / 2**30:.3g} GiB, and may have {most_bytes / 2**30:.3g} ([{kind}] largest_gib)"
            raise HTTPException(413, f"the {kind[:-1]} has {said}")

    def put(self, part: bytes, at: int) -> int:
        """Store a part at its position, and return the size of the file so far.

        Raises `Conflict` if there is no room.
        """
        if at + len(part) > self._size_bytes:
            raise Invalid(f"at: the part ends after the {self._size_bytes} bytes of the upload")
        size = {"size_bytes": self._size_bytes, "group_bytes": self._limits.group_bytes}
        with self._caller.writing() as db:
            uploads.reserve(db, self._kind, self.group, self._content, **size, now_s=self._caller.now_s)
        with _translated():
            self._path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            if not part and not self._path.exists():
                return 0
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
                if file.seek(0, os.SEEK_END) > self._size_bytes:  # a part of another file
                    file.truncate(0)
                if at <= file.seek(0, os.SEEK_END):  # a part that is sent twice is stored once
                    file.seek(at)
                    file.write(part)
                os.utime(file.fileno())
                return file.seek(0, os.SEEK_END)

    @contextmanager
    def opened(self) -> Generator[BinaryIO]:
        """Open the received file, whose space is reserved. Raises `Conflict` if it is not complete.

        A file that the caller refuses is removed and no longer counted. A file with the wrong content raises `Invalid`.
        """
        if self.put(b"", 0) < self._size_bytes:
            raise Conflict(f"not all of {self._content} is here: send it again, and the upload continues from there")
        with _translated():
            file = self._path.open("rb")
        with file:
            try:
                yield file
            except (Hostile, Invalid) as error:
                self.remove()
                raise Invalid(f"what was sent is not {self._content}: {error}; send it again") from error
            except (HTTPException, Conflict):
                self.remove()
                raise

    def remove(self) -> None:
        """Remove the received parts, and release their reservation."""
        with _translated():
            self._path.unlink(missing_ok=True)
        with self._caller.writing() as db:
            uploads.release(db, self._kind, self.group, self._content)


def whole_digest(storage: FolderStorage, key: str, part: str) -> str | None:
    """Return the digest of an archive if its part is intact in the storage, otherwise None.

    The whole part is read.
    """
    try:
        digest = storage.stored_digest(key)
        for _ in storage.open(key, digest).read(part):
            pass
    except ArchiveBroken:
        return None
    return digest


def store(storage: FolderStorage, key: str, part: str, chunks: Iterator[BytesLike], *, whole: str | None = None) -> str:
    """Write an archive with one part into the storage, unless it exists with the digest `whole`. Return its digest.

    The chunks are read in any case, because only a caller who has the whole content is allowed to use it.
    """
    if whole is not None:
        for _ in chunks:
            pass
        return whole
    storage.set_aside(key)
    with storage.draft(key) as draft:
        draft.add(part, chunks)
        return draft.publish({}).digest


def chunks_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the storage cannot write or read an upload: {error.strerror}") from error
