"""Bring container images to a node, and remove them when they are unused.

A name is read as Docker reads it: `pi` is `docker.io/library/pi:latest`. The registry and the rest of a pattern are
compared separately, so that no wildcard extends from one into the other.

A node without an engine that can pull images uses image files. They are in a folder (shared, or local to the node) with
one entry for each container image, whose name is the image's name with `_` for each `/` and `:`. The entry is the
archive that `docker save` writes (`pythia_1.tar`), or an OCI layout (`pythia_1/`, as `skopeo copy` writes it). The
agent opens them under its own account. A layout is first packed into one unnamed file, so that the node's helper, which
runs as root, only reads from a descriptor.

A pushed image is loaded from the storage once per node, when its first job needs it.

Images that agents have pulled or loaded are recorded in a folder that outlives the agents, with each image's last use.
Only images in that record are ever removed, so an image that an admin has loaded stays.
"""

import fcntl
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import structlog

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.runtime.interface import CachedImage, ImageMissing, ImageRefused, NoRoom, Runtime, RuntimeFault
from gleaner.agent.system import openat, tar_pack
from gleaner.agent.system.tar_policy import Hostile, Policy, SizeLimit

log = structlog.get_logger()

IMAGE_PART = "image.tar"
"""The part of a stored image's archive that `docker load` reads."""
FRESH_S = 600.0
"""An image that was used more recently than this always stays, because a job might be about to start from it."""
_PATIENCE_S = 1800.0
_LOOK_EVERY_S = 0.2


def file_name(image: str) -> str:
    """Return the name of an image's entry, without its suffix.

    >>> file_name("registry.site/pythia:1")
    'registry.site_pythia_1'
    """
    return image.replace("/", "_").replace(":", "_")


@contextmanager
def archive_of(folder: Path, image: str) -> Generator[int | None]:
    """Yield a descriptor of the image's archive, or None if there is none.

    Raises `RuntimeFault` if it cannot be read.
    """
    layout = folder / file_name(image)
    try:
        if (archive := layout.with_name(f"{layout.name}.tar")).is_file():
            with archive.open("rb") as file:
                yield file.fileno()
        elif (layout / "index.json").is_file():
            with packed_layout(layout) as file:
                yield file.fileno()
        else:
            yield None
    except (OSError, Hostile) as error:
        raise RuntimeFault(f"cannot read the image {layout}: {error}") from error


@contextmanager
def packed_layout(layout: Path) -> Generator[BinaryIO]:
    """Open an OCI layout in a folder as one archive, in a temporary file. Raises `OSError` or `Hostile`."""
    with tempfile.TemporaryFile() as file, openat.closing_fd(os.open(layout, openat.FOLDER)) as folder:
        file.writelines(tar_pack.pack(folder, Policy(SizeLimit(math.inf))))
        file.flush()
        yield cast("BinaryIO", file)


def image_key(image_id: str) -> str:
    """Return the key of an image in the storage.

    >>> image_key("sha256:0123")
    'images/0123'
    """
    return f"images/{image_id.removeprefix('sha256:')}"


def prune(
    runtime: Runtime, *, unused_for_s: float, enough: Callable[[int], bool], now_s: float
) -> Sequence[CachedImage]:
    """Remove images that have been unused for this long, until `enough` returns True, and return the removed ones.

    `enough` is called with the size of the remaining images in bytes. The least recently used image is removed first.
    An image that a container uses stays.
    """
    removed: list[CachedImage] = []
    images = runtime.cached_images()
    left_bytes = sum(image.size_bytes for image in images)
    for image in images:
        if image.used_s > now_s - unused_for_s or enough(left_bytes):
            break
        if runtime.drop_image(image.name):
            removed.append(image)
            left_bytes -= image.size_bytes
    return removed


def make_room(runtime: Runtime, size_bytes: int, *, limit_bytes: int, now_s: float) -> None:
    """Remove unused images until an image of this size fits within the limit for all images.

    Raises `ImageRefused` if the image alone is too large, and `NoRoom` if the other images are in use.
    """
    if size_bytes > limit_bytes:
        raise ImageRefused(
            f"it takes {size_bytes / 2**30:.3g} GiB, and all images of a node may take {limit_bytes / 2**30:.3g} GiB"
            " (images_limit_gib)"
        )
    prune(runtime, unused_for_s=FRESH_S, enough=lambda left: left + size_bytes <= limit_bytes, now_s=now_s)
    left_bytes = sum(image.size_bytes for image in runtime.cached_images())
    if left_bytes + size_bytes > limit_bytes:
        raise NoRoom(
            f"there is no room for an image of {size_bytes / 2**30:.3g} GiB: of the {limit_bytes / 2**30:.3g} GiB that"
            f" images may take here (images_limit_gib) those in use take {left_bytes / 2**30:.3g} GiB"
        )


