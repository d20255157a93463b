"""Container images that groups have pushed: a node takes each in from the storage once, when its first job needs it.

However many jobs of a node want an image at once, one of them takes it in and the others wait for that. The turn is a
lock on a file that all agents of the node share; it ends with the process that holds it.
"""

import fcntl
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gleaner.agent.checkpoints.interface import ArchiveBroken, Storage
from gleaner.agent.runtime.interface import ImageMissing, Runtime, RuntimeFault

IMAGE_PART = "image.tar"
"""The part of a stored image's archive: what `docker load` reads."""
_PATIENCE_S = 1800.0
_LOOK_EVERY_S = 0.2


def image_key(image_id: str) -> str:
    """Return the key of an image in the storage.

    >>> image_key("sha256:0123")
    'images/0123'
    """
    return f"images/{image_id.removeprefix('sha256:')}"


def ensure(runtime: Runtime, storage: Storage, image_id: str, digest: str, *, lock: Path) -> None:
    """Take the image in from the storage unless the node has it. `digest` is that of its archive's manifest.

    Raises `ImageMissing` if the storage does not have it whole, `ImageRefused` if the runtime does not take it,
    `StorageError` or `RuntimeFault`.
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
            runtime.load_image(image_id, archive.read(IMAGE_PART))
        except ArchiveBroken as error:
            raise ImageMissing(f"the pushed image {image_id} is not whole in the storage: {error}") from error
        if not runtime.has_image(image_id):
            raise RuntimeFault(f"the image {image_id} was taken in, and the runtime does not have it")


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
                        raise RuntimeFault(f"another agent holds {path} and does not get its image taken in") from None
                    time.sleep(_LOOK_EVERY_S)
            yield
    except OSError as error:
        raise RuntimeFault(f"cannot wait for a turn to take an image in: {error}") from error
