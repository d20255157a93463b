"""The container images that a node has, each unpacked once, by the digest of its configuration (Docker Engine's id).

A container image comes as one file that the agent (or an admin) has opened: the archive of `docker save`, or an OCI
layout as an archive. Root opens no path, and trusts nothing in the file. The configuration's digest is the image's id,
and the configuration names the digest of each layer's content. An image counts only when
every layer has its digest. It is unpacked beside its place and renamed there, so that half an image never counts.
"""

from __future__ import annotations  # the node may have Python 3.9

import fcntl
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

from ...system import atomic, openat, tar_unpack
from ...system.tar_policy import MALFORMED, Hostile, Policy, ShortMember, SizeLimit, steps
from ..common import bundle, config, linux, mounts
from ..common.request import is_image_id

_PART = ".part-"
_NAMES = "names.json"
_LONGEST_JSON = 16 * 2**20
_MOST_LAYERS = 512
_DEEPEST_INDEX = 3
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME_KEYS = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_MOUNT_POINTS = ("dev", "proc", "sys", "etc", "job")
_MOUNT_FILES = ("hosts", "hostname", "resolv.conf", "passwd")
"""In /etc."""


class Image(NamedTuple):
    """One unpacked image."""

    id: str
    rootfs: str
    config: dict[str, Any]


def find(settings: config.Config, name: str) -> Image | None:
    """Return the image of this name or id; None if this node lacks it."""
    image_id = name if is_image_id(name) else _names(settings).get(full_name(name), "")
    if not is_image_id(image_id):
        return None
    path = os.path.join(_folder(settings), image_id.replace(":", "-"))
    try:
        with open(os.path.join(path, "config.json"), "rb") as file:
            return Image(image_id, os.path.join(path, "rootfs"), json.load(file))
    except FileNotFoundError:
        return None


def full_name(name: str) -> str:
    """Return one spelling for all names of the same image, as Docker reads them.

    >>> full_name("docker.io/library/debian"), full_name("a/b:1")
    ('debian:latest', 'a/b:1')
    """
    for prefix in ("docker.io/library/", "docker.io/"):
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def import_image(settings: config.Config, descriptor: int, name: str) -> str:
    """Unpack the image of this name from an open archive, unless it is here. Return its id. Raises `Hostile`.

    Only one call at a time unpacks on a node: a second one finds the image there.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Hostile("an image must be handed over as one plain file")
    try:
        with _lock(settings) as folder, _Archive(descriptor) as archive:
            parts = archive.image(full_name(name))
            image_id = f"sha256:{hashlib.sha256(parts.config).hexdigest()}"
            place = os.path.join(folder, image_id.replace(":", "-"))
            if not os.path.exists(place):
                if _stored_bytes(folder) > settings.most_image_bytes // 2:
                    _remove_unnamed(settings, folder)
                _unpack(archive, parts, folder, place, SizeLimit(settings.most_image_bytes - _stored_bytes(folder)))
            _write(os.path.join(folder, _NAMES), {**_names(settings), full_name(name): image_id})
            return image_id
    except MALFORMED as error:
        raise Hostile(f"it cannot be read: {error}") from error


def forget(settings: config.Config, name: str) -> None:
    """Remove an image's name, and the image if it has no other name. Remove the containers that use it first."""
    with _lock(settings) as folder:
        names = _names(settings)
        image_id = names.pop(full_name(name), None)
        _write(os.path.join(folder, _NAMES), names)
        if image_id is not None and image_id not in names.values():
            _remove(folder, image_id.replace(":", "-"))


def _remove_unnamed(settings: config.Config, folder: str) -> None:
    """Remove images without a name that no container uses; they can be imported again."""
    in_use = {*_names(settings).values(), *(about["image_id"] for _, about in bundle.with_facts(settings))}
    for name in os.listdir(folder):
        if name.startswith("sha256-") and name.replace("-", ":") not in in_use:
            _remove(folder, name)


def _remove(folder: str, name: str) -> None:
    trash = tempfile.mkdtemp(prefix=_PART, dir=folder)
    os.rename(os.path.join(folder, name), os.path.join(trash, "image"))
    mounts.remove_tree(trash)


class _ImageParts(NamedTuple):
    """An image to unpack: the raw configuration, and the layers' names in the archive, the lowest first."""

    config: bytes
    layers: list[str]


