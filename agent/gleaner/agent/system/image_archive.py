"""Read image archives, for all programs, and define the one form in which a pushed image is stored.

An image arrives as the archive of `docker save` or as an OCI layout (image-spec, image-layout.md) in one tar file. The
push, control and the node's helper all read images with this module, so they all accept the same archives. Artifacts,
signatures and attestations are not images and are left out. If there are several images, one is chosen by its name or
its architecture.

The process that opened the archive might still write to it. So an image is accepted only if each layer that is read has
the digest that is named in the configuration.
"""

from __future__ import annotations  # the node may have Python 3.9

import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from . import openat, tar_pack, tar_unpack
from .image_names import full_name
from .tar_policy import MALFORMED, Hostile, Policy, ShortMember, SizeLimit, steps
from .untrusted import json_of

LONGEST_JSON = 16 * 2**20
MOST_LAYERS = 512
_MOST_MEMBERS = 100_000
_MOST_MANIFESTS = 1000
_DEEPEST_INDEX = 3
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAME_KEYS = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_PLAIN_VARIANTS = ("", "v1", "v8")
"""Every processor of an architecture that a node can have runs these variants. `v8` is the plain variant of arm64."""

Decompressor = Callable[[Any], Iterator[bytes]]
"""A function that yields the content of a compressed file."""
ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes((0x50 + number, 0x2A, 0x4D, 0x18)) for number in range(16)))
"""The first bytes of a frame, and those of frames that are skipped."""
STANDARD: Mapping[bytes, Decompressor] = {
    b"\x1f\x8b": lambda packed: _chunks(gzip.GzipFile(fileobj=packed)),
    b"\xfd7zXZ\0": lambda packed: _chunks(lzma.LZMAFile(packed)),  # noqa: SIM115 - the underlying file is closed
    b"BZh": lambda packed: _chunks(bz2.BZ2File(packed)),
}
"""The kinds of compression that every Python installation can read, by a file's first bytes."""


class ArchivedLayer(NamedTuple):
    """A layer, with the digest of its tar archive, and its file, which might be compressed."""

    diff_id: str
    size: int
    """The size of the file."""
    opened: Callable[[], IO[bytes]]


class ArchivedImage(NamedTuple):
    """One image in an open archive."""

    config: bytes
    architecture: str
    layers: Sequence[ArchivedLayer]

    @property
    def id(self) -> str:
        """The image's id."""
        return f"sha256:{hashlib.sha256(self.config).hexdigest()}"


class _Manifest(NamedTuple):
    """An image in the archive's table of contents, where `layers` are names of files."""

    names: Sequence[str]
    config: bytes
    about: dict[str, Any]
    """The content of the configuration."""
    layers: Sequence[str]

    def platform(self, default: str) -> tuple[str, str, str]:
        """Return the system, the architecture and its variant."""
        about = self.about
        return about.get("os", "linux"), about.get("architecture", default), about.get("variant", "")

    def is_named(self, name: str) -> bool:
        """Return True if the archive lists the image under this name."""
        tag = name.rpartition(":")[2]
        return any(one in (name, tag) or full_name(one) == full_name(name) for one in self.names)


def find(file: IO[bytes], *, architecture: str, name: str = "") -> ArchivedImage:
    """Return the image of this architecture in an archive or, if there are several, the one with this name.

    Raises `Hostile`. `architecture` is Docker's name for it, possibly with a variant as in `amd64/v2`, and "" means
    any.
    """
    with readable():
        archive = _Archive(file)
        kind = architecture.partition("/")[0]
        chosen = _chosen(list(archive.manifests(kind)), architecture, name)
        diffs = list(chosen.about["rootfs"].get("diff_ids") or ())
        if not diffs:
            raise Hostile("it has no layers, so there is nothing in it that could run")
        if len(diffs) != len(chosen.layers) or len(diffs) > MOST_LAYERS:
            raise Hostile(f"it has {len(chosen.layers)} layers, and its configuration names {len(diffs)}")
        layers = [archive.layer(str(diff), layer) for diff, layer in zip(diffs, chosen.layers)]  # noqa: B905 - 3.9
        return ArchivedImage(chosen.config, str(chosen.platform(kind)[1]), layers)


