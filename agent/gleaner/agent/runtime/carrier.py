"""Carriers: how an ordinary user gets at what the engine keeps of a container in its own data folder.

A *carrier* is a container of the same image that is created with those folders mounted, and never started: the
engine's archive calls reach the mounts of such a container too. So no process ever runs with rights to them.
"""

import contextlib
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import docker.errors
import docker.types

from gleaner.agent.runtime.engine import Engine, criu_log, criu_reason, explanation
from gleaner.agent.runtime.layer import layer, members, tar_of
from gleaner.agent.runtime.protocol import FOLDER_IN_CONTAINER, CannotCheckpoint, RuntimeFault
from gleaner.agent.storage.protocol import Draft

_PLACE = "/gleaner-carried"
_CONFIG = "criu.conf"
_CRIU_OPTIONS = "file-locks\nghost-limit 1G\n"
"""What our nodes' /etc/criu/runc.conf says, which runc does not look at when a container names a file of its own."""
LAYER_PART = "layer.tar"
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


def save_layer(engine: Engine, container: str, carried: str, draft: Draft) -> None:
    """Put what the container has changed of its image's files, less the job's folder, into the draft.

    Raises `CannotCheckpoint`, and the engine's and the draft's errors.
    """
    try:
        with contextlib.closing(written_files(engine, container, carried, mount=FOLDER_IN_CONTAINER)) as written:
            draft.add(LAYER_PART, written)
    except tarfile.TarError as error:
        raise CannotCheckpoint(f"the container's written files cannot be read: {error}") from error


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


@dataclass(frozen=True, slots=True)
class CriuLog:
    """A place for CRIU's log that outlives the container it is about."""

    engine: Engine
    keeper: str
    folder: str

    @property
    def annotations(self) -> Mapping[str, str]:
        """For the container whose log is to be kept."""
        return {"org.criu.config": f"{self.folder}/{_CONFIG}"}

    def reason(self) -> str:
        """CRIU's reason, or nothing if there is no log."""
        try:
            return criu_reason(_file(self.engine, self.keeper, f"{_PLACE}/log/criu.log"))
        except (docker.errors.APIError, tarfile.TarError):
            return ""


@contextlib.contextmanager
def criu_log_kept(engine: Engine, name: str, *, image: str, labels: Mapping[str, str]) -> Generator[CriuLog]:
    """A never-started container with a volume, for a CRIU configuration (criu(8), --config) and the log it names."""
    keeper = f"{name}-log"
    engine.remove(keeper)
    made = engine.create(
        keeper,
        host={"mounts": [docker.types.Mount(f"{_PLACE}/log", None, type="volume")]},
        image=image,
        command=["never-started"],
        labels=labels,
    )
    try:
        folder = str(engine.inspect(made)["Mounts"][0]["Source"])
        config = f"log-file {folder}/criu.log\n{_CRIU_OPTIONS}"
        engine.receive(made, f"{_PLACE}/log", tar_of(".", _CONFIG, config.encode()))
        yield CriuLog(engine, made, folder)
    finally:
        with contextlib.suppress(docker.errors.APIError):
            engine.remove(made)


def why(engine: Engine, inspected: Mapping[str, Any], error: docker.errors.APIError) -> str:
    """Why a dump failed: CRIU's own reason where its log can be reached, else what the engine said."""
    said = explanation(error)
    place = criu_log(said)
    if place is None:
        return said
    folder, name = place
    try:
        with carrier(engine, inspected, more=[folder]) as carried:
            return criu_reason(_file(engine, carried, f"{_PLACE}/more0/{name}")) or said
    except (docker.errors.APIError, tarfile.TarError):
        return said


def _file(engine: Engine, container: str, path: str) -> str:
    """A text file's content."""
    with contextlib.closing(engine.send(container, path)) as sent:
        for _, member, archive in members(sent):
            content = archive.extractfile(member)
            if content is not None:
                return content.read().decode("utf-8", "replace")
    return ""
