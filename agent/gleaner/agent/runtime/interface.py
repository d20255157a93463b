"""Define a container runtime, reduced to what an agent needs.

All calls block, so the agent makes them from worker threads. A container's memory and its written files go into a
storage draft as parts. The agent saves the job's folder itself (`checkpoints.workdir_tar`), since it is outside the
container.
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
    """The runtime does not answer or does not work on this node, and the job is not to blame."""


class Gone(RuntimeFault):
    """The container does not exist."""


class NoRoom(RuntimeFault):
    """The runtime works, but this node has no room for the image now. Another node might."""


class ImageMissing(Exception):
    """The container image is not on the node and cannot be pulled."""


class ImageRefused(Exception):
    """The container image is not allowed to run here, or some of the files written in it could not be saved."""


class MountMissing(Exception):
    """A folder of the node cannot be mounted. The message begins with the folder and a colon.

    Another node might have the folder.
    """


class CannotCheckpoint(Exception):
    """The memory could not be saved. The message is one line with the reason, and the container still exists.

    `why` is UNSAVABLE if every further try would fail for the same reason, and NODE_LACKS if every try on this node
    would.
    """

    def __init__(self, message: str, why: ReturnReason = ReturnReason.SAVE_FAILED) -> None:
        super().__init__(message)
        self.why = why


class CannotRestore(Exception):
    """The process could not be restored from this checkpoint.

    `why` is INCOMPATIBLE if it can never be restored on this node.
    """

    def __init__(self, message: str, why: ReturnReason = ReturnReason.CANNOT_RESTORE) -> None:
        super().__init__(message)
        self.why = why


class ContainerExited(Exception):
    """The workload ended before it could be paused."""


class ContainerKilled(Exception):
    """The container was killed or removed from outside, and the job is not to blame.

    `why` is CHECKPOINT_BROKEN if the rest of its memory could not be read.
    """

    def __init__(self, message: str, why: ReturnReason = ReturnReason.NODE_FAULT) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container's program."""

    exit_code: int
    """The program's own exit code, or 128 plus the number of the signal that ended it."""
    reason: str = ""
    """One line for messages, if the code alone does not explain the end."""
    out_of_memory: bool = False
    """True if a process was killed because of the container's memory limit."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One job's container, with everything that must be the same at the start and at each restore."""

    name: str
    """A name that is unique on the node (`gleaner-JOB-ATTEMPT`)."""
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: int
    memory_mib: int
    folder: Path
    """The job's folder on the node. It is mounted at `FOLDER_IN_CONTAINER`, where the command starts."""
    labels: Mapping[str, str]
    disk_mib: int | None = None
    """The limit on what the container writes outside its folder, if the file system can enforce one.

    None means no limit.
    """
    inputs: Path | None = None
    """The folder with the job's inputs, which is mounted read-only at `INPUTS_IN_CONTAINER`.

    It is not part of a checkpoint.
    """
    mounts: tuple[str, ...] = ()
    """Folders of the node, each mounted read-only at its own path, without the file systems that are mounted below it.

    They are not part of a checkpoint.
    """


FOLDER_IN_CONTAINER = "/job"
INPUTS_IN_CONTAINER = "/inputs"

