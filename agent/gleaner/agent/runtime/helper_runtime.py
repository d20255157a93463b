"""Run containers through the node helper (`privileged.helper.main`) on nodes without Docker Engine.

The helper uses runc and CRIU, and the agent remains an ordinary user. The agent names containers and container images,
and passes descriptors of the job's folder and of an image's archive. A checkpoint is restored by the runtime that saved
it (`node.compatibility`).
"""

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.messages import Way
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.runtime.core import ContainerRuntime
from gleaner.agent.runtime.helper_client import HelperAnswer, HelperClient, HelperRefusal
from gleaner.agent.runtime.images import archive_of
from gleaner.agent.runtime.interface import (
    LABEL_AGENT,
    CachedImage,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    End,
    Gone,
    ImageMissing,
    ImageRefused,
    MountMissing,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
)
from gleaner.agent.system.openat import closing_fd

_CHUNK_BYTES = 2**20
_LOOK_S = 0.1
_ASK_EVERY = 20
"""After this many checks of a log that does not grow, the helper is asked whether more output can follow."""
_ERRORS: Mapping[tuple[str, str], Callable[[str], Exception]] = {
    ("create", "image"): ImageMissing,
    ("create", "mount"): MountMissing,
    ("create", "command"): ImageRefused,
    ("run", "mount"): MountMissing,
    ("import", "image"): lambda why: ImageRefused(f"the node's helper does not take the image: {why}"),
    ("pause", "ended"): ContainerExited,
}
"""The errors for the helper's refusals, by the request and the kind of refusal."""


@contextmanager
def _own_errors(do: str, what: object) -> Generator[None]:
    """Turn the helper's refusals into the runtime's errors."""
    try:
        yield
    except HelperRefusal as error:
        if (make := _ERRORS.get((do, error.kind))) is not None:
            raise make(str(error)) from error
        failed = Gone if error.kind == "gone" else RuntimeFault
        raise failed(f"cannot {do} {what}: {error}") from error


