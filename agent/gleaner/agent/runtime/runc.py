"""The runtime for nodes without Docker Engine: runc and CRIU, through the node helper (`privileged.helper.main`).

The agent stays an ordinary user. It names containers and container images, and hands over descriptors: the job's
folder and an image's archive. What is saved passes between root's shim and the agent, as it does with Docker. The
runtime that saved a checkpoint also restores it (`node.compatibility`).
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.messages import Way
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.privileged.shim.criu_messages import StreamBroken
from gleaner.agent.runtime.criu_reasons import cannot_checkpoint, cannot_restore
from gleaner.agent.runtime.criu_streams import (
    DESCRIPTORS_PART,
    NOT_OURS,
    TransferFailed,
    during_handshake,
    restore,
    save,
)
from gleaner.agent.runtime.helper_client import HelperClient, HelperRefusal, translate_errors
from gleaner.agent.runtime.images import archive_of
from gleaner.agent.runtime.interface import (
    KILLED,
    LABEL_AGENT,
    CachedImage,
    CannotCheckpoint,
    CannotRestore,
    CannotStart,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    MountMissing,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
    Usage,
)
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.ipc import HandshakeFailed
from gleaner.agent.system.openat import closing_fd

_CHUNK_BYTES = 2**20
_LOOK_S = 0.1
_ASK_EVERY = 20
"""The number of looks at a log that does not grow before the helper is asked if anybody will still write to it."""
_END = 0
"""The stream number of a log's last frame."""