def _chosen(manifests: Sequence[_Manifest], architecture: str, name: str) -> _Manifest:
    kind, _, variant = architecture.partition("/")
    names = ", ".join(each for one in manifests for each in one.names)[:200]
    by_config = {one.config: one for one in manifests if not (name and names) or one.is_named(name)}
    named = list(by_config.values())
    if names and not named:
        raise Hostile(f"it holds {names}, and not {name}")
    fitting = [one for one in named if one.platform(kind)[0] == "linux" and kind in ("", one.platform(kind)[1])]
    if variant or len(fitting) > 1:
        plain = [one for one in fitting if one.platform(kind)[2] in ((variant,) if variant else _PLAIN_VARIANTS)]
        fitting = plain if plain or variant else fitting
    if not fitting:
        found = ", ".join(sorted("/".join(filter(None, one.platform(kind))) for one in named)) or "no image"
        raise Hostile(f"it holds {found[:60]}, and one for linux/{architecture} is wanted")
    if len(fitting) > 1:
        raise Hostile(f"it holds {len(fitting)} images for linux/{architecture}, and one is wanted: {names}")
    return fitting[0]


class _Archive:
    """The files of an archive, by their names. The archive is not unpacked."""

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        self._archive = tarfile.open(fileobj=file, mode="r:", tarinfo=ShortMember)  # noqa: SIM115 - it stays open
        self._members: dict[str, tarfile.TarInfo] = {}
        self._manifests = 0
        for count, member in enumerate(self._archive):
            if count >= _MOST_MEMBERS:
                raise Hostile(f"it has more than {_MOST_MEMBERS} members")
            self._members["/".join(steps(member.name))] = member

    def _open(self, name: str) -> IO[bytes]:
        """Open a file, or the target of a link. Docker before version 25 uses a link for a layer that occurs twice."""
        try:
            opened = self._archive.extractfile(self._members["/".join(steps(name))])
        except KeyError:
            opened = None
        if opened is None:
            raise Hostile(f"there is no {name[:80]!r} in it")
        return opened

    def layer(self, diff_id: str, name: str) -> ArchivedLayer:
        """Return a layer. Raises `Hostile` if its file does not exist."""
        return ArchivedLayer(diff_id, self._open(name).seek(0, os.SEEK_END), lambda: self._open(name))

    def _json(self, name: str, digest: str = "") -> tuple[bytes, Any]:
        """Return a small file's bytes, and its JSON content.

        Raises `Hostile` if a digest is given and the file has a different one.
        """
        with self._open(name) as file:
            content = file.read(LONGEST_JSON + 1)
        algorithm, _, wanted = digest.partition(":")
        if len(content) > LONGEST_JSON:
            raise Hostile(f"{name[:80]!r} is too long")
        if digest and hashlib.new(algorithm, content).hexdigest() != wanted:
            raise Hostile(f"the blob {digest[:80]} in it is not what it says")
        return content, json_of(content)

    def manifests(self, architecture: str) -> Iterator[_Manifest]:
        """Yield all images of `manifest.json`, or those in `index.json` that can be for this architecture."""
        if "manifest.json" in self._members:
            for entry in self._json("manifest.json")[1]:
                yield from self._image(entry.get("RepoTags") or (), entry["Layers"], entry["Config"])
        elif "index.json" in self._members:
            yield from self._of_index(self._json("index.json")[1], architecture, (), 0)
        else:
            raise Hostile("it has neither manifest.json nor index.json: it is no archive of `docker save`")

    def _of_index(self, index: Any, architecture: str, names: Sequence[str], depth: int) -> Iterator[_Manifest]:
        """Yield the images of an index (image-spec, image-index.md).

        Images for other architectures need not be in the archive.
        """
        if depth > _DEEPEST_INDEX:
            raise Hostile("its indices lie too deep in each other")
        for one in index["manifests"]:
            platform: dict[str, Any] = one.get("platform") or {}
            annotations: dict[str, Any] = one.get("annotations") or {}
            kind = (platform.get("os", "linux"), platform.get("architecture", architecture))
            if architecture and kind != ("linux", architecture):
                continue
            own = [str(annotations[key]) for key in _NAME_KEYS if key in annotations] or names
            _, manifest = self._json(_blob(one["digest"]), one["digest"])
            if "manifests" in manifest:
                yield from self._of_index(manifest, architecture, own, depth + 1)
            elif "image" in manifest["config"].get("mediaType", "image"):
                layers, config = [_blob(layer["digest"]) for layer in manifest["layers"]], manifest["config"]["digest"]
                yield from self._image(own, layers, _blob(config), config)

    def _image(self, names: Sequence[str], layers: Sequence[str], config: str, digest: str = "") -> Iterator[_Manifest]:
        """Yield an image's manifest, but not that of a signature, whose configuration names no layers."""
        self._manifests += 1
        if self._manifests > _MOST_MANIFESTS:
            raise Hostile(f"it holds more than {_MOST_MANIFESTS} images")
        content, about = self._json(config, digest)
        if "rootfs" in about:
            yield _Manifest(names, content, about, layers)


