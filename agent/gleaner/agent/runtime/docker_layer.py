"""The files that a container has written outside its job's folder: overlay's upper layer, as a tar stream.

The stream is the raw layer: a character device 0/0 marks a deleted file. A raw layer cannot tell that a folder was
deleted and made anew, for overlay keeps that in an attribute that Docker's archives leave out. Docker's list of changes
can tell, so each file of the image that is gone from such a folder is marked as deleted.
"""

import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO, cast

from gleaner.agent.privileged.common import tar_stream

CHUNK_BYTES = 2**20


def members(chunks: Iterable[bytes]) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Yield each member of an archive, with its path below the archive's top; the top itself is left out."""
    with tarfile.open(fileobj=cast("IO[bytes]", tar_stream.Source(chunks)), mode="r|") as archive:
        for member in tar_stream.members(archive):
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
    """Yield the layer's archive, less the mount points in `without` and all in them.

    `deleted` are the paths that Docker's list of changes calls deleted. If the engine compares folders, these are all
    files that are gone. If it reads overlay's own marks (`native diff`), these are the folders that were made anew, and
    `below` returns the paths of the image's own files in such a folder and under it.
    """
    present: dict[str, bool] = {"": True}
    for path, member, archive in members(chunks):
        if any(path == mount or path.startswith(f"{mount}/") for mount in without):
            continue
        present[path] = member.isdir()
        yield tar_stream.header(member)
        if member.isreg() and member.size:
            yield from _content(archive, member)
    for path in sorted(deleted):
        yield from _marks(below(path) if present.get(path) else [path], present)
    yield tar_stream.END


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.TarError(f"{member.name!r} has no content")
    while chunk := content.read(CHUNK_BYTES):
        yield chunk
    yield tar_stream.padding(member.size)


def _marks(gone: Iterable[str], present: dict[str, bool]) -> Iterator[bytes]:
    """Yield marks for paths that are not in the layer, except those below a folder that is gone as a whole."""
    for path in gone:
        if path in present or not present.get(path.rpartition("/")[0]):
            continue
        mark = tarfile.TarInfo(f"./{path}")
        mark.type = tarfile.CHRTYPE
        mark.mode = 0
        present[path] = False
        yield tar_stream.header(mark)