LABEL_JOB = "org.gleaner.job"
LABEL_ATTEMPT = "org.gleaner.attempt"
LABEL_AGENT = "org.gleaner.agent"
LABEL_SLURM_JOB = "org.gleaner.slurm-job"
LABEL_END = "org.gleaner.end-s"
"""The labels of all our containers, of which the watchdog and the Epilog (deploy/) use the last two."""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The facts about this node's runtime, for the node's own facts and for the manifest."""

    runtime: str
    criu: str
    way: Way = Way.SHIM
    """The way in which memory is saved here."""
    checkpoints: bool = True
    """True if memory can be saved at all. If not, `checkpoint` and `restore` raise errors."""
    images: tuple[str, ...] = ()
    """The names of the images that are here."""
    brings_images: bool = True
    """True if a missing image can be brought to the node."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    """A container image that agents have brought to this node, and can bring again."""

    name: str
    """Its name, or its id if a group has pushed it."""
    size_bytes: int
    used_s: float
    """The last time that a job started from it."""


class Runtime(Protocol):
    """A container runtime. Every method can raise `RuntimeFault`.

    `kill` and `remove` do not fail if the container no longer exists.
    """

    def facts(self) -> RuntimeFacts:
        """Return the runtime's versions and other facts. This also checks that the runtime works at all."""
        ...

    def start(self, spec: ContainerSpec) -> ContainerId:
        """Run the command from the beginning.

        Raises `ImageMissing`, `ImageRefused` or `MountMissing`. A program that cannot be run ends with exit code 126 or
        127.
        """
        ...

    def has_image(self, image_id: str) -> bool:
        """Return True if the node has the container image of this id."""
        ...

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        """Load a container image from an archive in the format of `docker save`. The image is given no name.

        Raises `ImageRefused` if the archive is not accepted. Errors that `archive` raises are passed on.
        """
        ...

    def pull_image(self, spec: ContainerSpec) -> None:
        """Bring the image of `spec` to the node, from the node's source of images. Raises `ImageMissing`."""
        ...

    def image_id(self, container: ContainerId) -> str:
        """Return the content id of the container's image, for the manifest."""
        ...

    def pause(self, container: ContainerId) -> None:
        """Freeze the container.

        Raises `ContainerExited` if it has ended, and `CannotCheckpoint` if it can never be frozen.
        """
        ...

    def unpause(self, container: ContainerId) -> None:
        """Let a paused container continue. A running one is left alone."""
        ...

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        """Add the memory and the written files of a paused container to the draft. The container stays paused.

        Raises `CannotCheckpoint`, after which the container is still paused and can continue.
        """
        ...

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        """Continue the process from a checkpoint. The caller must already have restored the job's folder.

        Raises `CannotRestore`, `ImageMissing`, `ImageRefused`, `MountMissing` or `ArchiveBroken`, after which no
        container is left.
        """
        ...

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        """Yield the output from the container's start to its end, in pieces with 1 for stdout or 2 for stderr.

        An incomplete last line might be yielded only when the container has ended.
        """
        ...

    def live_output(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """Return the output as it is written, including incomplete lines.

        Read it without pauses, or the container has to wait. Call it only once for a container, and only for one that
        this object has started or restored. Return None if `logs` is as fast.
        """
        ...

    def wait(self, container: ContainerId) -> End:
        """Block until the container's program has ended, possibly at its memory limit.

        Raises `ContainerKilled` if the container was killed, by `kill` or otherwise, or no longer exists.
        """
        ...

    def signal(self, container: ContainerId, name: str) -> None:
        """Send a signal (`SIGTERM`, `SIGUSR1`) to the program of a container.

        If the container has ended, nothing happens.
        """
        ...

    def kill(self, container: ContainerId) -> None:
        """End the container immediately, whether it is paused or not."""
        ...

    def remove(self, container: ContainerId) -> None:
        """Remove the container and everything that the runtime keeps for it, including checkpoints."""
        ...

    def memory_bytes(self, container: ContainerId) -> int | None:
        """Return the memory that a checkpoint would write, if it is known, or None if the container does not run."""
        ...

    def memory_s(self, container: ContainerId) -> float:
        """Return how long loading a restored container's memory took while it ran, or 0 until all of it is loaded."""
        ...

    def written_bytes(self, container: ContainerId) -> int | None:
        """Return how many bytes the container's processes have written, anywhere, or None if that is not known."""
        ...

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        """Return the labels of every container on this node that has `LABEL_AGENT`, including ended ones."""
        ...

    def data_folders(self) -> Sequence[str]:
        """Return the folders of the node on whose file systems containers and images take space."""
        ...

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        """Count what the container has written outside its folder. Return zeros if it no longer exists.

        The count can stop once it exceeds the limit.
        """
        ...

    def cached_images(self) -> Sequence[CachedImage]:
        """Return the images that agents have brought here, the least recently used one first."""
        ...

    def drop_image(self, name: str) -> bool:
        """Remove an image that agents have brought here.

        Return False if it stays, for example because a container uses it.
        """
        ...
