"""The container images that a node has, each unpacked once, by the digest of its configuration (Docker Engine's id).

A container image comes as one file that the agent (or an admin) has opened: the archive of `docker save`, or an OCI
layout as an archive. Root opens no path, and reads nothing of the file but the configuration, as plain JSON. All the
rest is read and unpacked by a process without any rights (`common.confined`). The configuration's digest is the image's
id, and the configuration names the digest of each layer's content. An image counts only when every layer has its
digest. It is unpacked beside its place and renamed there, so that half an image never counts. All its files belong to
root in the end, and none is setuid.

An image without a name is one that a group has pushed, and that can be imported again: it is removed when room is
needed, the one that was not used for longest first, unless a container uses it.
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
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, NamedTuple

from ...system import atomic, openat, tar_unpack, untrusted
from ...system.tar_policy import MALFORMED, MOST_STEPS, Hostile, Policy, ShortMember, SizeLimit, steps
from ..common import bundle, config, confined, linux, mounts
from ..common.request import is_image_id

_PART, _GONE = ".part-", ".gone-"
_NAMES, _SIZE = "names.json", "size.json"
_WITHIN_S = 3500
"""The time in which an image must be read; whoever waits for it waits a little longer."""
_LARGEST_FILE = 2**40
_FRESH_S = 600.0
"""An image that was used so recently is not removed: perhaps a container is about to be made."""
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
    """Return the image of this name or id; None if this node lacks it. That counts as a use of it."""
    image_id = name if is_image_id(name) else named_images(settings).get(full_name(name), "")
    if not is_image_id(image_id):
        return None
    path = os.path.join(_folder(settings), image_id.replace(":", "-"))
    try:
        os.utime(os.path.join(path, _SIZE))
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
    with _lock(settings, ".import", _PART) as folder:
        facts = _confined(folder, lambda _: _facts(descriptor, name), descriptor)
        size_bytes, raw_config = int.from_bytes(facts[:8], "big"), facts[8:]
        image_id = f"sha256:{hashlib.sha256(raw_config).hexdigest()}"
        place = os.path.join(folder, image_id.replace(":", "-"))
        with _lock(settings):
            is_here = find(settings, image_id) is not None  # as a use: nobody drops it now
            if not is_here:
                _make_room(settings, folder, size_bytes)
        if not is_here:
            _unpack(_Source(descriptor, name, raw_config), folder, place, settings.most_image_bytes)
        if not is_image_id(name):
            with _lock(settings):
                _write(os.path.join(folder, _NAMES), {**named_images(settings), full_name(name): image_id})
        return image_id


class StoredImage(NamedTuple):
    """An image without a name, that is removed when room is needed."""

    image_id: str
    size_bytes: int
    used_s: float


def unnamed(settings: config.Config) -> list[StoredImage]:
    """Return the images without a name, the one that was not used for longest first."""
    named = set(named_images(settings).values())
    stored = [one for one in _stored(_folder(settings)) if one.image_id not in named]
    return sorted(stored, key=lambda image: image.used_s)


def drop(settings: config.Config, image_id: str) -> bool:
    """Remove an image without a name. Return False if it is used, or not there."""
    with _lock(settings) as folder:
        if image_id not in {one.image_id for one in _unneeded(settings)}:
            return False
        _remove(folder, image_id.replace(":", "-"))
        return True


def forget(settings: config.Config, name: str) -> None:
    """Remove an image's name, and the image if it has no other name. Remove the containers that use it first."""
    with _lock(settings) as folder:
        names = named_images(settings)
        image_id = name if is_image_id(name) else names.pop(full_name(name), None)
        _write(os.path.join(folder, _NAMES), names)
        if image_id is not None and image_id not in names.values():
            _remove(folder, image_id.replace(":", "-"))


def _make_room(settings: config.Config, folder: str, size_bytes: int) -> None:
    """Remove unneeded images until there is room for so many bytes. Raises `Hostile`."""
    free_bytes = settings.most_image_bytes - _stored_bytes(folder)
    for image in _unneeded(settings):
        if free_bytes >= size_bytes:
            return
        _remove(folder, image.image_id.replace(":", "-"))
        free_bytes += image.size_bytes
    if free_bytes < size_bytes:
        raise Hostile(
            f"it takes {size_bytes // 2**20} MiB, and of the {settings.most_image_bytes // 2**20} MiB that images may"
            f" take on this node {max(free_bytes, 0) // 2**20} are free: the others have names, or are in use"
        )


