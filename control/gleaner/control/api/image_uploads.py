"""Images on their way into the storage: pieces that have come, and the archive that is made of them.

    STORAGE/images/.pieces/GROUP/DIGEST     pieces, until the image that they belong to is stored
    STORAGE/images/HEX                      an image, as an archive of the storage with one part

Control reads no archive that a client has made. A client sends the configuration and the bare contents of the layers;
control compares each with its digest, and writes the archive for `docker load` itself. So a pushed image has no name in
it that an engine would take for another image's, and no member that leads out.
"""

import hashlib
import json
import os
import secrets
import tarfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, BytesLike, StorageError
from gleaner.agent.runtime.images import IMAGE_PART, image_key
from gleaner.control.models.images import KEEP_PIECES_S, PIECE_BYTES, PIECES, ImagePush
from gleaner.control.queue.errors import Invalid, Refused

_BLOCK = tarfile.BLOCKSIZE


class Uploads:
    """The pieces of one group's images or inputs. Every method may raise `StorageError`."""

    def __init__(self, root: Path, group: str, kind: Literal["images", "inputs"] = "images") -> None:
        self._folder = root / kind / PIECES / group

    def missing(self, pieces: Sequence[str], *, now_s: float) -> tuple[str, ...]:
        """Return the pieces that are not here, each once. Those that are here count as fresh."""
        lacking: list[str] = []
        with _translated():
            for digest in dict.fromkeys(pieces):
                try:
                    os.utime(self._folder / digest.removeprefix("sha256:"), (now_s, now_s))
                except FileNotFoundError:
                    lacking.append(digest)
        return tuple(lacking)

    def add(self, content: bytes, *, at_most_bytes: int) -> str:
        """Store a piece, unless it is here. Return its digest. Raises `Refused` if the group has too many."""
        name = hashlib.sha256(content).hexdigest()
        with _translated():
            self._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            if sum(1 for _ in self._folder.iterdir()) * PIECE_BYTES > at_most_bytes:
                raise Refused(
                    "the group has too many pieces of uploads that were not finished: finish one, or wait"
                    f" {KEEP_PIECES_S / 86_400:.0f} days, after which they are removed"
                )
            if not (self._folder / name).exists():
                new = self._folder / f".{secrets.token_hex(8)}"
                try:
                    with new.open("xb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    new.replace(self._folder / name)
                except BaseException:
                    new.unlink(missing_ok=True)
                    raise
        return f"sha256:{name}"

    def read(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of the pieces. Raises `Refused` at one that is missing or was damaged."""
        for digest in pieces:
            try:
                content = (self._folder / digest.removeprefix("sha256:")).read_bytes()
            except FileNotFoundError:
                content = b""
            except OSError as error:
                raise _storage_error(error) from error
            if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
                raise Refused(f"the piece {digest} is not here: push it again, which goes on from there")
            yield content

    def remove(self, pieces: Sequence[str]) -> None:
        """Remove the pieces."""
        with _translated():
            for digest in pieces:
                (self._folder / digest.removeprefix("sha256:")).unlink(missing_ok=True)


def architecture_of(push: ImagePush) -> str:
    """Return the image's architecture. Raises `Invalid` for an image that is not what it says."""
    try:
        config: Any = json.loads(push.config)
        said, diffs = config["architecture"], config["rootfs"]["diff_ids"]
        system = config.get("os", "linux")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Invalid("config: that is no image's configuration, with an architecture and layers") from None
    if not isinstance(said, str) or not said.isalnum() or len(said) > 20 or system != "linux":
        raise Invalid("config: only images for Linux with a known architecture can run here")
    if diffs != [layer.diff_id for layer in push.layers]:
        raise Invalid("layers: they are not those that the image's configuration names")
    check_pieces(push.pieces, push.size_bytes, what="the layers")
    return said


def check_pieces(pieces: Sequence[str], size_bytes: int, *, what: str) -> None:
    """Raise `Invalid` unless these are as many pieces as something of this size has."""
    if len(pieces) != -(-size_bytes // PIECE_BYTES):
        raise Invalid(f"pieces: {what} must be cut into pieces of {PIECE_BYTES} bytes, the last one shorter")


def is_whole(storage: FolderStorage, key: str, part: str, digest: str) -> bool:
    """Return True if this part of an archive is in the storage as it was written. All of it is read."""
    try:
        for _ in storage.open(key, digest).read(part):
            pass
    except ArchiveBroken:
        return False
    return True


def whole_digest(storage: FolderStorage, key: str, part: str) -> str | None:
    """Return the digest of an archive whose part is in the storage as it was written; None if there is none."""
    try:
        digest = storage.stored_digest(key)
    except ArchiveBroken:
        return None
    return digest if is_whole(storage, key, part, digest) else None


def store(storage: FolderStorage, push: ImagePush, contents: Iterator[bytes]) -> str:
    """Write the image's archive into the storage, unless it is there. Return its digest.

    Raises `Invalid` as `archive` does, also where it is there: only who has the whole content may use it.
    """
    key = image_key(push.image_id)
    if (digest := whole_digest(storage, key, IMAGE_PART)) is not None:
        for _ in archive(push, contents):
            pass
        return digest
    storage.set_aside(key)
    with storage.draft(key) as draft:
        draft.add(IMAGE_PART, archive(push, contents))
        return draft.publish({"image_id": push.image_id}).digest


def archive(push: ImagePush, contents: Iterator[bytes]) -> Iterator[BytesLike]:
    """Yield the archive for `docker load`: it has no name for the image, and is the same for all pushes of it.

    Raises `Invalid` where a layer's content does not have the layer's digest.
    """
    config_name = f"{push.image_id.removeprefix('sha256:')}.json"
    names = [f"{layer.diff_id.removeprefix('sha256:')}.tar" for layer in push.layers]
    manifest = [{"Config": config_name, "RepoTags": None, "Layers": names}]
    for name, content in (("manifest.json", json.dumps(manifest).encode()), (config_name, push.config.encode())):
        yield _header(name, len(content)) + content + _padding(len(content))
    source = _Source(contents)
    written: set[str] = set()
    for name, layer in zip(names, push.layers, strict=True):
        hashed = hashlib.sha256()
        is_new = name not in written
        if is_new:
            yield _header(name, layer.size_bytes)
        for chunk in source.take(layer.size_bytes):
            hashed.update(chunk)
            if is_new:
                yield chunk
        if f"sha256:{hashed.hexdigest()}" != layer.diff_id:
            raise Invalid(f"layers: the content of the layer {layer.diff_id} is another one")
        if is_new:
            yield _padding(layer.size_bytes)
            written.add(name)
    yield bytes(2 * _BLOCK)


class _Source:
    """The contents of all layers, one after another."""

    def __init__(self, contents: Iterator[bytes]) -> None:
        self._contents = contents
        self._rest: memoryview[int] = memoryview(b"")

    def take(self, size_bytes: int) -> Iterator[memoryview]:
        """Yield so many bytes; fewer if there are no more."""
        while size_bytes:
            if not self._rest:
                self._rest = memoryview(next(self._contents, b""))
                if not self._rest:
                    return
            chunk, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
            size_bytes -= len(chunk)
            yield chunk


def _header(name: str, size_bytes: int) -> bytes:
    made = tarfile.TarInfo(name)
    made.size = size_bytes
    return made.tobuf(tarfile.GNU_FORMAT)


def _padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % _BLOCK)


def _storage_error(error: OSError) -> StorageError:
    return StorageError(f"the storage does not take or give a piece of an image: {error.strerror}")


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(error) from error
