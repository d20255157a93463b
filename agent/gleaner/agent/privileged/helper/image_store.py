"""Keep a node's container images, each unpacked once under the digest of its configuration (Docker Engine's id).

A container image arrives as one file that the agent or an admin has opened, either the archive of `docker save` or an
OCI layout as an archive. The helper opens no path, and reads only the configuration from the file, as plain JSON.
Everything else is read and unpacked by a process without any rights (`common.confined`). The configuration's digest is
the image's id, and the configuration names the digest of each layer's content. An image is accepted only when every
layer has the right digest. It is unpacked in another folder and then renamed, so that an incomplete image is never
used. In the end all its files belong to root, and no file is setuid.

An image without a name was pushed by a group and can be imported again. When room is needed, such images are removed,
the least recently used one first, unless a container uses them.
"""

from __future__ import annotations  # the node may have Python 3.9

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from ...system import atomic, image_archive, openat, tar_unpack
from ...system.image_names import full_name
from ...system.tar_policy import MOST_STEPS, Hostile, SizeLimit
from ..common import bundle, config, confined, linux, mounts
from ..common.request import is_image_id

_PART, _GONE = ".part-", ".gone-"
_NAMES, _SIZE = "names.json", "size.json"
_WITHIN_S = 3500
"""The time in which an image must be read. Programs that wait for it wait a little longer."""
_LARGEST_FILE = 2**40
_INODE_BYTES = 512
_FILE_BYTES = 2**12 + _INODE_BYTES
"""The maximum that a file costs on the disk besides its content, for its inode and the rest of its last block."""
_FRESH_S = 600.0
"""An image that was used this recently is not removed, because a container might be about to be made from it."""
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
_MOUNT_POINTS = ("dev", "proc", "sys", "etc", "job")
_MOUNT_FILES = ("hosts", "hostname", "resolv.conf", "passwd")
"""The names of the files in /etc on which runc mounts."""


class Image(NamedTuple):
    """One unpacked image."""

    id: str
    rootfs: str
    config: dict[str, Any]


def find(settings: config.Config, name: str) -> Image | None:
    """Return the image of this name or id, or None if this node lacks it. The call counts as a use of the image."""
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