def _blob(digest: str) -> str:
    """Return the name of a file of an OCI layout. Raises `Hostile`."""
    if not _DIGEST.fullmatch(digest):
        raise Hostile(f"{digest[:80]!r} is no digest")
    return f"blobs/{digest.replace(':', '/', 1)}"


def content(layer: ArchivedLayer, decompressors: Mapping[bytes, Decompressor] = STANDARD) -> Iterator[bytes]:
    """Yield a layer's tar archive, uncompressed. Raises `Hostile`, also at the end if the digest differs."""
    digest = hashlib.sha256()
    with readable(), layer.opened() as packed:
        for chunk in (_decompressor(packed, decompressors) or _chunks)(packed):
            digest.update(chunk)
            yield chunk
    if f"sha256:{digest.hexdigest()}" != layer.diff_id:
        raise Hostile(f"a layer in it is not the one that its configuration names, {layer.diff_id[:80]}")


def unpack(source: IO[bytes], target: IO[bytes], decompressors: Mapping[bytes, Decompressor], most_bytes: int) -> bool:
    """Write the content of an archive that is compressed as a whole into a file.

    Return False if it is not compressed. Raises `Hostile`.
    """
    limit = SizeLimit(most_bytes)
    source.seek(0)
    with readable():
        decompress = _decompressor(source, decompressors)
        for chunk in decompress(source) if decompress else ():
            limit.take(len(chunk))
            target.write(chunk)
    return decompress is not None


def policy_of(most_bytes: float, *, file_bytes: int = 0) -> Policy:
    """Return the rules for an image's layers, both at the push and on a node."""
    return Policy(SizeLimit(most_bytes), is_overlaid=True, has_whiteouts=True, has_holes=True, file_bytes=file_bytes)


def check(image: ArchivedImage, policy: Policy, decompressors: Mapping[bytes, Decompressor] = STANDARD) -> list[int]:
    """Read all layers in the same way as a node does. Return their sizes, uncompressed. Raises `Hostile`."""
    sizes = list[int]()
    for layer in image.layers:
        source = tar_unpack.TarSource(content(layer, decompressors))
        with readable():
            tar_unpack.check(source, policy)
        sizes.append(source.size_bytes)
    return sizes


def stored(
    image: ArchivedImage, sizes: Sequence[int], decompressors: Mapping[bytes, Decompressor] = STANDARD
) -> list[tar_pack.File]:
    """Return the files of the archive in which an image is sent and stored.

    They do not depend on the archive from which the image was read. `docker load` can read this archive. It contains no
    name for the image, because an engine could take the name for that of another image. `sizes` are the sizes of the
    layers. Reading a layer of another size raises `Hostile`.
    """
    config_name, names = f"{image.id[7:]}.json", [f"{layer.diff_id[7:]}.tar" for layer in image.layers]
    table = json.dumps([{"Config": config_name, "RepoTags": None, "Layers": names}]).encode()
    contents = zip(names, sizes, image.layers)  # noqa: B905 - Python 3.9
    layers = {name: tar_pack.File(name, size, content(layer, decompressors)) for name, size, layer in contents}
    own = {"manifest.json": table, config_name: image.config}
    return [*(tar_pack.File(name, len(text), [text]) for name, text in own.items()), *layers.values()]


@contextmanager
def readable() -> Generator[None, None, None]:
    """Turn the errors of a malformed file into `Hostile`."""
    try:
        yield
    except (OSError, lzma.LZMAError, *MALFORMED) as error:
        raise Hostile(f"it cannot be read: {error}") from error


def _decompressor(packed: Any, decompressors: Mapping[bytes, Decompressor]) -> Decompressor | None:
    start = packed.peek(8)
    if start.startswith(ZSTD) and ZSTD[0] not in decompressors:
        raise Hostile("it is compressed with zstd, which Python cannot read here; gzip is fine")
    return next((each for magic, each in decompressors.items() if start.startswith(magic)), None)


def _chunks(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(openat.CHUNK_BYTES), b"")
