"""Carriers: an ordinary user's access to what the engine keeps of a container in its own data folder.

A *carrier* is a container of the same image that is created with the upper layer mounted, and is never started: the
engine's archive calls reach the mounts of such a container too. So no process ever runs with rights to them.
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import docker.errors
import docker.types

from gleaner.agent.checkpoints.interface import Draft
from gleaner.agent.privileged.common.tar_stream import MALFORMED
from gleaner.agent.runtime.docker_http import Engine, reading
from gleaner.agent.runtime.docker_layer import layer, members
from gleaner.agent.runtime.interface import FOLDER_IN_CONTAINER, CannotCheckpoint, RuntimeFault

_PLACE = "/gleaner-carried"
LAYER_PART = "layer.tar"
UPPER_LAYER = f"{_PLACE}/layer"
"""The folder of a carrier with the files that the container has written."""


@reading()
def data_folder(engine: Engine) -> str:
    """Return the engine's data folder. Raises `RuntimeFault` if it keeps layers in a way that is not known here."""
    info = engine.info()
    if info["Driver"] != "overlay2":
        raise RuntimeFault(f"Docker's storage driver is {info['Driver']}: only overlay2 is supported")
    return str(info["DockerRootDir"])


@contextlib.contextmanager
def carrier(engine: Engine, inspected: Mapping[str, Any]) -> Generator[str]:
    """Make a carrier for an inspected container, as long as the context lasts."""
    with reading():
        upper, name = inspected["GraphDriver"]["Data"]["UpperDir"], f"{inspected['Name'].strip('/')}-carrier"
        image, user, labels = inspected["Image"], inspected["Config"]["User"], inspected["Config"]["Labels"]
    engine.remove(name)
    made = engine.create(
        name,
        host={
            "mounts": [docker.types.Mount(UPPER_LAYER, upper, type="bind")],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
        },
        image=image,
        command=["never-started"],
        user=user,
        labels=labels,
    )
    try:
        yield made
    finally:
        with contextlib.suppress(docker.errors.APIError):
            engine.remove(made)


def save_layer(engine: Engine, container: str, carried: str, draft: Draft) -> None:
    """Put what the container has changed of its image's files, less the job's folder, into the draft.

    Raises `CannotCheckpoint`, and the engine's and the draft's errors.
    """
    try:
        with contextlib.closing(written_files(engine, container, carried, mount=FOLDER_IN_CONTAINER)) as written:
            draft.add(LAYER_PART, written)
    except MALFORMED as error:
        raise CannotCheckpoint(f"the container's written files cannot be read: {error}") from error


def written_files(engine: Engine, container: str, carried: str, *, mount: str) -> Generator[bytes]:
    """Yield the container's changes of its image's files, as an archive of its layer, less what is in `mount`."""
    with contextlib.closing(engine.send(carried, f"{UPPER_LAYER}/.")) as sent:
        yield from layer(
            sent,
            without={mount.strip("/")},
            deleted=engine.deleted(container),
            below=lambda folder: _image_files(engine, carried, folder),
        )


def _image_files(engine: Engine, carried: str, folder: str) -> Iterator[str]:
    """Yield the paths of the image's own files in a folder and below; a carrier has the image as it was."""
    above = folder.rpartition("/")[0]
    with contextlib.closing(engine.send(carried, f"/{folder}")) as sent:
        for path, _, _ in members(sent):
            yield f"{above}/{path}" if above else path
