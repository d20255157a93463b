"""Carriers: how an ordinary user gets at what the engine keeps of a container in its own data folder.

A *carrier* is a container of the same image that is created with those folders mounted, and never started: the
engine's archive calls reach the mounts of such a container too. So no process ever runs with rights to them.
"""

import contextlib
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import docker.errors
import docker.types

from gleaner.agent.runtime.engine import Engine, criu_log, criu_reason, explanation
from gleaner.agent.runtime.layer import layer, members
from gleaner.agent.runtime.protocol import RuntimeFault

_PLACE = "/gleaner-carried"
CHECKPOINTS = f"{_PLACE}/checkpoints"
"""Where a carrier has the container's checkpoints, one folder each."""
UPPER_LAYER = f"{_PLACE}/layer"
"""Where it has the files that the container has written."""


def data_folder(engine: Engine) -> str:
    """The engine's data folder. Raises `RuntimeFault` if it keeps layers in a way that is not known here."""
    info = engine.info()
    if info["Driver"] != "overlay2":
        raise RuntimeFault(f"Docker's storage driver is {info['Driver']}: only overlay2 is supported")
    return str(info["DockerRootDir"])


@contextlib.contextmanager
def carrier(engine: Engine, inspected: Mapping[str, Any], more: Sequence[str] = ()) -> Generator[str]:
    """A carrier for an inspected container, as long as the context lasts. `more` folders are for reading only."""
    checkpoints = f"{data_folder(engine)}/containers/{inspected['Id']}/checkpoints"
    mounts = {CHECKPOINTS: checkpoints, UPPER_LAYER: inspected["GraphDriver"]["Data"]["UpperDir"]}
    mounts |= {f"{_PLACE}/more{number}": folder for number, folder in enumerate(more)}
    name = f"{inspected['Name'].strip('/')}-carrier"
    engine.remove(name)
    made = engine.create(
        name,
        host={
            "mounts": [
                docker.types.Mount(target, source, type="bind", read_only="/more" in target)
                for target, source in mounts.items()
            ],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
        },
        image=inspected["Image"],
        command=["never-started"],
        user=inspected["Config"]["User"],
        labels=inspected["Config"]["Labels"],
    )
    try:
        yield made
    finally:
        with contextlib.suppress(docker.errors.APIError):
            engine.remove(made)


def written_files(engine: Engine, container: str, carried: str, *, mount: str) -> Generator[bytes]:
    """What the container has changed of its image's files, as an archive of its layer, less what is in `mount`."""
    with contextlib.closing(engine.send(carried, f"{UPPER_LAYER}/.")) as sent:
        yield from layer(
            sent,
            without={mount.strip("/")},
            deleted=engine.deleted(container),
            below=lambda folder: _image_files(engine, carried, folder),
        )


def _image_files(engine: Engine, carried: str, folder: str) -> Iterator[str]:
    """Paths of the image's own files in a folder and below; a carrier has the image as it was."""
    above = folder.rpartition("/")[0]
    with contextlib.closing(engine.send(carried, f"/{folder}")) as sent:
        for path, _, _ in members(sent):
            yield f"{above}/{path}" if above else path


def why(engine: Engine, inspected: Mapping[str, Any], error: docker.errors.APIError) -> str:
    """CRIU's own last error where its log can be reached, else what the engine said."""
    said = explanation(error)
    place = criu_log(said)
    if place is None:
        return said
    folder, name = place
    try:
        with (
            carrier(engine, inspected, more=[folder]) as carried,
            contextlib.closing(engine.send(carried, f"{_PLACE}/more0/{name}")) as sent,
        ):
            for _, member, archive in members(sent):
                content = archive.extractfile(member)
                if content is not None:
                    return criu_reason(content.read().decode("utf-8", "replace")) or said
    except (docker.errors.APIError, tarfile.TarError):
        return said
    return said
