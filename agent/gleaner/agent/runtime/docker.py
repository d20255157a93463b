"""The runtime for Docker Engine, through its API alone: the agent needs the engine's socket and no other right.

A container is started without network, without capabilities and without a way to get more, as the agent's own user,
with no other mounts than the job's folder and what it cannot change: its inputs and folders of the node that root
allows. Its memory is saved and restored through the OCI runtime shim (`docker_streaming`) alone. An engine without the
shim runs only jobs that save themselves: with Docker's own checkpoints no program of root's checks what CRIU is about
to do, and they take many times as long.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import docker.errors
import docker.types
import requests
import structlog

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.messages import Way
from gleaner.agent.privileged.common import freezing, mounts, system_programs
from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.privileged.shim import unsavable
from gleaner.agent.runtime.criu_streams import DESCRIPTORS_PART, NOT_OURS
from gleaner.agent.runtime.docker_http import (
    ContainerState,
    Engine,
    explanation,
    reading_answer,
    state_of,
    status,
    translate_errors,
)
from gleaner.agent.runtime.docker_streaming import RUNTIME, DockerShim, data_folder, find_shim
from gleaner.agent.runtime.images import PulledImages
from gleaner.agent.runtime.interface import (
    FOLDER_IN_CONTAINER,
    INPUTS_IN_CONTAINER,
    KILLED,
    LABEL_AGENT,
    LABEL_END,
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
    NoRoom,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
    Usage,
)
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.image_names import full_name, is_id

log = structlog.get_logger()

_QUOTAS_ON = frozenset({"pquota", "prjquota"})
"""Options of an XFS mount, xfs(5)."""

_CRIU_PATIENCE_S = 10
_PULL_PATIENCE_S = 900
_LOADED_WITHIN_S = 24 * 3600.0
"""An image of the record that the engine lacks is perhaps still being loaded, for so long after it was recorded."""
_LOOK_PATIENCE_S = 30
"""A slow measurement of what one container has written must not delay those of the others."""
_OOM_KNOWN_WITHIN_S = 1.0
"""For so long after a container's end the engine may still learn that its memory limit was hit."""
_PIDS = 4096
_NO_ROOM = "no space left on device"
_NO_FOLDER = "bind source path does not exist: "
_LOG = {"max-size": "64m", "max-file": "3"}
_MIB = 2**20