def ensure_image(
    runtime: Runtime, storage: FolderStorage, image_id: str, digest: str, *, lock: Path, limit_bytes: int
) -> None:
    """Load the image from the storage unless the node has it. `digest` is the digest of its archive's manifest.

    After this, all images on the node take at most `limit_bytes`. Raises `ImageMissing` if the storage does not have
    the complete image, `ImageRefused` if the runtime refuses it or it is too large, `NoRoom`, `StorageError` or
    `RuntimeFault`.
    """
    if runtime.has_image(image_id):
        return
    with _turn(lock):
        if runtime.has_image(image_id):
            return
        try:
            archive = storage.open(image_key(image_id), digest)
            if IMAGE_PART not in archive.parts:
                raise ArchiveBroken(f"{image_key(image_id)} has no part {IMAGE_PART}")
            size_bytes = archive.parts[IMAGE_PART].size_bytes
            make_room(runtime, size_bytes, limit_bytes=limit_bytes, now_s=time.time())
            runtime.load_image(image_id, archive.read(IMAGE_PART))
        except ArchiveBroken as error:
            raise ImageMissing(f"the pushed image {image_id} is not whole in the storage: {error}") from error
        if not runtime.has_image(image_id):
            raise RuntimeFault(f"the image {image_id} was loaded, and the runtime does not have it")


@contextmanager
def _turn(path: Path) -> Generator[None]:
    until_s = time.monotonic() + _PATIENCE_S
    try:
        with path.open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until_s:
                        raise RuntimeFault(
                            f"another agent holds {path} and does not finish to load its image"
                        ) from None
                    time.sleep(_LOOK_EVERY_S)
            yield
    except OSError as error:
        raise RuntimeFault(f"cannot wait for a turn to load an image: {error}") from error


@dataclass(frozen=True, slots=True)
class PulledImage:
    """One image in the record, with its id when it was pulled, and its last use."""

    image_id: str
    used_s: float


class PulledImages:
    """The record of pulled images, by full name, and of pushed ones, by id. All agents on a node share it.

    It is a folder in which each image has a file with its id and its name. The time of the file is that of the image's
    last use. A failure is only logged, because the record only serves to save space later. Without a folder nothing is
    recorded.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def record_pull(self, image: str, image_id: str, *, now_s: float) -> None:
        """Record that the image was pulled."""
        with _noting(self._folder):
            if self._folder is not None:
                self._folder.mkdir(exist_ok=True)
                self._file(self._folder, image).write_text(f"{image_id} {image}")
                os.utime(self._file(self._folder, image), (now_s, now_s))

    def record_use(self, image: str, *, now_s: float) -> None:
        """Record that a job started from the image, by name or by id, if the image is in the record."""
        for name, one in self.read().items():
            if self._folder is not None and image in (name, one.image_id):
                with _noting(self._folder):
                    os.utime(self._file(self._folder, name), (now_s, now_s))

    def forget(self, image: str) -> None:
        """Delete the image from the record, because it was removed, or is not ours."""
        with _noting(self._folder):
            if self._folder is not None:
                self._file(self._folder, image).unlink(missing_ok=True)

    def read(self) -> dict[str, PulledImage]:
        """Return the record, with the most recently used image last.

        Entries that cannot be understood are left out, so their images always stay.
        """
        images: dict[str, PulledImage] = {}
        for file in self._folder.glob("*") if self._folder is not None else ():
            with _noting(file):
                image_id, _, name = file.read_text(errors="replace").partition(" ")
                if name and file == self._file(file.parent, name):
                    images[name] = PulledImage(image_id, file.stat().st_mtime)
        return dict(sorted(images.items(), key=lambda named: named[1].used_s))

    @staticmethod
    def _file(folder: Path, image: str) -> Path:
        return folder / hashlib.sha256(image.encode()).hexdigest()


@contextmanager
def _noting(path: Path | None) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:  # another agent has just removed the image
        pass
    except OSError as error:
        log.warning("cannot note which images were pulled", path=str(path), reason=str(error))