def _unneeded(settings: config.Config) -> list[StoredImage]:
    """Return the images without a name that no container uses, nor one that is about to be made, as in `unnamed`."""
    used = {about["image_id"] for _, about in bundle.with_facts(settings)}
    before_s = time.time() - _FRESH_S
    return [one for one in unnamed(settings) if one.image_id not in used and one.used_s < before_s]


def _remove(folder: str, name: str) -> None:
    trash = tempfile.mkdtemp(prefix=_GONE, dir=folder)
    with suppress(FileNotFoundError):
        os.rename(os.path.join(folder, name), os.path.join(trash, "image"))
    mounts.remove_tree(trash)


class _ImageParts(NamedTuple):
    """An image to unpack: the raw configuration, and the layers' names in the archive, the lowest first."""

    config: bytes
    layers: list[str]


class _Source(NamedTuple):
    """An archive, the name of the image in it that is wanted, and that image's configuration, which is known."""

    descriptor: int
    name: str
    config: bytes


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

    def size_bytes(self, name: str) -> int:
        """Return the size of one of the archive's files; 0 if it is not there."""
        return self._places.get(name, (0, 0))[1]

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


def _confined(folder: str, function: Callable[[int], bytes], source: int, at: str | None = None) -> bytes:
    """Call the function with a folder, by default an empty one, in a process without rights. Raises `Hostile`."""
    target = at or tempfile.mkdtemp(prefix=_PART, dir=folder)
    try:
        if os.geteuid() == 0:
            os.chown(target, confined.ACCOUNT, confined.ACCOUNT)
        with openat.closing_fd(os.open(target, openat.FOLDER)) as opened:
            return confined.call(
                lambda: function(opened),
                folder=opened,
                source=source,
                within_s=_WITHIN_S,
                most_bytes=_LARGEST_FILE,
                longest=_LONGEST_JSON + 64,
            )
    except confined.Failure as error:
        raise Hostile(str(error)) from error
    finally:
        if at is None:
            mounts.remove_tree(target)


def _facts(descriptor: int, name: str) -> bytes:
    """Return the size of the image's layers in the archive, as 8 bytes, and the configuration."""
    with _readable(), _Archive(descriptor) as archive:
        parts = archive.image(full_name(name))
        return sum(archive.size_bytes(layer) for layer in parts.layers).to_bytes(8, "big") + parts.config


@contextmanager
def _readable() -> Generator[None, None, None]:
    """Turn the errors of a malformed file into `Hostile`."""
    try:
        yield
    except MALFORMED as error:
        raise Hostile(f"it cannot be read: {error}") from error


def _unpack(source: _Source, folder: str, place: str, most_bytes: int) -> None:
    with _readable():
        content: dict[str, Any] = untrusted.json_of(source.config)
        if content.get("architecture", _architecture()) != _architecture():
            raise Hostile(f"it is for {str(content['architecture'])[:20]}, and this node is {_architecture()}")
        diffs: list[Any] = list(content["rootfs"]["diff_ids"])
    part = tempfile.mkdtemp(prefix=_PART, dir=folder)
    try:
        rootfs = os.path.join(part, "rootfs")
        os.mkdir(rootfs, 0o755)
        most_bytes -= _stored_bytes(folder)
        answer = _confined(
            folder, lambda target: _unpack_layers(source, diffs, target, most_bytes), source.descriptor, rootfs
        )
        with openat.closing_fd(os.open(rootfs, openat.FOLDER)) as top:
            _give_to_root(top, SizeLimit(most_bytes))
        with open(os.path.join(part, "config.json"), "wb") as file:
            file.write(source.config)
        _write(os.path.join(part, _SIZE), {"bytes": int.from_bytes(answer, "big")})
        linux.sync(part)
        os.rename(part, place)
    except BaseException:
        mounts.remove_tree(part)
        raise