class DockerRuntime:
    """A `Runtime` on one engine. `user` is the uid and gid that the jobs run with: by default the agent's own.

    `pulled_images` is a file that lists the container images that agents of this node have pulled. Without it, no image
    is ever removed. `images_pull` False: no image is pulled.
    """

    def __init__(
        self,
        url: str,
        *,
        user: tuple[int, int] | None = None,
        pulled_images: Path | None = None,
        images_pull: bool = True,
    ) -> None:
        self._url = url
        self._images_pull = images_pull
        self._pulled_images = None if pulled_images is None else PulledImages(pulled_images)
        self._uid, self._gid = user or (os.getuid(), os.getgid())
        self._attached_outputs: dict[ContainerId, Iterator[bytes]] = {}
        """Connections to the output of each container from its beginning, until `live_output` hands them out."""
        self._adrift: set[ContainerId] = set()
        """Containers that Docker has not said go on since they were unpaused; it may take them for paused while they
        run."""
        if self._uid == 0:
            raise RuntimeFault("jobs would run as root: start the agent as an ordinary service account")

    @cached_property
    def _engine(self) -> Engine:
        with translate_errors(f"Docker at {self._url} does not answer"):
            return Engine(self._url)

    @cached_property
    @reading_answer()
    def _cpus(self) -> int:
        """The number of CPUs of the engine's machine."""
        return int(self._engine.info()["NCPU"])

    @cached_property
    def _data_folder(self) -> str:
        return data_folder(self._engine)

    @cached_property
    def _has_quotas(self) -> bool:
        """True if the file system can limit what a container writes."""
        return has_disk_quotas(self._data_folder)

    @cached_property
    def _shim(self) -> DockerShim | None:
        """The shim; None if this node lacks it."""
        shim, reason = find_shim(self._engine)
        if shim is None:
            log.warning(
                "Docker lacks Gleaner's runtime (run glean setup node): only jobs that save themselves run here",
                reason=reason,
            )
        return shim

    def facts(self) -> RuntimeFacts:
        """Return the facts. An engine that lacks the shim, or is not experimental, runs containers and cannot save
        them."""
        with translate_errors("cannot ask Docker what it is"), reading_answer():
            version = self._engine.version()
            is_experimental, name = bool(version.get("Experimental")), f"docker {version['Version']}"
            data_folder(self._engine)
            images = self._engine.image_names()
        if not is_experimental:
            log.warning('Docker cannot save containers: put "experimental": true into its daemon.json')
        can_save = is_experimental and self._shim is not None
        return RuntimeFacts(
            runtime=name,
            criu=_criu_version(),
            way=Way.SHIM,
            checkpoints=can_save,
            images=images,
            brings_images=self._images_pull,
        )

    def start(self, spec: ContainerSpec) -> ContainerId:
        engine = self._engine
        with translate_errors(f"cannot start {spec.name}"):
            container = self._create_or_pull(spec, spec.image, self._marks(spec, restored=False))
            with self._remove_on_failure(container):
                try:
                    engine.start(container)
                except docker.errors.APIError as error:
                    exit_code = self._state(container).exit_code
                    if exit_code in (126, 127):
                        raise CannotStart(_start_error(error), exit_code) from error
                    raise
        return container

    def has_image(self, image_id: str) -> bool:
        with translate_errors(f"cannot look for the image {image_id}"):
            try:
                self._engine.image_id(image_id)
            except docker.errors.NotFound:
                return False
        if self._pulled_images is not None:
            self._pulled_images.record_use(image_id, now_s=time.time())
        return True

    def pull_image(self, spec: ContainerSpec) -> None:
        with translate_errors(f"cannot pull the image {spec.image}"):
            self._pull(spec.image)

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        if self._pulled_images is not None:  # before it comes: an agent that is killed meanwhile leaves no other trace
            self._pulled_images.record_pull(image_id, image_id, now_s=time.time())
        with translate_errors(f"cannot load the image {image_id}"):
            engine = Engine(self._url, patience_s=_PULL_PATIENCE_S)
            try:
                if why_not := engine.load(archive):
                    if _NO_ROOM in why_not:
                        raise NoRoom(f"Docker has no room for the image {image_id}: {why_not}")
                    raise ImageRefused(f"Docker does not take the image {image_id}: {why_not}")
            finally:
                engine.close()

    def image_id(self, container: ContainerId) -> str:
        with translate_errors(f"cannot look at {container[:12]}"), reading_answer():
            return str(self._engine.inspect(container)["Image"])

    def pause(self, container: ContainerId) -> None:
        if container in self._adrift:
            self.unpause(container)
        with translate_errors(f"cannot pause {container[:12]}"):
            for is_last in freezing.tries():
                try:
                    self._engine.pause(container)
                    return
                except docker.errors.NotFound:
                    raise
                except docker.errors.APIError as error:
                    state = self._state(container)
                    if not state.is_running:
                        raise ContainerExited(f"it has ended with exit code {state.exit_code}") from error
                    if state.is_paused:
                        return
                    if (never := unsavable.NO_MAIN_THREAD.text) in explanation(error):  # the shim's words
                        raise CannotCheckpoint(f"its first process {never}", lasts=True) from error
                    if is_last:
                        raise

    def unpause(self, container: ContainerId) -> None:
        self._adrift.add(container)
        with translate_errors(f"cannot let {container[:12]} go on"):
            try:
                self._engine.unpause(container)
            except docker.errors.NotFound:
                raise
            except docker.errors.APIError:
                if self._state(container).is_paused:
                    raise
        self._adrift.discard(container)

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        with translate_errors(f"cannot save {container[:12]}"):
            inspected = self._engine.inspect(container)
            with reading_answer():
                state, runtime = state_of(inspected), inspected["HostConfig"]["Runtime"]
            self._must_be_paused(container, state)
            if self._shim is None or runtime != RUNTIME:
                raise CannotCheckpoint("it does not run with Gleaner's runtime, without which nothing is saved")
            self._shim.save(inspected, draft)
            self._must_be_paused(container, self._state(container))

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        image = self._image(spec, archive)
        if DESCRIPTORS_PART not in archive.parts:
            raise CannotRestore(NOT_OURS)
        with translate_errors(f"cannot restore {spec.name}"):
            shim = self._shim
            if shim is None:
                raise CannotRestore("the engine lacks Gleaner's runtime, without which nothing is restored")
            container = self._create_or_pull(spec, image, self._marks(spec, restored=True))
            with self._remove_on_failure(container):
                shim.restore(container, spec.name, archive)
            return container

    @contextlib.contextmanager
    def _remove_on_failure(self, container: ContainerId) -> Generator[None]:
        try:
            with self._engine.remove_on_failure(container):
                yield
        except BaseException:
            self._attached_outputs.pop(container, None)
            raise

    @staticmethod
    def _image(spec: ContainerSpec, archive: FolderArchive) -> str:
        """Return the id of the very image that the container had; its name may mean another one by now."""
        image = archive.facts.get("image_id")
        return image if isinstance(image, str) else spec.image

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        with translate_errors(f"cannot read the output of {container[:12]}"):
            yield from messages(self._engine.follow(container))

    def live_output(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """Return the output from an attached connection: the engine's log withholds a line that has no end yet."""
        output = self._attached_outputs.pop(container, None)
        return None if output is None else messages(output)

    def wait(self, container: ContainerId) -> int:
        with translate_errors(f"cannot wait for {container[:12]}"):
            try:
                while (exit_code := self._engine.wait(container)) is None:
                    pass
                if exit_code == KILLED and not self._is_out_of_memory_soon(container):
                    raise ContainerKilled("its process was killed from outside, and not for its memory limit")
            except docker.errors.NotFound as error:
                raise ContainerKilled("its container was removed by somebody else") from error
        return exit_code

    def was_out_of_memory(self, container: ContainerId) -> bool:
        with translate_errors(f"cannot look at {container[:12]}"):
            try:
                return self._state(container).was_out_of_memory
            except docker.errors.NotFound:
                return False

    def signal(self, container: ContainerId, name: str) -> None:
        with translate_errors(f"cannot send {name} to {container[:12]}"):
            try:
                self._engine.kill(container, name)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:
                if self._is_running(container):
                    raise

    def kill(self, container: ContainerId) -> None:
        with translate_errors(f"cannot kill {container[:12]}"):
            try:
                self._engine.kill(container)
                if self._engine.wait(container) is None:
                    raise RuntimeFault(f"{container[:12]} was killed, and does not end")
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:
                if self._is_running(container):
                    raise

    def remove(self, container: ContainerId) -> None:
        self._attached_outputs.pop(container, None)
        with translate_errors(f"cannot remove {container[:12]}"):
            self._engine.remove(container)

    def usage(self, containers: Sequence[ContainerId]) -> Mapping[ContainerId, Usage]:
        usages: dict[ContainerId, Usage] = {}
        for container in containers:
            with translate_errors(f"cannot measure {container[:12]}"), contextlib.suppress(docker.errors.NotFound):
                usage = _usage(self._engine.stats(container))
                if usage is not None:
                    usages[container] = usage
        return usages

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        with translate_errors("cannot list containers"), reading_answer():
            return {
                ContainerId(name): labels for name, labels in self._engine.labels_of_containers(LABEL_AGENT).items()
            }

    def data_folders(self) -> Sequence[str]:
        with translate_errors("cannot ask Docker where it keeps its files"):
            return [self._data_folder]

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        with translate_errors(f"cannot measure {container[:12]}"):
            engine = Engine(self._url, patience_s=_LOOK_PATIENCE_S)
            try:
                return DiskUse(engine.written_bytes(container), engine.changed(container, most=most_inodes))
            except docker.errors.NotFound:
                return DiskUse()
            finally:
                engine.close()

    def cached_images(self) -> Sequence[CachedImage]:
        images: list[CachedImage] = []
        if self._pulled_images is None:
            return images
        with translate_errors("cannot look at images"):
            for name, pulled in self._pulled_images.by_last_use():
                try:
                    image_id, size_bytes = self._engine.image_facts(name)
                except docker.errors.NotFound:
                    image_id, size_bytes = "", 0
                if image_id == pulled.image_id:
                    images.append(CachedImage(name, size_bytes, pulled.used_s))
                elif image_id or pulled.used_s < time.time() - _LOADED_WITHIN_S:
                    # It is gone, or somebody else has brought another one under its name.
                    self._pulled_images.forget(name)
        return images

    def drop_image(self, name: str) -> bool:
        with translate_errors("cannot remove an image"):
            try:
                self._engine.remove_image(name)
            except docker.errors.NotFound:
                pass
            except docker.errors.APIError:  # a container uses it
                return False
        if self._pulled_images is not None:
            self._pulled_images.forget(name)
        return True

    def _marks(self, spec: ContainerSpec, *, restored: bool) -> Mapping[str, Any]:
        """Return the arguments by which the shim knows a container as ours."""
        if self._shim is None:
            return {}
        annotations = self._shim.annotations(spec.name, restored=restored, end_s=spec.labels.get(LABEL_END))
        return {"annotations": annotations, "runtime": RUNTIME}

    def _create_or_pull(self, spec: ContainerSpec, image: str, marks: Mapping[str, Any]) -> ContainerId:
        """Create a container for the spec. Pull the image if it is not there."""
        image = image if is_id(image) else full_name(image)
        if self._pulled_images is not None:
            self._pulled_images.record_use(image, now_s=time.time())
        try:
            return self._create(spec, image, marks)
        except docker.errors.ImageNotFound:
            self._pull(spec.image)
        try:
            return self._create(spec, image, marks)
        except docker.errors.ImageNotFound as error:
            raise ImageMissing(f"the image {spec.image} is here, but not as {image}: it was changed") from error

    def _create(self, spec: ContainerSpec, image: str, marks: Mapping[str, Any]) -> ContainerId:
        memory_bytes = spec.memory_mib * _MIB
        try:
            container = self._engine.create(
                spec.name,
                host={
                    "binds": _binds(spec),
                    "mounts": [_mount(path) for path in spec.mounts],
                    "cap_drop": ["ALL"],
                    "security_opt": ["no-new-privileges"],
                    # The scheduler may count more CPUs than the machine has; the engine refuses a limit above it.
                    "nano_cpus": min(spec.cpus, self._cpus) * 10**9,
                    "mem_limit": memory_bytes,
                    "memswap_limit": memory_bytes,
                    "shm_size": memory_bytes,
                    "pids_limit": _PIDS,
                    "init": False,
                    "ulimits": [docker.types.Ulimit(name="core", soft=0, hard=0)],
                    "runtime": marks.get("runtime"),
                    "storage_opt": self._storage_opt(spec),
                    # Docker's usual driver would replace half a character at the end of a line that is open at a save.
                    "log_config": docker.types.LogConfig(type="local", config=_LOG),
                },
                annotations=marks.get("annotations", {}),
                image=image,
                command=list(spec.command),
                hostname="gleaner",  # one name everywhere: a restored process keeps the one that it was started with
                user=f"{self._uid}:{self._gid}",
                working_dir=FOLDER_IN_CONTAINER,
                environment=dict(spec.environment),
                labels=dict(spec.labels),
                healthcheck=docker.types.Healthcheck(test=["NONE"]),
            )
        except docker.errors.ImageNotFound:
            raise
        except docker.errors.APIError as error:
            if status(error) == requests.codes.bad_request and "command" in explanation(error):
                raise CannotStart(explanation(error), 127) from error
            missing = explanation(error).partition(_NO_FOLDER)[2]
            if missing in spec.mounts:
                raise MountMissing(f"{missing}: there is no such folder") from error
            if self._has_quotas and "storage-opt" in explanation(error):
                log.warning("Docker sets no limit of what containers write", reason=explanation(error))
                self._has_quotas = False
                return self._create(spec, image, marks)
            raise
        with self._engine.remove_on_failure(container):
            self._refuse_volumes(container, spec)
            self._attached_outputs[ContainerId(container)] = self._engine.attach(container)
        return ContainerId(container)

    def _storage_opt(self, spec: ContainerSpec) -> Mapping[str, str] | None:
        return {"size": f"{spec.disk_mib}m"} if spec.disk_mib is not None and self._has_quotas else None

    def _refuse_volumes(self, container: str, spec: ContainerSpec) -> None:
        """Refuse an image with volumes. What lies in a volume is in no layer.

        It would be lost at each save, and the job would compute on without it.
        """
        inspected = self._engine.inspect(container)
        with reading_answer():
            mounts = [str(mount["Destination"]) for mount in inspected["Mounts"]]
        others = sorted(set(mounts) - {bind["bind"] for bind in _binds(spec).values()} - set(spec.mounts))
        if others:
            advice = f"build it without VOLUME, and let it write to {FOLDER_IN_CONTAINER}"
            raise ImageRefused(
                f"the image {spec.image} has a volume at {', '.join(others)}, which cannot be saved: {advice}"
            )

    def _pull(self, image: str) -> None:
        if is_id(image):
            raise ImageMissing(f"the image {image} is not on the node, and an id cannot be pulled: give its name")
        if not self._images_pull:
            raise ImageMissing(f"the image {image} is not on the node, and none is pulled here (images_pull)")
        try:
            Engine(self._url, patience_s=_PULL_PATIENCE_S).pull(full_name(image))
        except docker.errors.APIError as error:
            line = f"the image {image} is not on the node and cannot be pulled: {explanation(error)}"
            raise ImageMissing(line) from error
        if self._pulled_images is not None:
            image = full_name(image)
            self._pulled_images.record_pull(image, self._engine.image_id(image), now_s=time.time())

    def _state(self, container: str) -> ContainerState:
        return state_of(self._engine.inspect(container))

    def _is_running(self, container: str) -> bool:
        try:
            return self._state(container).is_running
        except docker.errors.NotFound:
            return False

    def _is_out_of_memory_soon(self, container: ContainerId) -> bool:
        give_up_s = time.monotonic() + _OOM_KNOWN_WITHIN_S
        while not (was_out_of_memory := self._state(container).was_out_of_memory) and time.monotonic() < give_up_s:
            time.sleep(0.1)
        return was_out_of_memory

    def _must_be_paused(self, container: ContainerId, state: ContainerState) -> None:
        if not state.is_running:
            raise RuntimeFault(f"{container[:12]} has ended while it was paused: something has killed it")
        if not state.is_paused:
            raise RuntimeFault(f"{container[:12]} is not paused")


def _binds(spec: ContainerSpec) -> Mapping[str, Mapping[str, str]]:
    """Return the folders of the node that the container sees."""
    binds = {str(spec.folder): {"bind": FOLDER_IN_CONTAINER, "mode": "rw"}}
    if spec.inputs is not None:
        binds[str(spec.inputs)] = {"bind": INPUTS_IN_CONTAINER, "mode": "ro"}
    return binds


def _mount(path: str) -> docker.types.Mount:
    """Return a folder of the node as a mount at its own path. The engine makes none that is missing."""
    mount = docker.types.Mount(path, path, type="bind", read_only=True, propagation="rprivate")
    mount["BindOptions"]["NonRecursive"] = True  # what is mounted below could be written to with older engines
    return mount


@reading_answer()
def _usage(stats: Mapping[str, Any]) -> Usage | None:
    """Return the usage, without the file cache, which is not saved. None for a container that does not run."""
    memory = stats.get("memory_stats", {}).get("stats")
    if not memory:
        return None
    anonymous_bytes = memory["anon"] if "anon" in memory else memory.get("total_rss", 0)  # cgroup version 2, else 1
    shared_bytes = memory.get("shmem", memory.get("total_shmem", 0))
    return Usage(
        memory_bytes=anonymous_bytes + shared_bytes,
        cpu_s=stats["cpu_stats"]["cpu_usage"]["total_usage"] / 10**9,
    )


def _start_error(error: docker.errors.APIError) -> str:
    """Return the end of the engine's long line, which names the command and what is wrong with it."""
    text = explanation(error)
    return text[text.find("exec: ") :] if "exec: " in text else text


def _criu_version() -> str:
    """Return CRIU's version on this node, or ""; CRIU lies in a folder that is not on an ordinary user's PATH."""
    program = shutil.which("criu", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        return ""
    try:
        text = system_programs.run([program, "--version"], within_s=_CRIU_PATIENCE_S).stdout
    except OSError:
        return ""
    return next(
        (line.removeprefix("Version: ").strip() for line in text.splitlines() if line.startswith("Version:")), ""
    )


if TYPE_CHECKING:
    _: type[Runtime] = DockerRuntime


def has_disk_quotas(data_folder: str) -> bool:
    """Return True if the file system of the engine's data folder is XFS with project quotas.

    Docker limits what a container writes only on overlay2 over such a file system, and refuses a limit anywhere else.
    """
    try:
        return has_project_quotas(data_folder, mounts.table())
    except OSError:
        return False


def has_project_quotas(folder: str, mountinfo: str) -> bool:
    r"""Return True if the kernel's table of mounts shows XFS with project quotas for the folder.

    Of several mounts at one place, the last one counts.

    >>> has_project_quotas("/var/lib/docker", "7 1 8:1 / / rw - ext4 d rw\n8 7 8:2 / /var rw - xfs d rw,prjquota")
    True
    >>> has_project_quotas("/var/lib/docker", "7 1 8:1 / / rw - xfs d rw,pquota\n8 7 8:2 / /var rw - xfs d rw,noquota")
    False
    """
    above = [mount for mount in mounts.parse(mountinfo) if PurePath(folder).is_relative_to(mount.place)]
    nearest = max(reversed(above), key=lambda mount: len(PurePath(mount.place).parts), default=None)
    return nearest is not None and nearest.kind == "xfs" and not _QUOTAS_ON.isdisjoint(nearest.options.split(","))