class _Archive:
    """An archive with an image in it.

    Whoever opened the archive may still write to it. So nothing is read twice, and only the digest of what was read
    counts.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = io.BufferedReader(_Pread(descriptor, 0, os.fstat(descriptor).st_size), 2**16)
        self._descriptor = descriptor
        self._places: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> _Archive:
        links: dict[str, str] = {}
        with tarfile.open(fileobj=self._file, mode="r:", tarinfo=ShortMember) as archive:
            for member in archive:
                name = "/".join(steps(member.name))
                if member.isreg() and not member.issparse():
                    self._places[name] = (member.offset_data, member.size)
                elif member.issym():
                    links[name] = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
                elif member.islnk():
                    links[name] = os.path.normpath(member.linkname)
        # Docker before version 25 writes a layer that is there twice as a link. A link to anything else is no file.
        self._places.update({name: self._places[at] for name, at in links.items() if at in self._places})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def open(self, name: str) -> IO[bytes]:
        """Open one of the archive's files. Raises `Hostile` if it is not there."""
        if name not in self._places:
            raise Hostile(f"there is no {name[:80]!r} in it")
        return io.BufferedReader(_Pread(self._descriptor, *self._places[name]), 2**20)

    def read(self, name: str) -> bytes:
        """Return the whole content of a small file. Raises `Hostile` if it is too long."""
        with self.open(name) as file:
            content = file.read(_LONGEST_JSON + 1)
        if len(content) > _LONGEST_JSON:
            raise Hostile(f"{name[:80]!r} is too long")
        return content

    def blob(self, digest: str) -> bytes:
        """Return a small file of an OCI layout. Raises `Hostile` unless its content has this digest."""
        if not is_image_id(digest):
            raise Hostile(f"{digest[:80]!r} is no digest")
        content = self.read(_blob(digest))
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise Hostile(f"{digest} is not what it says")
        return content

    def image(self, name: str) -> _ImageParts:
        """Return the image of this name. Raises `Hostile` if the archive holds another one."""
        if "manifest.json" in self._places:
            entries: list[dict[str, Any]] = json.loads(self.read("manifest.json"))
            names = [full_name(tag) for entry in entries for tag in entry.get("RepoTags") or ()]
            fitting = [entry for entry in entries if not names or name in map(full_name, entry.get("RepoTags") or ())]
            if len(fitting) != 1:
                raise Hostile(f"it holds {', '.join(names)[:80] or 'several images'}, and not {name}")
            return _ImageParts(self.read(fitting[0]["Config"]), list(fitting[0]["Layers"]))
        return self._of_index(json.loads(self.read("index.json")), name, 0)

    def _of_index(self, index: dict[str, Any], name: str, depth: int) -> _ImageParts:
        """Return the image in an OCI layout (image-spec, image-index.md); of several platforms, this node's."""
        fitting = [one for one in index["manifests"] if _fits(one, name)]
        if len(fitting) != 1 or depth > _DEEPEST_INDEX:
            raise Hostile(f"it holds {len(fitting)} images for {name} on this kind of machine; one is wanted")
        manifest = json.loads(self.blob(fitting[0]["digest"]))
        if "manifests" in manifest:
            return self._of_index(manifest, name, depth + 1)
        layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
        return _ImageParts(self.blob(manifest["config"]["digest"]), layers)


def _fits(descriptor: dict[str, Any], name: str) -> bool:
    annotations: dict[str, Any] = descriptor.get("annotations") or {}
    names = [str(annotations[key]) for key in _NAME_KEYS if key in annotations]
    tag = name.rpartition(":")[2]
    platform: dict[str, Any] = descriptor.get("platform") or {}
    return (not names or any(one == tag or full_name(one) == name for one in names)) and (
        not platform or platform.get("architecture") == _architecture()
    )


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"


def _architecture() -> str:
    return _ARCHITECTURES.get(os.uname().machine, os.uname().machine)


