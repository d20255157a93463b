"""A container image in the archive that `docker save` (or Podman, or skopeo) writes. Nothing of it is unpacked.

Two forms are read: `manifest.json`, and an OCI layout (image-spec, image-layout.md). An image counts only if every
layer is the one that its configuration names. What the reader refuses is one line, before anything is sent.
"""

import gzip
import hashlib
import io
import json
import os
import posixpath
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from gleaner.agent.system.tar_policy import MALFORMED
from gleaner.control.models.images import LONGEST_CONFIG, MOST_LAYERS, MOST_PIECES, PIECE_BYTES, ImageLayer

MOST_BYTES = MOST_PIECES * PIECE_BYTES
_MOST_MEMBERS = 100_000
_DEEPEST_INDEX = 3
_CHUNK_BYTES = 2**20
_LARGEST_WINDOW = 128 * 2**20
"""The most memory for one zstd layer; what `zstd` itself makes needs no more."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class NotAnImage(Exception):
    """The archive is not one whole image that can run here. The message is one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file in the archive: its first byte, and its size there."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class SavedImage:
    """A whole image in an open archive."""

    config: str
    architecture: str
    layers: tuple[ImageLayer, ...]
    _file: BinaryIO
    _places: tuple[Place, ...]

    def pieces(self) -> Iterator[bytes]:
        """Yield the contents of all layers, uncompressed and one after another, cut into pieces."""
        piece = bytearray()
        for place in self._places:
            with _plain(self._file, place) as layer:
                while chunk := layer.read(PIECE_BYTES - len(piece)):
                    piece += chunk
                    if len(piece) == PIECE_BYTES:
                        yield bytes(piece)
                        piece.clear()
        if piece:
            yield bytes(piece)


def read(file: BinaryIO, *, architecture: str) -> SavedImage:
    """Return the one image of this architecture in an archive. Raises `NotAnImage`."""
    try:
        return _read(file, architecture)
    except _unreadable() as error:
        raise NotAnImage(f"it cannot be read: {error}") from error


def _read(file: BinaryIO, architecture: str) -> SavedImage:
    members = _members(file)
    if "manifest.json" in members:
        config_name, names = _of_manifest(_json(file, members, "manifest.json"))
        content = _content(file, members, config_name)
    elif "index.json" in members:
        content, names = _of_index(file, members, _json(file, members, "index.json"), architecture)
    else:
        raise NotAnImage("it has neither manifest.json nor index.json: it is no archive of `docker save`")
    config: Any = json.loads(content)
    found, diffs = config["architecture"], list(config["rootfs"]["diff_ids"])
    if found != architecture or config.get("os", "linux") != "linux":
        found = f"{config.get('os', 'linux')}/{found}"
        raise NotAnImage(f"it is for {found[:40]}, and linux/{architecture} is wanted (--architecture says another)")
    if not 0 < len(diffs) <= MOST_LAYERS or len(names) != len(diffs):
        raise NotAnImage(f"it has {len(names)} layers, and its configuration names {len(diffs)}")
    places = [_place(members, name) for name in names]
    layers: list[ImageLayer] = []
    for place, diff_id in zip(places, diffs, strict=True):
        size_bytes = _checked_layer(file, place, str(diff_id), MOST_BYTES - sum(layer.size_bytes for layer in layers))
        layers.append(ImageLayer(diff_id=diff_id, size_bytes=size_bytes))
    return SavedImage(content.decode(), architecture, tuple(layers), file, tuple(places))


def _members(file: BinaryIO) -> dict[str, Place]:
    """Return the archive's files by name. A link to another file of the archive counts as that file."""
    found: dict[str, Place] = {}
    links: dict[str, str] = {}
    file.seek(0)
    if file.read(2) == _GZIP:
        raise NotAnImage("it is compressed as a whole: gunzip it first")
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            name = _inside(member.name, member.name)
            if len(found) + len(links) >= _MOST_MEMBERS:
                raise NotAnImage(f"it has more than {_MOST_MEMBERS} members")
            if name in found or name in links:
                raise NotAnImage(f"{name[:80]!r} stands in it twice")
            if member.issym():  # Docker before version 25 writes a layer that is there twice so
                links[name] = _inside(posixpath.join(posixpath.dirname(name), member.linkname), member.name)
            elif member.islnk():
                links[name] = _inside(member.linkname, member.name)
            elif member.isreg() and not member.issparse():
                found[name] = Place(member.offset_data, member.size)
            elif not member.isdir():
                raise NotAnImage(f"{name[:80]!r} in it is neither a file nor a folder")
    return found | {name: found[target] for name, target in links.items() if target in found}


def _inside(path: str, name: str) -> str:
    """Return the path in its plainest form. Raises `NotAnImage` if it leads out of the archive."""
    plain = posixpath.normpath(path)
    if path.startswith("/") or plain == ".." or plain.startswith("../"):
        raise NotAnImage(f"the name {name[:80]!r} in it leads out")
    return plain


def _place(members: dict[str, Place], name: str) -> Place:
    if name not in members:
        raise NotAnImage(f"there is no {name[:80]!r} in it")
    return members[name]


