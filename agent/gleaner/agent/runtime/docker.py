"""The runtime for Docker Engine, through its API alone: the agent needs its socket and no other right.

A container is started without network, capabilities or a way to get more, as the agent's own user, with the job's
folder as its only mount. A checkpoint is CRIU's, made by the engine, whose files belong to root and lie in the
engine's data folder, as does the container's written (upper) layer. Both are carried through a *carrier*: a second
container of the same image with those folders mounted that is created and never started, since the engine's archive
calls reach mounts of such a container too. So nothing runs with rights to those folders.

Proven with the engine 26.1 of Debian 13, runc 1.1 and CRIU 4.1.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import tarfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import docker.errors
import docker.types
import requests

from gleaner.agent.runtime.carrier import (
    CHECKPOINTS,
    UPPER_LAYER,
    carrier,
    criu_log_kept,
    data_folder,
    why,
    written_files,
)
from gleaner.agent.runtime.ends import exit_code_of
from gleaner.agent.runtime.engine import Engine, explanation, status, translated
from gleaner.agent.runtime.layer import tar_of
from gleaner.agent.runtime.lines import messages
from gleaner.agent.runtime.protocol import (
    FOLDER_IN_CONTAINER,
    LABEL_AGENT,
    CannotCheckpoint,
    CannotRestore,
    CannotStart,
    ContainerExited,
    ContainerId,
    ContainerSpec,
    ImageMissing,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
    Usage,
)
from gleaner.agent.storage.protocol import Draft, Parcel

MEMORY_PART = "memory.tar"
LAYER_PART = "layer.tar"

_PULL_PATIENCE_S = 900
_PIDS = 4096
_LOG = {"max-size": "64m", "max-file": "3"}
_MIB = 2**20


class DockerRuntime:
    """A `Runtime` on one engine. `user` is the uid and gid that the jobs run with: by default the agent's own."""

    def __init__(self, url: str, *, user: tuple[int, int] | None = None) -> None:
        self._url = url
        self._uid, self._gid = user or (os.getuid(), os.getgid())
        if self._uid == 0:
            raise RuntimeFault("jobs would run as root: start the agent as an ordinary service account")

    @cached_property
    def _engine(self) -> Engine:
        with translated(f"Docker at {self._url} does not answer"):
            return Engine(self._url)

    def facts(self) -> RuntimeFacts:
        """Raises `RuntimeFault` when this engine cannot make or restore checkpoints at all."""
        with translated("cannot ask Docker what it is"):
            version = self._engine.version()
            data_folder(self._engine)
            if not version.get("Experimental"):
                raise RuntimeFault('Docker cannot save containers: put "experimental": true into its daemon.json')
        return RuntimeFacts(runtime=f"docker {version['Version']}", criu=_criu_version())

    def start(self, spec: ContainerSpec) -> ContainerId:
        engine = self._engine
        with translated(f"cannot start {spec.name}"):
            container = self._created(spec, spec.image, {})
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
        with translated(f"cannot pause {container[:12]}"):
            try:
                self._engine.pause(container)
            except docker.errors.NotFound:
                raise
            except docker.errors.APIError as error:
                state = self._state(container)
                if not state["Running"]:
                    raise ContainerExited(f"it has ended with exit code {state['ExitCode']}") from error
                if not state["Paused"]:
                    raise

    def unpause(self, container: ContainerId) -> None:
        with translated(f"cannot let {container[:12]} go on"):
            try:
                self._engine.unpause(container)
            except docker.errors.NotFound:
                raise
            except docker.errors.APIError:
                if self._state(container)["Paused"]:
                    raise

    def checkpoint(self, container: ContainerId, draft: Draft) -> None:
        engine = self._engine
        checkpoint = f"gleaner-{secrets.token_hex(8)}"
        with translated(f"cannot save {container[:12]}"):
            inspected = engine.inspect(container)
            self._must_be_paused(container, inspected["State"])
            try:
                engine.create_checkpoint(container, checkpoint)
            except docker.errors.APIError as error:
                self._must_be_paused(container, self._state(container))
                raise CannotCheckpoint(self._why_not_dumped(inspected, error)) from error
            try:
                with carrier(engine, inspected) as carried:
                    with contextlib.closing(engine.send(carried, f"{CHECKPOINTS}/{checkpoint}/.")) as memory:
                        draft.add(MEMORY_PART, memory)
                    written = written_files(engine, container, carried, mount=FOLDER_IN_CONTAINER)
                    with contextlib.closing(written):
                        draft.add(LAYER_PART, written)
            except tarfile.TarError as error:
                raise CannotCheckpoint(f"the container's written files cannot be read: {error}") from error
            finally:
                with contextlib.suppress(docker.errors.APIError):
                    engine.delete_checkpoint(container, checkpoint)
            self._must_be_paused(container, self._state(container))

    def restore(self, spec: ContainerSpec, parcel: Parcel) -> ContainerId:
        with translated(f"cannot restore {spec.name}"):
            try:
                return self._restored(spec, parcel, {})
            except docker.errors.APIError as error:
                said = explanation(error)
            # runc removes the log of a restore that failed. So once more, with the log in a place of ours.
            with criu_log_kept(self._engine, spec.name, image=self._image(spec, parcel), labels=spec.labels) as log:
                try:
                    return self._restored(spec, parcel, log.annotations)
                except docker.errors.APIError as error:
                    raise CannotRestore(f"CRIU cannot restore its memory: {log.reason() or said}") from error

    @staticmethod
    def _image(spec: ContainerSpec, parcel: Parcel) -> str:
        """The very image that the container had; its name may mean another one by now."""
        image = parcel.facts.get("image_id")
        return image if isinstance(image, str) else spec.image

    def _restored(self, spec: ContainerSpec, parcel: Parcel, annotations: Mapping[str, str]) -> ContainerId:
        engine = self._engine
        checkpoint = f"gleaner-{secrets.token_hex(8)}"
        container = self._created(spec, self._image(spec, parcel), annotations)
        with self._removed_on_failure(container):
            with carrier(engine, engine.inspect(container)) as carried:
                # The nonce makes each restore's content new to containerd, which refuses one that it still holds
                # from a restore or save before ("already exists").
                engine.receive(carried, CHECKPOINTS, tar_of(checkpoint, "nonce", secrets.token_bytes(16)))
                engine.receive(carried, f"{CHECKPOINTS}/{checkpoint}", parcel.read(MEMORY_PART))
                engine.receive(carried, UPPER_LAYER, parcel.read(LAYER_PART))
                engine.start_from(container, checkpoint)
                self._must_have_come_back(container)
            with contextlib.suppress(docker.errors.APIError):
                engine.delete_checkpoint(container, checkpoint)
        return container

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        with translated(f"cannot read the output of {container[:12]}"):
            yield from messages(self._engine.follow(container))

    def wait(self, container: ContainerId) -> int:
        with translated(f"cannot wait for {container[:12]}"):
            return exit_code_of(self._engine, container)

    def kill(self, container: ContainerId) -> None:
        with translated(f"cannot kill {container[:12]}"):
            try:
                self._engine.kill(container)
                self._engine.wait(container)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:
                if self._is_running(container):
                    raise

    def remove(self, container: ContainerId) -> None:
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

    def _created(self, spec: ContainerSpec, image: str, annotations: Mapping[str, str]) -> ContainerId:
        """A new container for the spec; the image is pulled if it is not there."""
        try:
            return self._create(spec, image, annotations)
        except docker.errors.ImageNotFound:
            self._pull(spec.image)
        try:
            return self._create(spec, image, annotations)
        except docker.errors.ImageNotFound as error:
            raise ImageMissing(f"the image {spec.image} is here, but not as {image}: it was changed") from error

    def _create(self, spec: ContainerSpec, image: str, annotations: Mapping[str, str]) -> ContainerId:
        memory_bytes = spec.memory_mib * _MIB
        try:
            container = self._engine.create(
                spec.name,
                host={
                    "binds": {str(spec.folder): {"bind": FOLDER_IN_CONTAINER, "mode": "rw"}},
                    "cap_drop": ["ALL"],
                    "security_opt": ["no-new-privileges"],
                    # The scheduler may count more CPUs than the machine has; the engine refuses a limit above it.
                    "nano_cpus": min(spec.cpus, int(self._engine.info()["NCPU"])) * 10**9,
                    "mem_limit": memory_bytes,
                    "memswap_limit": memory_bytes,
                    "shm_size": memory_bytes,
                    "pids_limit": _PIDS,
                    "init": False,
                    "ulimits": [docker.types.Ulimit(name="core", soft=0, hard=0)],
                    "log_config": docker.types.LogConfig(type="json-file", config=_LOG),
                },
                annotations=annotations,
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
            raise
        return ContainerId(container)

    def _pull(self, image: str) -> None:
        try:
            Engine(self._url, patience_s=_PULL_PATIENCE_S).pull(image)
        except docker.errors.APIError as error:
            line = f"the image {image} is not on the node and cannot be pulled: {explanation(error)}"
            raise ImageMissing(line) from error

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

    def _must_have_come_back(self, container: ContainerId) -> None:
        """The engine's yes to a restore is only a maybe. An exit of the workload soon after is fine."""
        time.sleep(0.1)
        state = self._state(container)
        if not state["Running"] and (state["Status"] == "created" or state["Error"]):
            raise docker.errors.APIError("not restored", explanation=state["Error"] or "it did not start")

    @contextlib.contextmanager
    def _removed_on_failure(self, container: ContainerId) -> Generator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
                self._engine.remove(container)
            raise

    def _why_not_dumped(self, inspected: Mapping[str, Any], error: docker.errors.APIError) -> str:
        reason = why(self._engine, inspected, error)
        advice = "It goes on; if that stays so, it must fit into one slice."
        return f"CRIU cannot save its memory: {reason.rstrip('. ')}. {advice}"


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