def _unpack(archive: _Archive, parts: _ImageParts, folder: str, place: str, limit: SizeLimit) -> None:
    content: dict[str, Any] = json.loads(parts.config)
    diffs = content["rootfs"]["diff_ids"]
    if content.get("architecture", _architecture()) != _architecture():
        raise Hostile(f"it is for {str(content['architecture'])[:20]}, and this node is {_architecture()}")
    if len(diffs) != len(parts.layers) or len(diffs) > _MOST_LAYERS:
        raise Hostile(f"it has {len(parts.layers)} layers and names {len(diffs)}")
    part = tempfile.mkdtemp(prefix=_PART, dir=folder)
    try:
        rootfs = os.path.join(part, "rootfs")
        os.mkdir(rootfs, 0o755)
        with openat.closing_fd(os.open(rootfs, openat.FOLDER)) as target:
            for name, diff in zip(parts.layers, diffs):  # noqa: B905 - as long as each other, and Python 3.9
                _unpack_layer(archive, name, diff, target, limit)
            _make_mount_points(target)
        with open(os.path.join(part, "config.json"), "wb") as file:
            file.write(parts.config)
        _write(os.path.join(part, "size.json"), {"bytes": limit.passed_bytes})
        linux.sync(part)
        os.rename(part, place)
    except BaseException:
        mounts.remove_tree(part)
        raise


def _unpack_layer(archive: _Archive, name: str, diff: object, target: int, limit: SizeLimit) -> None:
    with archive.open(name) as packed:
        start = packed.peek(4)[:4]  # type: ignore[attr-defined]
        if start == b"\x28\xb5\x2f\xfd":
            raise Hostile("its layers are compressed with zstd, which this node's Python cannot read; gzip is fine")
        plain = gzip.GzipFile(fileobj=packed) if start[:2] == b"\x1f\x8b" else packed
        digest = hashlib.sha256()
        source = tar_unpack.Source(_pass_through(plain, digest.update))
        tar_unpack.unpack(source, target, Policy(limit, has_owners=True, is_overlaid=True, has_whiteouts=True))
        source.skip()
        if f"sha256:{digest.hexdigest()}" != diff:
            raise Hostile(f"a layer is not the one that the image names, {str(diff)[:80]}")


def _pass_through(file: IO[bytes] | gzip.GzipFile, hear: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the file's content, and pass it to `hear`, too."""
    while content := file.read(openat.CHUNK_BYTES):
        hear(content)
        yield content


def _make_mount_points(target: int) -> None:
    """Make the folders and files on which runc mounts, so that runc need not write into a container's own layer.

    None of them may be a link: CRIU would not find there what runc has mounted. For a folder that is a link, raise
    `Hostile`. A job never sees these files, so they are made anew.
    """
    for name in _MOUNT_POINTS:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=target)
        if not stat.S_ISDIR(os.stat(name, dir_fd=target, follow_symlinks=False).st_mode):
            raise Hostile(f"its /{name} is no folder but a link or a file: build it with a folder there")
    with openat.walk(target, ("etc",)) as etc:
        for name in _MOUNT_FILES:
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(name, dir_fd=etc, follow_symlinks=False).st_mode):
                    continue
            openat.remove_tree(etc, name)
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=etc))


class _Pread(io.RawIOBase):
    """A part of a file, with its own position: whoever gave us the descriptor may move the descriptor's position."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._start, self._size, self._at = start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = os.pread(self._descriptor, max(0, min(len(buffer), self._size - self._at)), self._start + self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _folder(settings: config.Config) -> str:
    path = os.path.join(settings.bundles, "images")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


@contextmanager
def _lock(settings: config.Config) -> Generator[str, None, None]:
    """Yield the images' folder, for one program alone. Remove the rest of an earlier import that was cut off."""
    folder = _folder(settings)
    with open(os.path.join(folder, ".lock"), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for name in os.listdir(folder):
            if name.startswith(_PART):
                mounts.remove_tree(os.path.join(folder, name))
        yield folder


def _stored_bytes(folder: str) -> int:
    total = 0
    for name in os.listdir(folder):
        try:
            with open(os.path.join(folder, name, "size.json"), encoding="utf-8") as file:
                total += int(json.load(file)["bytes"])
        except (FileNotFoundError, NotADirectoryError):
            continue
    return total


def _names(settings: config.Config) -> dict[str, str]:
    try:
        with open(os.path.join(_folder(settings), _NAMES), encoding="utf-8") as file:
            names: dict[str, str] = json.load(file)
    except FileNotFoundError:
        return {}
    return names


def _write(path: str, content: dict[str, Any]) -> None:
    atomic.replace(path, json.dumps(content).encode(), mode=0o644)
