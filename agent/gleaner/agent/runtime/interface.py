"""A container runtime, reduced to what an agent needs of it.

All calls block; the agent makes them from worker threads. A container's memory and its written files go into
a storage draft as parts; the job's folder is the agent's own affair (`checkpoints.workdir_tar`), since it lies outside
the container.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.messages import ReturnReason, Way
from gleaner.agent.privileged.common.disk_usage import DiskUse

ContainerId = NewType("ContainerId", str)


class RuntimeFault(Exception):
    """The runtime does not answer or does not work on this node; the job is not to blame."""


class Gone(RuntimeFault):
    """There is no such container."""


class NoRoom(RuntimeFault):
    """The runtime works, and this node has no room for the image now; another node may have."""


class ImageMissing(Exception):
    """The container image is not on the node and cannot be pulled."""


class ImageRefused(Exception):
    """The container image may not run here, or not in such a way that all it writes is saved."""


class MountMissing(Exception):
    """A folder of the node cannot be mounted: the message begins with the folder and a colon. Another node may have
    it."""


class CannotCheckpoint(Exception):
    """The memory could not be saved. The message is one line that says why; the container is still there.

    `why` is UNSAVABLE if each next try will fail for the same reason, and NODE_LACKS if each on this node will.
    """

    def __init__(self, message: str, why: ReturnReason = ReturnReason.SAVE_FAILED) -> None:
        super().__init__(message)
        self.why = why


class CannotRestore(Exception):
    """The process did not come back from this checkpoint. `why` is INCOMPATIBLE if it never will on this node."""

    def __init__(self, message: str, why: ReturnReason = ReturnReason.CANNOT_RESTORE) -> None:
        super().__init__(message)
        self.why = why


class ContainerExited(Exception):
    """The workload ended by itself before it could be paused."""


class ContainerKilled(Exception):
    """The container was killed or removed from outside; the job is not to blame.

    `why` is CHECKPOINT_BROKEN if the rest of its memory could not be read.
    """

    def __init__(self, message: str, why: ReturnReason = ReturnReason.NODE_FAULT) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container's program."""

    exit_code: int
    """The program's own, or 128 and the number of the signal that ended it."""
    reason: str = ""
    """One line for a person where the code alone does not tell."""
    out_of_memory: bool = False
    """True if a process was killed for the container's memory limit."""


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
    """The limit on what the container writes outside its folder, if the file system can enforce one. None: no limit."""
    inputs: Path | None = None
    """The folder with the job's inputs; mounted read-only at `INPUTS_IN_CONTAINER`. It is in no checkpoint."""
    mounts: tuple[str, ...] = ()
    """Folders of the node, each mounted read-only at its own path, without what is mounted below. They are in no
    checkpoint."""


FOLDER_IN_CONTAINER = "/job"
INPUTS_IN_CONTAINER = "/inputs"

LABEL_JOB = "org.gleaner.job"
LABEL_ATTEMPT = "org.gleaner.attempt"
LABEL_AGENT = "org.gleaner.agent"
LABEL_SLURM_JOB = "org.gleaner.slurm-job"
LABEL_END = "org.gleaner.end-s"
"""Labels of every container of ours; the watchdog and the Epilog (deploy/) go by the last two."""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The runtime here, for the node's facts and for the manifest."""

    runtime: str
    criu: str
    way: Way = Way.SHIM
    """The way in which memory is saved here."""
    checkpoints: bool = True
    """True if memory can be saved at all. If not, `checkpoint` and `restore` raise."""
    images: tuple[str, ...] = ()
    """The names of the images that are here."""
    brings_images: bool = True
    """True if an image that is not here can be brought."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    """A container image that agents have brought to this node: it can be brought again."""

    name: str
    """Its name, or its id if a group has pushed it."""
    size_bytes: int
    used_s: float
    """The last time at which a job began with it."""


class Runtime(Protocol):
    """A container runtime. Every method may raise `RuntimeFault`. For `kill` and `remove`, a gone container is no
    error."""

    def facts(self) -> RuntimeFacts:
        """Return the versions. This also checks that the runtime works at all."""
        ...

    def start(self, spec: ContainerSpec) -> ContainerId:
        """Run the command from the beginning.

        Raises `ImageMissing`, `ImageRefused` or `MountMissing`. A program that cannot be run ends with 126 or 127.
        """
        ...

    def has_image(self, image_id: str) -> bool:
        """Return True if the node has the container image of this id."""
        ...

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        """Take in a container image from the archive that `docker save` writes. It gets no name.

        Raises `ImageRefused` if the archive is not taken. What `archive` raises is raised on.
        """
        ...

    def pull_image(self, spec: ContainerSpec) -> None:
        """Bring the spec's image from where the node has images from. Raises `ImageMissing`."""
        ...

    def image_id(self, container: ContainerId) -> str:
        """Return the content id of the container's image, for the manifest."""
        ...

    def pause(self, container: ContainerId) -> None:
        """Freeze the container.

        Raises `ContainerExited` if it has ended by itself, and `CannotCheckpoint` if it can never be frozen.
        """
        ...

    def unpause(self, container: ContainerId) -> None:
        """Let a paused container go on; one that runs is left alone."""
        ...

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        """Add the memory and the written files of a paused container to the draft; the container stays paused.

        Raises `CannotCheckpoint`; then the container is still paused and can go on.
        """
        ...

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        """Let the process go on from a checkpoint. The caller has put the job's folder back before.

        Raises `CannotRestore`, `ImageMissing`, `ImageRefused`, `MountMissing` or `ArchiveBroken`; then no container is
        left.
        """
        ...

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        """Yield the output from the container's start to its end: 1 for stdout or 2 for stderr, and the content.

        The beginning of a line that has no end yet may come only when the container has ended.
        """
        ...

    def live_output(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """Return the output as it is written, open lines too. Read it without a pause, or the container has to wait.

        Call it only once for a container, and only for one that this object has started or restored. None if `logs` is
        as fast.
        """
        ...

    def wait(self, container: ContainerId) -> End:
        """Block until the container's program has ended by itself or at its memory limit.

        Raises `ContainerKilled` if the container was killed, by `kill` or by somebody else, or is not there any more.
        """
        ...

    def signal(self, container: ContainerId, name: str) -> None:
        """Send a signal (`SIGTERM`, `SIGUSR1`) to the program of a container. An ended container is no error."""
        ...

    def kill(self, container: ContainerId) -> None:
        """End the container at once, paused or not."""
        ...

    def remove(self, container: ContainerId) -> None:
        """Remove the container and all that the runtime keeps of it, checkpoints included."""
        ...

    def memory_bytes(self, container: ContainerId) -> int | None:
        """Return the memory that a checkpoint would have to write, as far as is known; None if the container does not
        run."""
        ...

    def memory_s(self, container: ContainerId) -> float:
        """Return how long the memory of a restored container came while it ran; 0 until all is there."""
        ...

    def written_bytes(self, container: ContainerId) -> int | None:
        """Return how much the container's processes have written, anywhere; None if that is not known."""
        ...

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        """Return the labels of every container on this node that carries `LABEL_AGENT`, ended ones too."""
        ...

    def data_folders(self) -> Sequence[str]:
        """Return the folders of the node on whose file systems containers and images take room."""
        ...

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        """Count what the container has written apart from its folder. Return zeros if it is gone.

        The count may stop past the limit.
        """
        ...

    def cached_images(self) -> Sequence[CachedImage]:
        """Return the images that agents have brought here, the one that was not used for longest first."""
        ...

    def drop_image(self, name: str) -> bool:
        """Remove an image that agents have brought here. Return False if it stays, for example for a container."""
        ...