def _content(file: BinaryIO, members: dict[str, Place], name: str) -> bytes:
    place = _place(members, name)
    if place.size > LONGEST_CONFIG:
        raise NotAnImage(f"{name[:80]!r} in it is too long")
    with _opened(file, place) as opened:
        content = opened.read()
    if len(content) < place.size:
        raise NotAnImage("it is cut off")
    return content


def _json(file: BinaryIO, members: dict[str, Place], name: str) -> Any:
    return json.loads(_content(file, members, name))


def _of_manifest(manifest: Any) -> tuple[str, list[str]]:
    if len(manifest) != 1:
        raise NotAnImage(f"it holds {len(manifest)} images, and one is wanted: save one name alone")
    return posixpath.normpath(manifest[0]["Config"]), [posixpath.normpath(name) for name in manifest[0]["Layers"]]


def _of_index(
    file: BinaryIO, members: dict[str, Place], index: Any, architecture: str, depth: int = 0
) -> tuple[bytes, list[str]]:
    """Return the configuration and the layers' names; of several platforms, those of the architecture."""
    wanted = [one for one in index["manifests"] if _fits(one, architecture)]
    if len(wanted) != 1 or depth > _DEEPEST_INDEX:
        raise NotAnImage(f"it holds {len(wanted)} images for linux/{architecture}, and one is wanted")
    manifest = json.loads(_blob(file, members, wanted[0]["digest"]))
    if "manifests" in manifest:
        return _of_index(file, members, manifest, architecture, depth + 1)
    layers = [_blob_name(layer["digest"]) for layer in manifest["layers"]]
    return _blob(file, members, manifest["config"]["digest"]), layers


def _fits(descriptor: dict[str, Any], architecture: str) -> bool:
    platform: dict[str, Any] = descriptor.get("platform") or {}
    system = platform.get("os", "linux")
    return not platform or (platform.get("architecture"), system) == (architecture, "linux")


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _blob(file: BinaryIO, members: dict[str, Place], digest: str) -> bytes:
    content = _content(file, members, _blob_name(digest))
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise NotAnImage(f"the blob {digest[:80]} in it is not what it says")
    return content


def _checked_layer(file: BinaryIO, place: Place, diff_id: str, at_most_bytes: int) -> int:
    """Return the layer's size. Raises `NotAnImage` if it is another one, or has a name in it that leads out."""
    with _plain(file, place) as plain:
        layer = _Hashed(plain, at_most_bytes)
        with tarfile.open(fileobj=cast("IO[bytes]", layer), mode="r|", bufsize=_CHUNK_BYTES) as archive:
            for member in archive:
                _inside(member.name.lstrip("/"), member.name)
                if member.islnk():
                    _inside(member.linkname.lstrip("/"), member.linkname)
        while layer.read(_CHUNK_BYTES):
            pass
    if f"sha256:{layer.hash.hexdigest()}" != diff_id:
        raise NotAnImage(f"a layer in it is not the one that its configuration names, {diff_id[:80]}")
    return layer.size_bytes


class _Hashed:
    """A layer that is read, with the size and the digest of all that was read."""

    def __init__(self, source: IO[bytes], at_most_bytes: int) -> None:
        self.hash = hashlib.sha256()
        self.size_bytes = 0
        self._source = source
        self._at_most_bytes = at_most_bytes

    def read(self, size: int) -> bytes:
        """Read on."""
        content = self._source.read(size)
        self.hash.update(content)
        self.size_bytes += len(content)
        if self.size_bytes > self._at_most_bytes:
            raise NotAnImage(f"its layers are larger than {MOST_BYTES // 2**30} GiB")
        return content


class _Slice(io.RawIOBase):
    """One file of the archive, with a position of its own."""

    def __init__(self, file: BinaryIO, place: Place) -> None:
        super().__init__()
        self._file, self._at, self._end = file, place.start, place.start + place.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at, os.SEEK_SET)
        content = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _opened(file: BinaryIO, place: Place) -> io.BufferedReader:
    return io.BufferedReader(_Slice(file, place), _CHUNK_BYTES)


def _plain(file: BinaryIO, place: Place) -> IO[bytes]:
    """Open a layer, uncompressed."""
    opened = _opened(file, place)
    start = opened.peek(len(_ZSTD))
    if start.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=opened))
    if start.startswith(_ZSTD):
        return _zstd(opened)
    return opened


def _zstd(opened: io.BufferedReader) -> IO[bytes]:
    """Return the contents of a file that zstd has compressed. A user's installation may lack the library."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise NotAnImage(
            "its layers are compressed with zstd: `pip install zstandard`, by which they are read"
        ) from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    return cast("IO[bytes]", decompressor.stream_reader(opened, read_across_frames=True))


def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors that a broken archive causes. Those of zstd are known where it has been imported."""
    known: tuple[type[Exception], ...] = (OSError, *MALFORMED)
    if "zstandard" in sys.modules:
        import zstandard

        known += (zstandard.ZstdError,)
    return known
