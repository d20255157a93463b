"""The runtime for Docker Engine, through its API alone: the agent needs its socket and no other right.

A container is started without network, capabilities or a way to get more, as the agent's own user, with the job's
folder as its only mount. Its memory is saved and restored through the OCI runtime shim (`streamed`) where the node has
it. In Docker's own way (`own_way`), which is many times slower, and in which no program of root's looks at what CRIU is
about to do, only where the admin says so. Both read what the other has saved.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker.errors
import docker.types
import requests
import structlog

from gleaner.agent.privileged import freezing
from gleaner.agent.privileged.taken import Taken
from gleaner.agent.protocol import Way
from gleaner.agent.runtime import quota
from gleaner.agent.runtime.allowed import full_name, is_id
from gleaner.agent.runtime.carrier import data_folder
from gleaner.agent.runtime.ends import exit_code_of
from gleaner.agent.runtime.engine import Engine, explanation, status, translated
from gleaner.agent.runtime.lines import messages
from gleaner.agent.runtime.meetings import DESCRIPTORS_PART
from gleaner.agent.runtime.own_way import OwnWay
from gleaner.agent.runtime.protocol import (
    FOLDER_IN_CONTAINER,
    LABEL_AGENT,
    LABEL_END,
    CannotCheckpoint,
    CannotRestore,
    CannotStart,
    ContainerExited,
    ContainerId,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
    Usage,
)
from gleaner.agent.runtime.pulled import Pulled
from gleaner.agent.runtime.streamed import RUNTIME, Streamed, found
from gleaner.agent.storage.protocol import Draft, Parcel

log = structlog.get_logger()

_PULL_PATIENCE_S = 900
_LOOK_PATIENCE_S = 30
"""To look at what a container has written must not keep the look at the others waiting."""
_PIDS = 4096
_LOG = {"max-size": "64m", "max-file": "3"}
_MIB = 2**20


class DockerRuntime:
    """A `Runtime` on one engine. `user` is the uid and gid that the jobs run with: by default the agent's own.

    `pulled` is a file that says which images were pulled by agents of this node; without it none is ever removed.
    `own_way`: Docker may save and restore in its own way.
    """

    def __init__(
        self, url: str, *, user: tuple[int, int] | None = None, pulled: Path | None = None, own_way: bool = False
    ) -> None:
        self._url = url
        self._may_own_way = own_way
        self._pulled = None if pulled is None else Pulled(pulled)
        self._uid, self._gid = user or (os.getuid(), os.getgid())
        self._attached: dict[ContainerId, Iterator[bytes]] = {}
        """To the output of each container from its beginning, until `live` hands it out."""
        self._adrift: set[ContainerId] = set()
        """Those of which Docker has not said since that they go on; it may take them for paused while they run."""
        self._why_no_shim = ""
        if self._uid == 0:
            raise RuntimeFault("jobs would run as root: start the agent as an ordinary service account")

    @cached_property
    def _engine(self) -> Engine:
        with translated(f"Docker at {self._url} does not answer"):
            return Engine(self._url)

    @cached_property
    def _cpus(self) -> int:
        """How many the engine's machine has."""
        return int(self._engine.info()["NCPU"])

    @cached_property
    def _data_folder(self) -> str:
        return data_folder(self._engine)

    @cached_property
    def _has_quotas(self) -> bool:
        """Whether what a container writes can be limited by the file system."""
        return quota.is_on(self._data_folder)

    @cached_property
    def _own_way(self) -> OwnWay:
        return OwnWay(self._engine)

    @cached_property
    def _streamed(self) -> Streamed | None:
        """The shim, where this node has it."""
        streamed, self._why_no_shim = found(self._engine)
        if streamed is None and self._may_own_way:
            reason = self._why_no_shim
            log.warning("saving and restoring in Docker's own way, which is many times slower", reason=reason)
        return streamed

    def facts(self) -> RuntimeFacts:
        """An engine that is not experimental runs containers, and cannot save them."""
        facts = self._facts()
        if facts.checkpoints and facts.way is Way.DOCKER and not self._may_own_way:
            raise RuntimeFault(
                f"Docker at {self._url} lacks Gleaner's runtime ({self._why_no_shim}), without which a restored job may"
                " write on the node: run deploy/install-node.sh there, or set docker_own_way = true"
            )
        return facts

    def _facts(self) -> RuntimeFacts:
        with translated("cannot ask Docker what it is"):
            version = self._engine.version()
            data_folder(self._engine)
        checkpoints = bool(version.get("Experimental"))
        if not checkpoints:
            log.warning('Docker cannot save containers: put "experimental": true into its daemon.json')
        way = Way.SHIM if self._streamed is not None else Way.DOCKER
        name = f"docker {version['Version']}"
        return RuntimeFacts(runtime=name, criu=_criu_version(), way=way, checkpoints=checkpoints)

    def start(self, spec: ContainerSpec) -> ContainerId:
        engine = self._engine
        with translated(f"cannot start {spec.name}"):
            container = self._created(spec, spec.image, self._marks(spec, restored=False))
            with self._removed_on_failure(container):
                try:
                    engine.start(container)
                except docker.errors.APIError as error:
                    exit_code = self._state(container)["ExitCode"]
                    if exit_code in (126, 127):
                        raise CannotStart(_why_not_started(error), exit_code) from error
                    raise
        return container

    def image_id(self, container: ContainerId) -> str:
        with translated(f"cannot look at {container[:12]}"):
            return str(self._engine.inspect(container)["Image"])

    def pause(self, container: ContainerId) -> None:
        if container in self._adrift:
            self.unpause(container)
        with translated(f"cannot pause {container[:12]}"):
            for is_last in freezing.tries():
                try:
                    self._engine.pause(container)
                    return
                except docker.errors.NotFound:
                    raise
                except docker.errors.APIError as error:
                    state = self._state(container)
                    if not state["Running"]:
                        raise ContainerExited(f"it has ended with exit code {state['ExitCode']}") from error
                    if state["Paused"]:
                        return
                    if is_last:
                        raise

    def unpause(self, container: ContainerId) -> None:
        self._adrift.add(container)
        with translated(f"cannot let {container[:12]} go on"):
            try:
                self._engine.unpause(container)
            except docker.errors.NotFound:
                raise
            except docker.errors.APIError:
                if self._state(container)["Paused"]:
                    raise
        self._adrift.discard(container)

    def checkpoint(self, container: ContainerId, draft: Draft) -> None:
        with translated(f"cannot save {container[:12]}"):
            inspected = self._engine.inspect(container)
            self._must_be_paused(container, inspected["State"])
            try:
                if self._streamed is not None and inspected["HostConfig"]["Runtime"] == RUNTIME:
                    self._streamed.save(inspected, draft)
                elif not self._may_own_way:
                    raise CannotCheckpoint("it would be in Docker's own way, and docker_own_way is off")
                else:
                    self._own_way.save(inspected, draft)
            except CannotCheckpoint as error:
                advice = "It goes on; if that stays so, it must fit into one slice."
                reason = str(error).rstrip(". ")
                raise CannotCheckpoint(f"CRIU cannot save its memory: {reason}. {advice}") from error
            self._must_be_paused(container, self._state(container))

    def restore(self, spec: ContainerSpec, parcel: Parcel) -> ContainerId:
        image = self._image(spec, parcel)
        streamed = self._streamed if DESCRIPTORS_PART in parcel.parts else None
        with translated(f"cannot restore {spec.name}"):
            if streamed is None and not self._may_own_way:
                raise CannotRestore(
                    "it would be in Docker's own way, in which it was saved or which is all that this node has, and"
                    " docker_own_way is off"
                )
            if streamed is None:
                return self._own_way.restore(
                    lambda annotations: self._created(spec, image, {"annotations": annotations}),
                    parcel,
                    name=spec.name,
                    image=image,
                    labels=spec.labels,
                )
            container = self._created(spec, image, self._marks(spec, restored=True))
            with self._removed_on_failure(container):
                streamed.restore(container, spec.name, parcel)
            return container

    @contextlib.contextmanager
    def _removed_on_failure(self, container: ContainerId) -> Generator[None]:
        try:
            with self._engine.removed_on_failure(container):
                yield
        except BaseException:
            self._attached.pop(container, None)
            raise

    @staticmethod
    def _image(spec: ContainerSpec, parcel: Parcel) -> str:
        """The very image that the container had; its name may mean another one by now."""
        image = parcel.facts.get("image_id")
        return image if isinstance(image, str) else spec.image

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        with translated(f"cannot read the output of {container[:12]}"):
            yield from messages(self._engine.follow(container))

    def live(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """By an attached connection: the engine's log keeps open lines to itself."""
        attached = self._attached.pop(container, None)
        return None if attached is None else messages(attached)

    def wait(self, container: ContainerId) -> int:
        with translated(f"cannot wait for {container[:12]}"):
            return exit_code_of(self._engine, container)

    def signal(self, container: ContainerId, name: str) -> None:
        with translated(f"cannot send {name} to {container[:12]}"):
            try:
                self._engine.kill(container, name)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:
                if self._is_running(container):
                    raise

    def kill(self, container: ContainerId) -> None:
        with translated(f"cannot kill {container[:12]}"):
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
        self._attached.pop(container, None)
        with translated(f"cannot remove {container[:12]}"):
            self._engine.remove(container)

    def usage(self, containers: Sequence[ContainerId]) -> Mapping[ContainerId, Usage]:
        used: dict[ContainerId, Usage] = {}
        for container in containers:
            with translated(f"cannot measure {container[:12]}"), contextlib.suppress(docker.errors.NotFound):
                usage = _usage(self._engine.stats(container))
                if usage is not None:
                    used[container] = usage
        return used

    def ours(self) -> Mapping[ContainerId, Mapping[str, str]]:
        with translated("cannot list containers"):
            return {ContainerId(name): labels for name, labels in self._engine.labelled(LABEL_AGENT).items()}

    def places(self) -> Sequence[str]:
        with translated("cannot ask Docker where it keeps its files"):
            return [self._data_folder]

    def written(self, container: ContainerId, *, most_inodes: int) -> Taken:
        with translated(f"cannot measure {container[:12]}"):
            engine = Engine(self._url, patience_s=_LOOK_PATIENCE_S)
            try:
                return Taken(engine.written_bytes(container), engine.changed(container, most=most_inodes))
            except docker.errors.NotFound:
                return Taken()
            finally:
                engine.close()

    def prune(self, *, unused_for_s: float, enough: Callable[[], bool]) -> Sequence[str]:
        gone: list[str] = []
        if self._pulled is None:
            return gone
        with translated("cannot remove an image"):
            for image, known in self._pulled.unused_longest():
                if known.used_s > time.time() - unused_for_s or enough():
                    break
                try:
                    # Where the name means another by now, somebody else has brought that one.
                    if self._engine.image_id(image) == known.image_id:
                        self._engine.remove_image(image)
                        gone.append(image)
                except docker.errors.NotFound:
                    pass
                except docker.errors.APIError:  # a container has it
                    continue
                self._pulled.forget(image)
        return gone

    def _marks(self, spec: ContainerSpec, *, restored: bool) -> Mapping[str, Any]:
        """By what the shim knows a container as ours."""
        if self._streamed is None:
            return {}
        annotations = self._streamed.annotations(spec.name, restored=restored, end_s=spec.labels.get(LABEL_END))
        return {"annotations": annotations, "runtime": RUNTIME}

    def _created(self, spec: ContainerSpec, image: str, marks: Mapping[str, Any]) -> ContainerId:
        """A new container for the spec; the image is pulled if it is not there."""
        image = image if is_id(image) else full_name(image)
        if self._pulled is not None:
            self._pulled.used(image, now_s=time.time())
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
                    "binds": {str(spec.folder): {"bind": FOLDER_IN_CONTAINER, "mode": "rw"}},
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
            if self._has_quotas and "storage-opt" in explanation(error):
                log.warning("Docker sets no limit of what containers write", reason=explanation(error))
                self._has_quotas = False
                return self._create(spec, image, marks)
            raise
        with self._engine.removed_on_failure(container):
            self._refuse_volumes(container, spec.image)
            self._attached[ContainerId(container)] = self._engine.attach(container)
        return ContainerId(container)

    def _storage_opt(self, spec: ContainerSpec) -> Mapping[str, str] | None:
        return {"size": f"{spec.disk_mib}m"} if spec.disk_mib is not None and self._has_quotas else None

    def _refuse_volumes(self, container: str, image: str) -> None:
        """What lies in a volume is in no layer: it would be lost at each save, and the job compute on without it."""
        mounts = [str(mount["Destination"]) for mount in self._engine.inspect(container)["Mounts"]]
        others = sorted(set(mounts) - {FOLDER_IN_CONTAINER})
        if others:
            advice = f"build it without VOLUME, and let it write to {FOLDER_IN_CONTAINER}"
            raise ImageRefused(
                f"the image {image} has a volume at {', '.join(others)}, which cannot be saved: {advice}"
            )

    def _pull(self, image: str) -> None:
        if is_id(image):
            raise ImageMissing(f"the image {image} is not on the node, and an id cannot be pulled: give its name")
        try:
            Engine(self._url, patience_s=_PULL_PATIENCE_S).pull(full_name(image))
        except docker.errors.APIError as error:
            line = f"the image {image} is not on the node and cannot be pulled: {explanation(error)}"
            raise ImageMissing(line) from error
        if self._pulled is not None:
            self._pulled.note(full_name(image), self._engine.image_id(full_name(image)), now_s=time.time())

    def _state(self, container: str) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.inspect(container)["State"]
        return state

    def _is_running(self, container: str) -> bool:
        try:
            return bool(self._state(container)["Running"])
        except docker.errors.NotFound:
            return False

    def _must_be_paused(self, container: ContainerId, state: Mapping[str, Any]) -> None:
        if not state["Running"]:
            raise RuntimeFault(f"{container[:12]} has ended while it was paused: something has killed it")
        if not state["Paused"]:
            raise RuntimeFault(f"{container[:12]} is not paused")


def _usage(stats: Mapping[str, Any]) -> Usage | None:
    """None for a container that does not run. File cache is not counted, as it is not saved."""
    memory = stats.get("memory_stats", {}).get("stats")
    if not memory:
        return None
    anonymous_bytes = memory["anon"] if "anon" in memory else memory.get("total_rss", 0)  # cgroup version 2, else 1
    shared_bytes = memory.get("shmem", memory.get("total_shmem", 0))
    return Usage(
        memory_bytes=anonymous_bytes + shared_bytes,
        cpu_s=stats["cpu_stats"]["cpu_usage"]["total_usage"] / 10**9,
    )


def _why_not_started(error: docker.errors.APIError) -> str:
    """The end of the engine's long line, which names the command and what is wrong with it."""
    said = explanation(error)
    return said[said.find("exec: ") :] if "exec: " in said else said


def _criu_version() -> str:
    """CRIU's version on this node, or empty: it lies in a folder that is not on an ordinary user's PATH."""
    program = shutil.which("criu", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        return ""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(
        (line.removeprefix("Version: ").strip() for line in said.splitlines() if line.startswith("Version:")), ""
    )


if TYPE_CHECKING:
    _: type[Runtime] = DockerRuntime