def import_image(settings: config.Config, descriptor: int, name: str) -> str:
    """Unpack the image of this name from an open archive, unless it is already here. Return its id. Raises `Hostile`.

    Only one call at a time unpacks images on a node, so a second call for the same image finds it already unpacked.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Hostile("an image must be handed over as one plain file")
    with _lock(settings, ".import", _PART) as folder:
        facts = _confined(folder, lambda _: _facts(descriptor, name), descriptor)
        size_bytes, raw_config = int.from_bytes(facts[:8], "big"), facts[8:]
        image_id = f"sha256:{hashlib.sha256(raw_config).hexdigest()}"
        place = os.path.join(folder, image_id.replace(":", "-"))
        with _lock(settings):
            is_here = find(settings, image_id) is not None  # this counts as a use, so the image is not dropped now
            if not is_here:
                _make_room(settings, folder, size_bytes)
        if not is_here:
            _unpack(descriptor, name, raw_config, folder=folder, place=place, most_bytes=settings.most_image_bytes)
        if not is_image_id(name):
            with _lock(settings):
                _write(os.path.join(folder, _NAMES), {**named_images(settings), full_name(name): image_id})
        return image_id


class StoredImage(NamedTuple):
    """An image without a name, which is removed when room is needed."""

    image_id: str
    size_bytes: int
    used_s: float


def unnamed(settings: config.Config) -> list[StoredImage]:
    """Return the images without a name, the least recently used one first."""
    named = set(named_images(settings).values())
    stored = [one for one in _stored(_folder(settings)) if one.image_id not in named]
    return sorted(stored, key=lambda image: image.used_s)


def drop(settings: config.Config, image_id: str) -> bool:
    """Remove an image without a name. Return False if it is in use or does not exist."""
    with _lock(settings) as folder:
        is_unneeded = image_id in {one.image_id for one in _unneeded(settings)}
        if is_unneeded:
            _remove(folder, image_id.replace(":", "-"))
        return is_unneeded


def forget(settings: config.Config, name: str) -> None:
    """Remove an image's name, and the image if it has no other name.

    The containers that use it must be removed first.
    """
    with _lock(settings) as folder:
        names = named_images(settings)
        image_id = name if is_image_id(name) else names.pop(full_name(name), None)
        _write(os.path.join(folder, _NAMES), names)
        if image_id is not None and image_id not in names.values():
            _remove(folder, image_id.replace(":", "-"))


def _make_room(settings: config.Config, folder: str, size_bytes: int) -> None:
    """Remove unneeded images until this many bytes are free. Raises `Hostile`."""
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
    """Return the images without a name that no container uses or is about to use, in the order of `unnamed`."""
    used = {about["image_id"] for _, about in bundle.with_facts(settings)}
    before_s = time.time() - _FRESH_S
    return [one for one in unnamed(settings) if one.image_id not in used and one.used_s < before_s]


def _remove(folder: str, name: str) -> None:
    trash = tempfile.mkdtemp(prefix=_GONE, dir=folder)
    with suppress(FileNotFoundError):
        os.rename(os.path.join(folder, name), os.path.join(trash, "image"))
    mounts.remove_tree(trash)


def _confined(folder: str, function: Callable[[int], bytes], source: int, at: str | None = None) -> bytes:
    """Call the function in a process without rights, with a folder that is empty by default. Raises `Hostile`."""
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
                longest=image_archive.LONGEST_JSON + 64,
            )
    except confined.Failure as error:
        raise Hostile(str(error)) from error
    finally:
        if at is None:
            mounts.remove_tree(target)


def _image(descriptor: int, name: str) -> image_archive.ArchivedImage:
    file = open(descriptor, "rb", closefd=False)  # noqa: SIM115 - closing the file object leaves the descriptor open
    return image_archive.find(file, architecture=_ARCHITECTURE, name=name)


def _facts(descriptor: int, name: str) -> bytes:
    """Return the maximum space that the image can take on the disk, as 8 bytes, followed by the configuration."""
    image, policy = _image(descriptor, name), image_archive.policy_of(_LARGEST_FILE, file_bytes=_FILE_BYTES)
    image_archive.check(image, policy)
    return policy.limit.passed_bytes.to_bytes(8, "big") + image.config


def _unpack(descriptor: int, name: str, raw_config: bytes, *, folder: str, place: str, most_bytes: int) -> None:
    part = tempfile.mkdtemp(prefix=_PART, dir=folder)
    try:
        rootfs = os.path.join(part, "rootfs")
        os.mkdir(rootfs, 0o755)
        most_bytes -= _stored_bytes(folder)
        read = _confined(folder, partial(_unpack_layers, descriptor, name, most_bytes), descriptor, rootfs)
        if read != raw_config:
            raise Hostile("it was changed while it was read")
        size = SizeLimit(most_bytes)
        with openat.closing_fd(os.open(rootfs, openat.FOLDER)) as top:
            _give_to_root(top, size)
        with open(os.path.join(part, "config.json"), "wb") as file:
            file.write(raw_config)
        _write(os.path.join(part, _SIZE), {"bytes": size.passed_bytes})
        linux.sync(part)
        os.rename(part, place)
    except BaseException:
        mounts.remove_tree(part)
        raise


def _unpack_layers(descriptor: int, name: str, most_bytes: int, target: int) -> bytes:
    """Unpack the image into the folder. Return its configuration."""
    with image_archive.readable():
        image = _image(descriptor, name)
        policy = image_archive.policy_of(most_bytes, file_bytes=_FILE_BYTES)
        tar_unpack.unpack_all(_layers(image, target), target, policy)
    return image.config


def _layers(image: image_archive.ArchivedImage, target: int) -> Iterator[tar_unpack.TarSource]:
    """Yield the layers, each to be read to its end, where its digest is checked. Then make the mount points."""
    for layer in image.layers:
        source = tar_unpack.TarSource(image_archive.content(layer))
        yield source
        source.skip()
    _make_mount_points(target)


def _give_to_root(folder: int, limit: SizeLimit, depth: int = 0) -> None:
    """Make root the owner of all files below a folder to which no process writes any more.

    The change of owner also clears each setuid bit. The files' space is counted in the disk's blocks. Raises `Hostile`
    beyond the limit.
    """
    if depth > MOST_STEPS:
        raise Hostile("its folders are too deep")
    for name in openat.entries(folder):
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        is_folder = stat.S_ISDIR(facts.st_mode)
        limit.take_file((_INODE_BYTES + facts.st_blocks * 512) // (1 if is_folder else facts.st_nlink))
        if is_folder:
            with openat.walk(folder, (name,)) as inside:
                _give_to_root(inside, limit, depth + 1)
        else:
            os.chown(name, os.geteuid(), os.getegid(), dir_fd=folder, follow_symlinks=False)
    os.fchown(folder, os.geteuid(), os.getegid())


def _make_mount_points(target: int) -> None:
    """Make the folders and files on which runc mounts, so that runc need not write into a container's own layer.

    They must not be links, because CRIU would then not find runc's mounts there. Raises `Hostile` for a folder that is
    a link. A job never sees the files, so existing ones are replaced.
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


def _folder(settings: config.Config) -> str:
    path = os.path.join(settings.bundles, "images")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


@contextmanager
def _lock(settings: config.Config, lock: str = ".lock", leftovers: str = _GONE) -> Generator[str, None, None]:
    """Yield the images' folder, locked for one program. Remove what an interrupted program left.

    An import has a separate lock while it reads a file, so that removals need not wait for it.
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
    """Return the ids of all images that have a name, by name."""
    try:
        with open(os.path.join(_folder(settings), _NAMES), encoding="utf-8") as file:
            names: dict[str, str] = json.load(file)
    except FileNotFoundError:
        return {}
    return names


def _write(path: str, content: dict[str, Any]) -> None:
    atomic.replace(path, json.dumps(content).encode(), mode=0o644)
