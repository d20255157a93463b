"""What a container has written outside its job's folder: overlay's upper layer, as a tar stream.

The stream is the raw layer: a character device 0/0 marks a deleted file. What a raw layer cannot tell is that a
folder was deleted and made anew (overlay keeps that in an attribute that Docker's archives leave out); Docker's
list of changes does, so each file of the image that is gone from such a folder is marked as deleted.
"""

import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO, cast

CHUNK_BYTES = 2**20
_END = bytes(2 * tarfile.BLOCKSIZE)


class _Source:
    """Chunks as a file that can only be read on."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            if not self._chunk:
                self._chunk = next(self._chunks, b"")
                if not self._chunk:
                    break
            parts.append(self._chunk[:size])
            self._chunk = self._chunk[size:]
            size -= len(parts[-1])
        return b"".join(parts)


def members(chunks: Iterable[bytes]) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Each member of an archive, with its path below the archive's top; the top itself is left out."""
    with tarfile.open(fileobj=cast("IO[bytes]", _Source(chunks)), mode="r|") as archive:
        while (member := archive.next()) is not None:
            vars(archive)["members"] = []  # else it remembers every member of a large archive
            path = member.name.removeprefix("./").strip("/")
            if path not in ("", "."):
                yield path, member, archive


def layer(
    chunks: Iterable[bytes],
    *,
    without: Collection[str],
    deleted: Collection[str],
    below: Callable[[str], Iterable[str]],
) -> Iterator[bytes]:
    """The layer's archive, less the mount points in `without` and all in them.

    `deleted` are the paths that Docker's list of changes calls deleted. That is each file that is gone, where the
    engine compares folders; where it reads overlay's own marks (`native diff`), it is the folder that was made anew,
    and `below` is asked for the paths of the image's own files in it and under it.
    """
    present: dict[str, bool] = {"": True}
    for path, member, archive in members(chunks):
        if any(path == mount or path.startswith(f"{mount}/") for mount in without):
            continue
        present[path] = member.isdir()
        yield member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if member.isreg() and member.size:
            yield from _content(archive, member)
    for path in sorted(deleted):
        yield from _marks(below(path) if present.get(path) else [path], present)
    yield _END


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.TarError(f"{member.name!r} has no content")
    while chunk := content.read(CHUNK_BYTES):
        yield chunk
    yield bytes(-member.size % tarfile.BLOCKSIZE)


def _marks(gone: Iterable[str], present: dict[str, bool]) -> Iterator[bytes]:
    """Marks for paths that are not in the layer; not for those below a folder that is gone as a whole."""
    for path in gone:
        if path in present or not present.get(path.rpartition("/")[0]):
            continue
        mark = tarfile.TarInfo(f"./{path}")
        mark.type = tarfile.CHRTYPE
        mark.mode = 0
        present[path] = False
        yield mark.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def tar_of(folder: str, name: str, content: bytes) -> Iterator[bytes]:
    """A small archive: one private folder with one file in it."""
    outer, inner = tarfile.TarInfo(folder), tarfile.TarInfo(f"{folder}/{name}")
    outer.type, outer.mode = tarfile.DIRTYPE, 0o700
    inner.size, inner.mode = len(content), 0o600
    yield outer.tobuf(tarfile.PAX_FORMAT) + inner.tobuf(tarfile.PAX_FORMAT)
    yield content + bytes(-len(content) % tarfile.BLOCKSIZE) + _END