class RuncRuntime:
    """A `Runtime` on the node's helper, which waits for root in the folder `handshakes`.

    `images` is a folder in which to look for container images that the node lacks (see `images`).
    """

    def __init__(
        self, helper: HelperClient, *, handshakes: Path, images: Path | None = None, bundles: str = Config(1).bundles
    ) -> None:
        self._helper = helper
        self._bundles = bundles
        self._handshakes = handshakes
        self._images = images

    @classmethod
    def of_agent(cls, settings: Config, *, images: Path | None = None) -> "RuncRuntime":
        """Return an agent's runtime, on the helper that the node's privileged settings name."""
        if os.getuid() != settings.agent_uid:
            raise RuntimeFault(f"the node's helper works for uid {settings.agent_uid}, and this agent is {os.getuid()}")
        handshakes = Path(settings.handshakes)
        return cls(HelperClient(settings.helper_socket), handshakes=handshakes, images=images, bundles=settings.bundles)

    def facts(self) -> RuntimeFacts:
        with translate_errors("cannot ask the node's helper what it is"):
            answer = self._helper.ask("facts").fields
        return RuntimeFacts(
            runtime=f"runc {answer['runc']}",
            criu=str(answer["criu"]),
            way=Way.CRIU,
            checkpoints=bool(answer["criu"]),
            images=tuple(map(str, answer["images"])),
            brings_images=self._images is not None,
        )

    def start(self, spec: ContainerSpec) -> ContainerId:
        with translate_errors(f"cannot start {spec.name}"), self._create_or_import(spec, spec.image, restored=False):
            self._run(spec)
        return ContainerId(spec.name)

    def has_image(self, image_id: str) -> bool:
        with translate_errors(f"cannot look for the image {image_id}"):
            return bool(self._helper.ask("image", image=image_id).fields["image_id"] == image_id)

    def pull_image(self, spec: ContainerSpec) -> None:
        with translate_errors(f"cannot import the image {spec.image}"):
            self._import(spec, spec.image)

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        with translate_errors(f"cannot load the image {image_id}"), tempfile.TemporaryFile() as file:
            file.writelines(archive)
            file.flush()
            try:
                self._helper.ask("import", file.fileno(), image=image_id)
            except HelperRefusal as error:
                if error.kind == "image":
                    raise ImageRefused(f"the node's helper does not take the image {image_id}: {error}") from error
                raise

    def image_id(self, container: ContainerId) -> str:
        with translate_errors(f"cannot look at {container}"):
            return str(self._helper.ask("about", name=container).fields["image_id"])

    def pause(self, container: ContainerId) -> None:
        with translate_errors(f"cannot pause {container}"):
            try:
                self._helper.ask("pause", name=container)
            except HelperRefusal as error:
                if error.kind == "ended":
                    raise ContainerExited(str(error)) from error
                if error.kind == "checkpoint":
                    raise CannotCheckpoint(str(error), lasts=True) from error
                raise

    def unpause(self, container: ContainerId) -> None:
        with translate_errors(f"cannot let {container} go on"):
            self._helper.ask("unpause", name=container)

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        with translate_errors(f"cannot save {container}"):
            try:
                during_handshake(
                    self._handshakes,
                    container,
                    lambda handshake: save(handshake, draft),
                    lambda: self._helper.ask("checkpoint", name=container),
                )
            except TransferFailed as error:
                raise cannot_checkpoint(error.log, str(error)) from error
            except (HandshakeFailed, StreamBroken) as error:
                raise RuntimeFault(f"cannot save {container}: {error}") from error

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        image = archive.facts.get("image_id")
        if DESCRIPTORS_PART not in archive.parts:
            raise CannotRestore(NOT_OURS)
        with (
            translate_errors(f"cannot restore {spec.name}"),
            self._create_or_import(spec, image if isinstance(image, str) else spec.image, restored=True),
        ):
            try:
                during_handshake(
                    self._handshakes, spec.name, lambda handshake: restore(handshake, archive), lambda: self._run(spec)
                )
            except TransferFailed as error:
                raise cannot_restore(error.log, str(error)) from error
            except StreamBroken as error:
                raise CannotRestore(str(error)) from error
            except HandshakeFailed as error:
                raise RuntimeFault(f"cannot restore {spec.name}: {error}") from error
        return ContainerId(spec.name)

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        with translate_errors(f"cannot read the output of {container}"):
            log = self._helper.ask("logs", name=container).descriptor
        if log is None:
            raise RuntimeFault(f"no log came for {container}")
        with os.fdopen(log, "rb", buffering=0) as file:
            for stream, content in messages(self._growing(container, file.fileno())):
                if stream == _END:
                    return
                yield stream, content

    def live_output(self, container: ContainerId) -> None:
        """Return None: a container's output is in its log at once."""

    def wait(self, container: ContainerId) -> int:
        while True:
            try:
                answer = self._helper.ask_until_answered("wait", name=container).fields
            except HelperRefusal as error:
                if error.kind == "gone":
                    raise ContainerKilled("its container was removed by somebody else") from error
                raise RuntimeFault(f"cannot wait for {container}: {error}") from error
            if answer["exit"] is not None:
                break
            if answer["ended"]:
                raise ContainerKilled("its container was removed, or the node's helper lost it")
        exit_code = int(answer["exit"]["exit_code"])
        if exit_code == KILLED and not answer["exit"]["at_its_limit"]:
            raise ContainerKilled("its process was killed from outside, and not for its memory limit")
        return exit_code

    def was_out_of_memory(self, container: ContainerId) -> bool:
        with translate_errors(f"cannot look at {container}"):
            try:
                end = self._helper.ask("wait", name=container).fields["exit"]
            except HelperRefusal as error:
                if error.kind != "gone":
                    raise
                return False
        return bool(end and end.get("out_of_memory"))

    def signal(self, container: ContainerId, name: str) -> None:
        with translate_errors(f"cannot send {name} to {container}"):
            self._helper.ask("signal", name=container, signal=name.removeprefix("SIG"))

    def kill(self, container: ContainerId) -> None:
        with translate_errors(f"cannot kill {container}"):
            try:
                self._helper.ask("signal", name=container, signal="KILL")
            except HelperRefusal as error:
                if error.kind != "gone":
                    raise

    def remove(self, container: ContainerId) -> None:
        with translate_errors(f"cannot remove {container}"):
            self._helper.ask("remove", name=container)

    def usage(self, containers: Sequence[ContainerId]) -> Mapping[ContainerId, Usage]:
        usages: dict[ContainerId, Usage] = {}
        for container in containers:
            with translate_errors(f"cannot measure {container}"):
                try:
                    usage = self._helper.ask("usage", name=container).fields["usage"]
                except HelperRefusal as error:
                    if error.kind != "gone":
                        raise
                    continue
                if usage is not None:
                    usages[container] = Usage(int(usage["memory_bytes"]), float(usage["cpu_s"]))
        return usages

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        with translate_errors("cannot list containers"):
            containers: Mapping[str, Mapping[str, str]] = self._helper.ask("list").fields["containers"]
        return {ContainerId(name): labels for name, labels in containers.items() if LABEL_AGENT in labels}

    def data_folders(self) -> Sequence[str]:
        return [self._bundles]

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        """Return the helper's count, which has limits of its own."""
        with translate_errors(f"cannot measure {container}"):
            try:
                size_bytes, inodes, is_whole = self._helper.ask("taken", name=container).fields["taken"]
            except HelperRefusal as error:
                if error.kind != "gone":
                    raise
                return DiskUse()
        return DiskUse(int(size_bytes), int(inodes), bool(is_whole))

    def cached_images(self) -> Sequence[CachedImage]:
        """Return the images that groups have pushed; those with a name are an admin's affair (`most_image_bytes`)."""
        with translate_errors("cannot list images"):
            images = self._helper.ask("images").fields["images"]
            return [CachedImage(str(name), int(size_bytes), float(used_s)) for name, size_bytes, used_s in images]

    def drop_image(self, name: str) -> bool:
        with translate_errors(f"cannot remove the image {name}"):
            return bool(self._helper.ask("drop", image=name).fields["dropped"])

    @contextlib.contextmanager
    def _create_or_import(self, spec: ContainerSpec, image: str, *, restored: bool) -> Generator[None]:
        """Create a container that does not run yet. If anything goes wrong in the context, nothing of it is left."""
        try:
            self._create(spec, image, restored=restored)
        except HelperRefusal as error:
            if error.kind != "image":
                raise
            self._import(spec, image)
            self._create(spec, image, restored=restored)
        try:
            yield
        except BaseException:
            with contextlib.suppress(HelperRefusal, RuntimeFault):
                self._helper.ask("remove", name=spec.name)
            raise

    def _create(self, spec: ContainerSpec, image: str, *, restored: bool) -> None:
        try:
            self._helper.ask(
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
        except HelperRefusal as error:
            if error.kind == "start":
                raise CannotStart(str(error), 127) from error
            if error.kind == "mount":
                raise MountMissing(str(error)) from error
            raise

    def _import(self, spec: ContainerSpec, image: str) -> None:
        """Have the node import the image's archive. Raises `ImageMissing`."""
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(archive_of(self._images, spec.image)) if self._images else None
            if archive is None:
                where = f"there is no archive of it in {self._images}" if self._images else "no folder of images is set"
                raise ImageMissing(f"the image {spec.image} is not on the node and cannot be pulled: {where}")
            try:
                image_id = self._helper.ask("import", archive, image=spec.image).fields["image_id"]
            except HelperRefusal as error:
                raise ImageMissing(f"the image {spec.image} is not on the node: {error}") from error
        if image not in (spec.image, image_id):
            raise ImageMissing(f"the image {spec.image} is here, but not as {image}: it was changed")

    def _run(self, spec: ContainerSpec) -> None:
        with contextlib.ExitStack() as opened:
            folder, *inputs = [
                opened.enter_context(closing_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)))
                for path in (spec.folder, spec.inputs)
                if path is not None
            ]
            try:
                self._helper.ask("run", folder, *inputs, name=spec.name)
            except HelperRefusal as error:
                code = _shell_code(str(error))
                if error.kind == "start" and code is not None:
                    raise CannotStart(_start_error(str(error)), code) from error
                if error.kind == "mount":
                    raise MountMissing(str(error)) from error
                raise

    def _growing(self, container: ContainerId, log: int) -> Iterator[bytes]:
        """Yield the log's bytes as they come, until nobody will write any more."""
        looks, at, last = 0, 0, False
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
            return bool(self._helper.ask("about", name=container).fields["ended"])
        except HelperRefusal:
            return True
        except RuntimeFault:  # the helper may be restarting
            return False


def _start_error(error: str) -> str:
    """Return the end of runc's long line, which names the command and what is wrong with it."""
    return error[error.find("exec: ") :]


def _shell_code(error: str) -> int | None:
    """Return a shell's exit code for a command that cannot be started; None for another failure.

    >>> _shell_code('runc create failed: exec: "nope": executable file not found in $PATH')
    127
    """
    if "exec: " not in error:
        return None
    return 126 if "permission denied" in error or "is a directory" in error else 127


if TYPE_CHECKING:
    _: type[Runtime] = RuncRuntime