def _unpack_layers(source: _Source, diffs: list[Any], target: int, most_bytes: int) -> bytes:
    """Unpack the image into the folder. Return the size of its files, as 8 bytes."""
    limit = SizeLimit(most_bytes)
    with _readable(), _Archive(source.descriptor) as archive:
        parts = archive.image(full_name(source.name))
        if parts.config != source.config:
            raise Hostile("it was changed while it was read")
        if len(diffs) != len(parts.layers) or len(diffs) > _MOST_LAYERS:
            raise Hostile(f"it has {len(parts.layers)} layers and names {len(diffs)}")
        policy = Policy(limit, is_overlaid=True, has_whiteouts=True)
        tar_unpack.unpack_all(_layers(archive, parts.layers, diffs, target), target, policy)
    return limit.passed_bytes.to_bytes(8, "big")


def _layers(archive: _Archive, names: list[str], diffs: list[Any], target: int) -> Iterator[tar_unpack.Source]:
    """Yield the layers. After each, check its digest; after the last one, make the mount points."""
    for name, diff in zip(names, diffs):  # noqa: B905 - as long as each other, and Python 3.9
        with archive.open(name) as packed:
            start = packed.peek(4)[:4]  # type: ignore[attr-defined]
            if start == b"\x28\xb5\x2f\xfd":
                raise Hostile("its layers are compressed with zstd, which this node's Python cannot read; gzip is fine")
            plain = gzip.GzipFile(fileobj=packed) if start[:2] == b"\x1f\x8b" else packed
            digest = hashlib.sha256()
            source = tar_unpack.Source(_pass_through(plain, digest.update))
            yield source
            source.skip()
            if f"sha256:{digest.hexdigest()}" != diff:
                raise Hostile(f"a layer is not the one that the image names, {str(diff)[:80]}")
    _make_mount_points(target)


def _give_to_root(folder: int, limit: SizeLimit, depth: int = 0) -> None:
    """Make root the owner of all files below a folder that nobody writes to any more. That ends each setuid bit.

    Raises `Hostile` beyond the limit.
    """
    if depth > MOST_STEPS:
        raise Hostile("its folders are too deep")
    for name in openat.entries(folder):
        limit.take_file()
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            with openat.walk(folder, (name,)) as inside:
                _give_to_root(inside, limit, depth + 1)
        else:
            limit.take(facts.st_size // facts.st_nlink)
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=folder, follow_symlinks=False)
    os.fchown(folder, os.geteuid(), os.getegid())


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
def _lock(settings: config.Config, lock: str = ".lock", leftovers: str = _GONE) -> Generator[str, None, None]:
    """Yield the images' folder, for one program alone. Remove what an earlier one left when it was cut off.

    An import has a lock of its own for the time in which it reads a file: removals do not wait for it.
    """
    folder = _folder(settings)
    with open(os.path.join(folder, lock), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for name in os.listdir(folder):
            if name.startswith(leftovers):
                mounts.remove_tree(os.path.join(folder, name))
        yield folder


def _stored(folder: str) -> list[StoredImage]:
    """Return all images."""
    stored: list[StoredImage] = []
    for name in os.listdir(folder):
        try:
            with open(os.path.join(folder, name, _SIZE), encoding="utf-8") as file:
                facts = json.load(file)
                stored.append(
                    StoredImage(name.replace("-", ":"), int(facts["bytes"]), os.fstat(file.fileno()).st_mtime)
                )
        except (FileNotFoundError, NotADirectoryError):
            continue
    return stored


def _stored_bytes(folder: str) -> int:
    return sum(image.size_bytes for image in _stored(folder))


def named_images(settings: config.Config) -> dict[str, str]:
    """Return the id of each image that has a name, by its name."""
    try:
        with open(os.path.join(_folder(settings), _NAMES), encoding="utf-8") as file:
            names: dict[str, str] = json.load(file)
    except FileNotFoundError:
        return {}
    return names


def _write(path: str, content: dict[str, Any]) -> None:
    atomic.replace(path, json.dumps(content).encode(), mode=0o644)
