"""Start, save, restore, end and measure containers, in the core that both runtimes share.

An adapter finds, makes, starts and stops containers (`docker_runtime`, `helper_runtime`). The saved and restored data
pass between the shim and the agent in the same way, whichever adapter started the container (`criu_streams`).
"""

import json
import os
import signal
import stat
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path

import structlog

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.messages import ReturnReason
from gleaner.agent.privileged.shim import own_config
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
    CannotCheckpoint,
    CannotRestore,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    End,
    Gone,
    ImageMissing,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.runtime.lazy_memory import ORDER_PART, LazyMemory, find_lazy_memory
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.image_names import full_name, is_id
from gleaner.agent.system.ipc import HandshakeFailed
from gleaner.agent.system.openat import closing_fd

log = structlog.get_logger()

_END = 0
"""The stream number of the last frame of the helper's logs."""


_LONGEST_LINE = 300
KILLED = 128 + signal.SIGKILL


class ContainerRuntime(Runtime):
    """A `Runtime` without the calls to its engine, which an adapter adds."""

    def __init__(self, find_handshakes: Callable[[], Path | None]) -> None:
        self._find_handshakes = find_handshakes
        self.restores_lazily = False
        """True if restored processes run before all their memory is loaded."""
        self._memory: dict[ContainerId, LazyMemory] = {}
        self._inits_lines: dict[ContainerId, Callable[[], str]] = {}
        """For each container, a function that returns the line that its init wrote, once the init has ended."""
        self._adrift: set[ContainerId] = set()
        """Containers whose last unpause is unconfirmed, so that the engine might consider them paused."""

    @cached_property
    def _handshakes(self) -> Path | None:
        """The folder in which the shim connects to the agent, or None if this node has no shim."""
        return self._find_handshakes()

    @abstractmethod
    def _create(self, spec: ContainerSpec, image: str, *, restored: bool) -> ContainerId:
        """Make a container that does not run yet. Raises `ImageMissing`, and all errors of `start`."""

    @abstractmethod
    def _start(self, container: ContainerId, spec: ContainerSpec, *, restored: bool) -> None:
        """Start a container, or have the shim restore it."""

    @abstractmethod
    def _paused_name(self, container: ContainerId) -> str:
        """Return the name under which the shim connects to the agent.

        Raises `RuntimeFault` if the container is not paused.
        """

    @abstractmethod
    def _save(self, container: ContainerId) -> None:
        """Have the shim save a paused container."""

    @abstractmethod
    def _pause(self, container: ContainerId) -> None:
        """Freeze a container. Raises `ContainerExited` or `CannotCheckpoint`."""

    @abstractmethod
    def _unpause(self, container: ContainerId) -> None:
        """Let a container continue."""

    @abstractmethod
    def _signal(self, container: ContainerId, name: str) -> None:
        """Send a signal. After `SIGKILL`, wait for the end."""

    @abstractmethod
    def _wait(self, container: ContainerId) -> tuple[End, bool] | None:
        """Wait a while for the container's end, and return None if it is still running.

        The second value is True if the container was killed at its own limit.
        """

    @abstractmethod
    def _frames(self, container: ContainerId) -> Iterator[bytes]:
        """Yield the container's output from its start to its end."""

    def start(self, spec: ContainerSpec) -> ContainerId:
        with self._made(spec, spec.image, restored=False) as container:
            self._start(container, spec, restored=False)
        return container

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        if DESCRIPTORS_PART not in archive.parts:
            raise CannotRestore(NOT_OURS)
        if (handshakes := self._handshakes) is None:
            raise CannotRestore("the engine lacks Gleaner's runtime, without which nothing is restored")
        if self.restores_lazily and (memory := find_lazy_memory(archive)) is not None:
            try:
                return self._restore(spec, archive, handshakes, memory)
            except CannotRestore as error:
                log.warning("it is restored again, with all its memory first", reason=str(error))
        return self._restore(spec, archive, handshakes, None)

    def _restore(
        self, spec: ContainerSpec, archive: FolderArchive, handshakes: Path, memory: LazyMemory | None
    ) -> ContainerId:
        image = archive.facts.get("image_id")  # the original image, as its name might mean another one by now
        with (
            _reasons(f"cannot restore {spec.name}", cannot_restore, broken=CannotRestore),
            self._made(spec, image if isinstance(image, str) else spec.image, restored=True) as container,
        ):
            if memory is not None:
                self._memory[container] = memory
            during_handshake(
                handshakes,
                spec.name,
                lambda handshake: restore(handshake, archive, memory),
                lambda: self._start(container, spec, restored=True),
            )
        return container

    @contextmanager
    def _made(self, spec: ContainerSpec, image: str, *, restored: bool) -> Generator[ContainerId]:
        """Make a container, after pulling its image if the image is missing.

        If the context fails, the container is removed.
        """
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
        self._inits_lines[container] = cache(partial(self._take_inits_line, spec.folder))
        try:
            yield container
        except BaseException:
            with suppress(RuntimeFault):
                self.remove(container)
            raise

    def _take_inits_line(self, folder: Path) -> str:
        """Return the line that the init has left in the job's folder, or "" if there is none.

        The file is removed, because it is not one of the job's results. It is not trusted, because the job could have
        replaced it.
        """
        line, path = "", folder / Path(own_config.END).name
        with suppress(OSError), closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            if stat.S_ISREG(os.fstat(file).st_mode):
                line = os.read(file, _LONGEST_LINE).decode(errors="replace")
        with suppress(OSError):
            path.unlink()
        return "".join(filter(str.isprintable, line.partition("\n")[0]))

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
        if memory := self._memory.get(container):
            if not memory.wait():
                raise CannotCheckpoint("not all of its memory has come since it was restored")
            draft.add(ORDER_PART, [json.dumps(memory.waits).encode()])
        with _reasons(f"cannot save {name}", cannot_checkpoint, broken=RuntimeFault):
            during_handshake(handshakes, name, lambda handshake: save(handshake, draft), lambda: self._save(container))
        self._paused_name(container)

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        for stream, content in messages(self._frames(container)):
            if stream == _END:
                return
            yield stream, content

    def wait(self, container: ContainerId) -> End:
        try:
            while (ended := self._wait(container)) is None:
                pass
        except Gone as error:
            raise ContainerKilled("its container was removed by somebody else") from error
        end, at_its_limit = ended
        failure = None
        if (memory := self._memory.get(container)) is not None:
            failure = memory.failure
            memory.end()
        line = self._inits_lines.get(container, str)()
        if end.exit_code == KILLED and failure is not None:  # also at its limit, as lazy memory is never shared
            why = ReturnReason.CHECKPOINT_BROKEN if isinstance(failure, ArchiveBroken) else ReturnReason.NODE_FAULT
            raise ContainerKilled(f"it was killed before all its memory had come: {failure}", why)
        if end.exit_code == KILLED and not at_its_limit and not line:
            raise ContainerKilled("its container was killed from outside, and not for its memory limit")
        return replace(end, reason=_reason(end.exit_code, line))

    def signal(self, container: ContainerId, name: str) -> None:
        with suppress(Gone):
            self._signal(container, name)

    def kill(self, container: ContainerId) -> None:
        self.signal(container, "SIGKILL")

    def memory_bytes(self, container: ContainerId) -> int | None:
        return container_processes.memory_bytes(container)

    def memory_s(self, container: ContainerId) -> float:
        memory = self._memory.get(container)
        return (memory.complete_s if memory else None) or 0.0

    def written_bytes(self, container: ContainerId) -> int | None:
        return container_processes.written_bytes(container)


@contextmanager
def _reasons(
    doing: str, failed: Callable[[str, str], Exception], *, broken: Callable[[str], Exception]
) -> Generator[None]:
    """Turn the failures of a save or a restore into plain reasons.

    `broken` makes the error for a stream that breaks off.
    """
    try:
        yield
    except TransferFailed as error:
        raise failed(error.log, str(error)) from error
    except StreamBroken as error:
        raise broken(str(error)) from error
    except HandshakeFailed as error:
        raise RuntimeFault(f"{doing}: {error}") from error


def _reason(exit_code: int, line: str) -> str:
    """Return what the init's line adds to an exit code, for messages.

    >>> _reason(127, "cannot run nope: No such file or directory"), _reason(137, "killed 9"), _reason(3, "exited 3")
    ('cannot run nope: No such file or directory', '', '')
    >>> _reason(137, "exited 137")
    'the program itself returned it, as a shell does when SIGKILL has ended its command'
    """
    if line.startswith("cannot run "):
        return line
    if line.startswith("exited ") and exit_code - 128 in set(signal.Signals):
        ended_by = signal.Signals(exit_code - 128)
        return f"the program itself returned it, as a shell does when {ended_by.name} has ended its command"
    return ""