class RuncRuntime(ContainerRuntime):
    """A `Runtime` that uses the node's helper. In the folder `handshakes` it listens for the shim.

    `images` is a folder of container images that the node might lack (see `images`).
    """

    def __init__(
        self, helper: HelperClient, *, handshakes: Path, images: Path | None = None, settings: Config | None = None
    ) -> None:
        super().__init__(lambda: handshakes)
        self._helper = helper
        self._settings = settings or Config(1)
        self._images = images

    @classmethod
    def of_agent(cls, settings: Config, *, images: Path | None = None) -> "RuncRuntime":
        """Return an agent's runtime that uses the helper named in the node's privileged settings."""
        if os.getuid() != settings.agent_uid:
            raise RuntimeFault(f"the node's helper works for uid {settings.agent_uid}, and this agent is {os.getuid()}")
        handshakes = Path(settings.handshakes)
        return cls(HelperClient(settings.helper_socket), handshakes=handshakes, images=images, settings=settings)

    def _ask(self, do: str, *descriptors: int, **fields: object) -> HelperAnswer:
        with _own_errors(do, fields.get("name", fields.get("image", ""))):
            return self._helper.ask(do, *descriptors, **fields)

    def facts(self) -> RuntimeFacts:
        answer = self._ask("facts").fields
        return RuntimeFacts(
            runtime=f"runc {answer['runc']}",
            criu=str(answer["criu"]),
            way=Way.CRIU,
            checkpoints=bool(answer["criu"]),
            images=tuple(map(str, answer["images"])),
            brings_images=self._images is not None,
        )

    def has_image(self, image_id: str) -> bool:
        return bool(self._ask("image", image=image_id).fields["image_id"] == image_id)

    def pull_image(self, spec: ContainerSpec) -> None:
        """Have the helper import the image's archive."""
        with ExitStack() as stack:
            archive = stack.enter_context(archive_of(self._images, spec.image)) if self._images else None
            if archive is None:
                where = f"there is no archive of it in {self._images}" if self._images else "no folder of images is set"
                raise ImageMissing(f"the image {spec.image} is not on the node and cannot be pulled: {where}")
            try:
                self._ask("import", archive, image=spec.image)
            except (ImageRefused, RuntimeFault) as error:
                raise ImageMissing(f"the image {spec.image} is not on the node: {error}") from error

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        with tempfile.TemporaryFile() as file:
            file.writelines(archive)
            file.flush()
            self._ask("import", file.fileno(), image=image_id)

    def image_id(self, container: ContainerId) -> str:
        return str(self._ask("about", name=container).fields["image_id"])

    def _create(self, spec: ContainerSpec, image: str, *, restored: bool) -> ContainerId:
        self._ask(
            "create",
            name=spec.name,
            image=image,
            command=list(spec.command),
            environment=dict(spec.environment),
            cpus=spec.cpus,
            memory_mib=spec.memory_mib,
            labels=dict(spec.labels),
            restore=restored,
            inputs=spec.inputs is not None,
            mounts=list(spec.mounts),
        )
        return ContainerId(spec.name)

    def _start(self, container: ContainerId, spec: ContainerSpec, *, restored: bool) -> None:
        """Start the container. The helper knows from `create` whether it is to be restored."""
        del restored
        with ExitStack() as opened:
            folders = [
                opened.enter_context(closing_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)))
                for path in (spec.folder, spec.inputs)
                if path is not None
            ]
            self._ask("run", *folders, name=container)

    def _pause(self, container: ContainerId) -> None:
        self._ask("pause", name=container)

    def _unpause(self, container: ContainerId) -> None:
        self._ask("unpause", name=container)

    def _paused_name(self, container: ContainerId) -> str:
        return container  # the shim checks whether the container is paused

    def _save(self, container: ContainerId) -> None:
        self._ask("checkpoint", name=container)

    def live_output(self, container: ContainerId) -> None:
        """Return None, because a container's output appears in its log immediately."""

    def _wait(self, container: ContainerId) -> tuple[End, bool] | None:
        with _own_errors("wait", container):
            answer = self._helper.ask_until_answered("wait", name=container).fields
        if (end := answer["exit"]) is not None:
            return End(int(end["exit_code"]), out_of_memory=bool(end["out_of_memory"])), bool(end["at_its_limit"])
        if answer["ended"]:
            raise ContainerKilled("its container was removed, or the node's helper lost it")
        return None

    def _signal(self, container: ContainerId, name: str) -> None:
        self._ask("signal", name=container, signal=name.removeprefix("SIG"))

    def remove(self, container: ContainerId) -> None:
        self._ask("remove", name=container)

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        containers: Mapping[str, Mapping[str, str]] = self._ask("list").fields["containers"]
        return {ContainerId(name): labels for name, labels in containers.items() if LABEL_AGENT in labels}

    def data_folders(self) -> Sequence[str]:
        return [self._settings.bundles]

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        """Return the helper's count, which has its own limits."""
        with suppress(Gone):
            size_bytes, inodes, is_whole = self._ask("taken", name=container).fields["taken"]
            return DiskUse(int(size_bytes), int(inodes), bool(is_whole))
        return DiskUse()

    def cached_images(self) -> Sequence[CachedImage]:
        """Return the images that groups have pushed. Named ones are managed by an admin (`most_image_bytes`)."""
        images = self._ask("images").fields["images"]
        return [CachedImage(str(name), int(size_bytes), float(used_s)) for name, size_bytes, used_s in images]

    def drop_image(self, name: str) -> bool:
        return bool(self._ask("drop", image=name).fields["dropped"])

    def _frames(self, container: ContainerId) -> Iterator[bytes]:
        """Yield the log's bytes as they arrive, until no more can follow."""
        log = self._ask("logs", name=container).descriptor
        if log is None:
            raise RuntimeFault(f"no log came for {container}")
        looks, at, last = 0, 0, False
        with closing_fd(log):
            while True:
                if chunk := os.pread(log, _CHUNK_BYTES, at):
                    at, looks = at + len(chunk), 0
                    yield chunk
                elif last:
                    return
                else:
                    looks += 1
                    time.sleep(_LOOK_S)
                    if looks % _ASK_EVERY == 0:
                        last = self._has_ended(container)

    def _has_ended(self, container: ContainerId) -> bool:
        try:
            return bool(self._ask("about", name=container).fields["ended"])
        except Gone:
            return True
        except RuntimeFault:  # the helper might be restarting
            return False


if TYPE_CHECKING:
    _: type[Runtime] = RuncRuntime
