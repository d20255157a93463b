"""The core that both runtimes share: start, save, restore, end and measure a container.

An adapter finds, makes, starts and stops containers (`docker_runtime`, `helper_runtime`). What is saved and restored
passes between root's shim and the agent in the same way, whoever started the container (`criu_streams`).
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.privileged.shim.criu_messages import StreamBroken
from gleaner.agent.runtime import container_processes
from gleaner.agent.runtime.criu_reasons import cannot_checkpoint, cannot_restore
from gleaner.agent.runtime.criu_streams import (
    DESCRIPTORS_PART,
    NOT_OURS,
    TransferFailed,
    during_handshake,
    restore,
    save,
)
from gleaner.agent.runtime.interface import (
    KILLED,
    CannotCheckpoint,
    CannotRestore,
    CannotStart,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    Gone,
    ImageMissing,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.image_names import full_name, is_id
from gleaner.agent.system.ipc import HandshakeFailed

_END = 0
"""The stream number of the last frame of the helper's logs."""


class End(NamedTuple):
    """The end of a container."""

    exit_code: int
    at_its_limit: bool
    """True if it was killed for its memory limit."""


class ContainerRuntime(Runtime):
    """A `Runtime` without the calls of its engine, which an adapter adds."""

    def __init__(self, find_handshakes: Callable[[], Path | None]) -> None:
        self._find_handshakes = find_handshakes
        self._adrift: set[ContainerId] = set()
        """Containers that the engine has not said go on since they were unpaused; it may take them for paused while
        they run."""

    @cached_property
    def _handshakes(self) -> Path | None:
        """The folder in which root's shim meets the agent; None if this node has no shim."""
        return self._find_handshakes()

    @abstractmethod
    def _create(self, spec: ContainerSpec, image: str, *, restored: bool) -> ContainerId:
        """Make a container that does not run yet. Raises `ImageMissing`, and all that `start` raises."""

    @abstractmethod
    def _start(self, container: ContainerId, spec: ContainerSpec, *, restored: bool) -> None:
        """Start a container, or have the shim restore it."""

    @abstractmethod
    def _paused_name(self, container: ContainerId) -> str:
        """Return the name under which the shim meets the agent. Raises `RuntimeFault` if it is not paused."""

    @abstractmethod
    def _save(self, container: ContainerId) -> None:
        """Have the shim save a paused container."""

    @abstractmethod
    def _pause(self, container: ContainerId) -> None:
        """Freeze it. Raises `ContainerExited` or `CannotCheckpoint`."""

    @abstractmethod
    def _unpause(self, container: ContainerId) -> None:
        """Let it go on."""

    @abstractmethod
    def _signal(self, container: ContainerId, name: str) -> None:
        """Send a signal. Wait for the end after `SIGKILL`."""

    @abstractmethod
    def _wait(self, container: ContainerId) -> End | None:
        """Wait a while for the end; None if it has not come."""

    @abstractmethod
    def _frames(self, container: ContainerId) -> Iterator[bytes]:
        """Yield its output from its start to its end."""

    def start(self, spec: ContainerSpec) -> ContainerId:
        with self._made(spec, spec.image, restored=False) as container:
            self._start(container, spec, restored=False)
        return container

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        if DESCRIPTORS_PART not in archive.parts:
            raise CannotRestore(NOT_OURS)
        if (handshakes := self._handshakes) is None:
            raise CannotRestore("the engine lacks Gleaner's runtime, without which nothing is restored")
        image = archive.facts.get("image_id")  # the very image that it had: its name may mean another one by now
        with (
            _reasons(f"cannot restore {spec.name}", cannot_restore, broken=CannotRestore),
            self._made(spec, image if isinstance(image, str) else spec.image, restored=True) as container,
        ):
            during_handshake(
                handshakes,
                spec.name,
                lambda handshake: restore(handshake, archive),
                lambda: self._start(container, spec, restored=True),
            )
        return container

    @contextmanager
    def _made(self, spec: ContainerSpec, image: str, *, restored: bool) -> Generator[ContainerId]:
        """Make a container, and bring its image before if it is not there. If the context fails, nothing is left."""
        name = image if is_id(image) else full_name(image)
        try:
            container = self._create(spec, name, restored=restored)
        except ImageMissing:
            self.pull_image(spec)
            try:
                container = self._create(spec, name, restored=restored)
            except ImageMissing as error:
                line = f"the image {spec.image} is here, but not as {image}: it was changed"
                raise ImageMissing(line) from error
        try:
            yield container
        except BaseException:
            with suppress(RuntimeFault):
                self.remove(container)
            raise

    def pause(self, container: ContainerId) -> None:
        if container in self._adrift:
            self.unpause(container)
        self._pause(container)

    def unpause(self, container: ContainerId) -> None:
        self._adrift.add(container)
        self._unpause(container)
        self._adrift.discard(container)

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        name = self._paused_name(container)
        if (handshakes := self._handshakes) is None:
            raise CannotCheckpoint("it does not run with Gleaner's runtime, without which nothing is saved")
        with _reasons(f"cannot save {name}", cannot_checkpoint, broken=RuntimeFault):
            during_handshake(handshakes, name, lambda handshake: save(handshake, draft), lambda: self._save(container))
        self._paused_name(container)

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        for stream, content in messages(self._frames(container)):
            if stream == _END:
                return
            yield stream, content

    def wait(self, container: ContainerId) -> int:
        try:
            while (end := self._wait(container)) is None:
                pass
        except Gone as error:
            raise ContainerKilled("its container was removed by somebody else") from error
        if end.exit_code == KILLED and not end.at_its_limit:
            raise ContainerKilled("its process was killed from outside, and not for its memory limit")
        return end.exit_code

    def signal(self, container: ContainerId, name: str) -> None:
        with suppress(Gone):
            self._signal(container, name)

    def kill(self, container: ContainerId) -> None:
        self.signal(container, "SIGKILL")

    def memory_bytes(self, container: ContainerId) -> int | None:
        return container_processes.memory_bytes(container)

    def written_bytes(self, container: ContainerId) -> int | None:
        return container_processes.written_bytes(container)


@contextmanager
def _reasons(
    doing: str, failed: Callable[[str, str], Exception], *, broken: Callable[[str], Exception]
) -> Generator[None]:
    """Turn the failures of a save or a restore into plain reasons. `broken` is that of a stream that breaks off."""
    try:
        yield
    except TransferFailed as error:
        raise failed(error.log, str(error)) from error
    except StreamBroken as error:
        raise broken(str(error)) from error
    except HandshakeFailed as error:
        raise RuntimeFault(f"{doing}: {error}") from error


def start_error(line: str) -> CannotStart | RuntimeFault:
    """Return the error for runc's line, which ends with the command and with what is wrong with it.

    >>> start_error('runc create failed: exec: "nope": executable file not found in $PATH').exit_code
    127
    """
    if "exec: " not in line:
        return RuntimeFault(line)
    is_no_program = "permission denied" in line or "is a directory" in line
    return CannotStart(line[line.find("exec: ") :], 126 if is_no_program else 127)
