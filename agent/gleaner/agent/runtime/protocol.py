"""A container runtime, reduced to what an agent needs of it.

All calls block; the agent makes them from worker threads. A container's memory and its written files go into
a storage draft as parts; the job's folder is the agent's own affair (`agent.folder`), since it lies outside
the container.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from gleaner.agent.privileged.taken import Taken
from gleaner.agent.protocol import Way
from gleaner.agent.storage.protocol import Draft, Parcel

ContainerId = NewType("ContainerId", str)


class RuntimeFault(Exception):
    """The runtime does not answer or does not work on this node; the job is not to blame."""


class ImageMissing(Exception):
    """The image is not on the node and cannot be pulled."""


class ImageRefused(Exception):
    """The image may not run here, or not in such a way that all it writes is saved."""


class CannotStart(Exception):
    """The container could not start its command. `exit_code` is 126 or 127, as a shell would say."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CannotCheckpoint(Exception):
    """The memory could not be saved. The message is one line that says why; the container is still there."""


class CannotRestore(Exception):
    """The process did not come back from this generation."""


class ContainerExited(Exception):
    """The workload ended by itself before it could be paused."""


class ContainerKilled(Exception):
    """The container was killed or removed from outside; the job is not to blame."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One job's container: everything that must be the same at the start and at each restore."""

    name: str
    """Unique on the node: `gleaner-JOB-ATTEMPT`."""
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: int
    memory_mib: int
    folder: Path
    """The job's folder on the node; mounted at `FOLDER_IN_CONTAINER`, where the command starts."""
    labels: Mapping[str, str]
    disk_mib: int | None = None
    """Of what it writes apart from its folder, where the node's file system can hold it to that; None: no limit."""


FOLDER_IN_CONTAINER = "/job"

LABEL_JOB = "org.gleaner.job"
LABEL_ATTEMPT = "org.gleaner.attempt"
LABEL_AGENT = "org.gleaner.agent"
LABEL_SLURM_JOB = "org.gleaner.slurm-job"
LABEL_END = "org.gleaner.end-s"
"""Labels of every container of ours; the watchdog and the Epilog (deploy/) go by the last two."""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What runs here, for the node's facts and for the manifest."""

    runtime: str
    criu: str
    way: Way = Way.DOCKER
    """How memory is saved here."""
    checkpoints: bool = True
    """Whether it can be saved at all. If not, `checkpoint` and `restore` raise."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container uses now. `memory_bytes` is what a checkpoint would have to write, as far as is known."""

    memory_bytes: int
    cpu_s: float


class Runtime(Protocol):
    """Every method may raise `RuntimeFault`. A container that is gone is no error for `kill` and `remove`."""

    def facts(self) -> RuntimeFacts:
        """Versions; also the check that the runtime works at all."""
        ...

    def start(self, spec: ContainerSpec) -> ContainerId:
        """Run the command from the beginning. Raises `ImageMissing`, `ImageRefused` or `CannotStart`."""
        ...

    def image_id(self, container: ContainerId) -> str:
        """The content id of the container's image, for the manifest."""
        ...

    def pause(self, container: ContainerId) -> None:
        """Freeze it. Raises `ContainerExited` if it has ended by itself."""
        ...

    def unpause(self, container: ContainerId) -> None:
        """Let a paused container go on; one that runs is left alone."""
        ...

    def checkpoint(self, container: ContainerId, draft: Draft) -> None:
        """Add the memory and the written files of a paused container to the draft; it stays paused.

        Raises `CannotCheckpoint`; then the container is still paused and can go on.
        """
        ...

    def restore(self, spec: ContainerSpec, parcel: Parcel) -> ContainerId:
        """Let the process go on from a generation. The job's folder has been put back before.

        Raises `CannotRestore`, `ImageMissing`, `ImageRefused`, or `ParcelBroken`; then nothing of it is left.
        """
        ...

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        """Its output, from the container's start until it has ended: 1 for stdout or 2 for stderr, and what it wrote.

        What was written of a line that is not at its end may come only when the container has ended.
        """
        ...

    def live(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """The same output as it is written, open lines too. To be read without waiting, or the container will.

        Only once for a container, and only for one that this object has started or restored. None: `logs` is as fast.
        """
        ...

    def wait(self, container: ContainerId) -> int:
        """Block until it has ended by itself; its exit code. Hitting its memory limit is an end by itself, with 137.

        Raises `ContainerKilled` if it was killed, by `kill` or by somebody else, or is not there any more.
        """
        ...

    def signal(self, container: ContainerId, name: str) -> None:
        """Send a signal (`SIGTERM`, `SIGUSR1`) to its first process. One that has ended is no error."""
        ...

    def kill(self, container: ContainerId) -> None:
        """End it at once, paused or not."""
        ...

    def remove(self, container: ContainerId) -> None:
        """Remove it and all that the runtime keeps of it, checkpoints included."""
        ...

    def usage(self, containers: Sequence[ContainerId]) -> Mapping[ContainerId, Usage]:
        """What each of them uses; containers that have ended are left out."""
        ...

    def ours(self) -> Mapping[ContainerId, Mapping[str, str]]:
        """The labels of every container on this node that carries `LABEL_AGENT`, ended ones too."""
        ...

    def places(self) -> Sequence[str]:
        """Folders of the node on whose file systems containers and images take room."""
        ...

    def written(self, container: ContainerId, *, most_inodes: int) -> Taken:
        """What it has written apart from its folder; nothing for one that is gone.

        Past the limit it may stop counting.
        """
        ...

    def prune(self, *, unused_for_s: float, enough: Callable[[], bool]) -> Sequence[str]:
        """Remove images that agents have brought and nobody has used for so long, until it is enough; their names.

        The one that was not used for longest goes first. Never one that a container has.
        """
        ...
