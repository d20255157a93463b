"""Find, make, start and stop containers through Docker Engine's API.

A container runs as the agent's own user, without network, without capabilities and without a way to gain any. Its only
mounts are the job's folder and, read-only, its inputs and the node's folders that the privileged settings allow. Its
memory is saved and restored by the shim, which is registered with the engine as a runtime. An engine without the shim
runs only jobs that save themselves.
"""

import os
import secrets
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import docker.types
import requests
import structlog
import urllib3.exceptions

from gleaner.agent.messages import Way
from gleaner.agent.privileged.common import config, freezing, system_programs
from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.privileged.shim.main import ANNOTATION_END, ANNOTATION_HANDSHAKE, ANNOTATION_RESTORE
from gleaner.agent.runtime.core import ContainerRuntime
from gleaner.agent.runtime.docker_raw import attach, count_changes, follow, request
from gleaner.agent.runtime.images import PulledImages
from gleaner.agent.runtime.interface import (
    FOLDER_IN_CONTAINER,
    INPUTS_IN_CONTAINER,
    LABEL_AGENT,
    LABEL_END,
    CachedImage,
    CannotCheckpoint,
    ContainerExited,
    ContainerId,
    ContainerSpec,
    End,
    Gone,
    ImageMissing,
    ImageRefused,
    MountMissing,
    NoRoom,
    Runtime,
    RuntimeFacts,
    RuntimeFault,
)
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.image_names import full_name, is_id

log = structlog.get_logger()

RUNTIME = "gleaner"
"""The shim's name among the engine's runtimes."""
PATIENCE_S = 120
"""The longest time that the engine can take for an ordinary answer, or can pause within a stream."""
LONG_PATIENCE_S = 24 * 3600
"""The time limit of calls that last as long as there is data. If the engine dies, such a call ends earlier."""
_PULL_PATIENCE_S = 900
_LOOK_PATIENCE_S = 30
"""The time limit for measuring one container's written files, since a slow measurement must not delay the others."""
_REMOVE_PATIENCE_S = 60
_CRIU_PATIENCE_S = 10
_LOADED_WITHIN_S = 24 * 3600.0
"""An image that the engine lacks might still be loading for this long after it was recorded."""
_OOM_KNOWN_WITHIN_S = 1.0
"""The time after a container's end in which the engine might still learn that its memory limit was reached.

The process that reached the limit can be a child.
"""
_LONGEST_LINE = 500
_PIDS = 4096
_NO_ROOM = "no space left on device"
_NO_FOLDER = "bind source path does not exist: "
_LOG = docker.types.LogConfig(type="local", config={"max-size": "64m", "max-file": "3"})
"""Docker's default driver would replace half a character at the end of a line that is incomplete at a save."""
_MIB = 2**20


class DockerRefusal(RuntimeFault):
    """The engine works, and has refused a request."""


@contextmanager
def translate_errors(doing: str) -> Generator[None]:
    """Turn the errors of docker-py and its HTTP libraries, and of a malformed answer, into the runtime's own.

    Only code that calls the engine and reads its answer belongs in this context, because one of our own errors would
    look like the engine's.
    """
    try:
        yield
    except docker.errors.NotFound as error:
        raise Gone(f"{doing}: {_one_line(error)}") from error
    except docker.errors.APIError as error:
        raise DockerRefusal(f"{doing}: {_one_line(error)}") from error
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RuntimeFault(f"{doing}: {_one_line(error)}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        line = f"{doing}: Docker's answer is not understood ({type(error).__name__}: {_one_line(error)}"
        raise RuntimeFault(f"{line[:_LONGEST_LINE]})") from error


def _one_line(error: Exception) -> str:
    """Return the engine's message in one line."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())


class DockerRuntime(ContainerRuntime):
    """A `Runtime` that uses one engine. `user` is the uid and gid with which the jobs run, by default the agent's own.

    `pulled_images` is a folder that records the container images that agents on this node have pulled. Without it, no
    image is ever removed. If `images_pull` is False, no image is pulled.
    """

    def __init__(
        self,
        url: str,
        *,
        user: tuple[int, int] | None = None,
        pulled_images: Path | None = None,
        images_pull: bool = True,
    ) -> None:
        super().__init__(self._find_shim)
        self._url = url
        self._images_pull = images_pull
        self._pulled_images = PulledImages(pulled_images)
        self._uid, self._gid = user or (os.getuid(), os.getgid())
        self._attached_outputs: dict[ContainerId, Iterator[bytes]] = {}
        """Connections to the output of each container from its beginning, until `live_output` returns them."""
        self._has_quotas = True
        """False once the engine has refused to limit what a container writes, which requires XFS with project
        quotas."""
        if self._uid == 0:
            raise RuntimeFault("jobs would run as root: start the agent as an ordinary service account")

    @cached_property
    def _api(self) -> Any:
        return self._connect(PATIENCE_S)

    def _connect(self, patience_s: int) -> Any:
        with translate_errors(f"Docker at {self._url} does not answer"):
            return docker.APIClient(base_url=self._url, version="auto", timeout=patience_s)

    @cached_property
    def _info(self) -> Mapping[str, Any]:
        with translate_errors("cannot ask Docker what it is"):
            info = self._api.info()
            driver = str(info["Driver"])
            facts = {"folder": str(info["DockerRootDir"]), "cpus": int(info["NCPU"]), "runtimes": [*info["Runtimes"]]}
        if driver != "overlay2":
            raise RuntimeFault(f"Docker's storage driver is {driver}: only overlay2 is supported")
        return facts

    def _find_shim(self) -> Path | None:
        try:
            return _shims_folder(self._info["runtimes"])
        except config.Misconfigured as error:
            lacks = "Docker lacks Gleaner's runtime (run glean setup node): only jobs that save themselves run here"
            log.warning(lacks, reason=str(error))
            return None

    def facts(self) -> RuntimeFacts:
        """Return the facts about the engine.

        An engine without the shim, or without experimental features, can run containers but cannot save them.
        """
        with translate_errors("cannot ask Docker what it is"):
            version = self._api.version()
            is_experimental, name = bool(version.get("Experimental")), f"docker {version['Version']}"
            names = [name for image in self._api.images() for name in image["RepoTags"] or ()]
        if not is_experimental:
            log.warning('Docker cannot save containers: put "experimental": true into its daemon.json')
        return RuntimeFacts(
            runtime=name,
            criu=_criu_version(),
            way=Way.SHIM,
            checkpoints=self._handshakes is not None and is_experimental,
            images=tuple(full_name(name) for name in names if name != "<none>:<none>"),
            brings_images=self._images_pull,
        )

    def has_image(self, image_id: str) -> bool:
        try:
            with translate_errors(f"cannot look for the image {image_id}"):
                self._api.inspect_image(image_id)
        except Gone:
            return False
        self._pulled_images.record_use(image_id, now_s=time.time())
        return True

    def pull_image(self, spec: ContainerSpec) -> None:
        """Pull the image by its tag or digest, or else with the tag `latest`. Without a tag, the engine would pull all
        tags."""
        if is_id(spec.image):
            raise ImageMissing(f"the image {spec.image} is not on the node, and an id cannot be pulled: give its name")
        if not self._images_pull:
            raise ImageMissing(f"the image {spec.image} is not on the node, and none is pulled here (images_pull)")
        image = full_name(spec.image)
        doing = f"the image {spec.image} is not on the node and cannot be pulled"
        try:
            with closing(self._connect(_PULL_PATIENCE_S)) as api, translate_errors(doing):
                api.pull(image)
                image_id = str(api.inspect_image(image)["Id"])
        except (Gone, DockerRefusal) as error:
            raise ImageMissing(str(error)) from error
        self._pulled_images.record_pull(image, image_id, now_s=time.time())

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        # It is recorded before it is loaded, because an agent that is killed in between leaves no other trace.
        self._pulled_images.record_pull(image_id, image_id, now_s=time.time())
        doing = f"cannot load the image {image_id}"
        with closing(self._connect(_PULL_PATIENCE_S)) as api, translate_errors(doing):
            errors = [str(line["error"]) for line in api.load_image(archive) if "error" in line]
        if errors:
            refused = NoRoom if _NO_ROOM in errors[0] else ImageRefused
            raise refused(f"Docker does not take the image {image_id}: {' '.join(errors[0].split())}")

    def image_id(self, container: ContainerId) -> str:
        with translate_errors(f"cannot look at {container[:12]}"):
            return str(self._api.inspect_container(container)["Image"])

    def _create(self, spec: ContainerSpec, image: str, *, restored: bool) -> ContainerId:
        self._pulled_images.record_use(image, now_s=time.time())
        asks_for_quota = self._has_quotas  # another thread might find out in the meantime
        try:
            with translate_errors(f"cannot create {spec.name}"):
                host = self._api.create_host_config(network_mode="none", **self._host_options(spec))
                if self._handshakes is not None:  # docker-py does not support annotations
                    host |= {"Runtime": RUNTIME, "Annotations": _annotations(spec, restored=restored)}
                container = ContainerId(str(self._api.create_container(**self._options(spec, image, host))["Id"]))
        except Gone as error:
            raise ImageMissing(f"the image {image} is not on the node") from error
        except DockerRefusal as error:
            line = str(error)
            if "command specified" in line:
                raise ImageRefused(f"the image {spec.image} names no command: name one") from error
            missing = line.partition(_NO_FOLDER)[2]
            if missing in spec.mounts:
                raise MountMissing(f"{missing}: there is no such folder") from error
            if asks_for_quota and "storage-opt" in line:
                log.info("Docker sets no limit of what containers write", reason=line)
                self._has_quotas = False
                return self._create(spec, image, restored=restored)
            raise
        try:
            self._refuse_volumes(container, spec)
            self._attach(container)
        except BaseException:
            with suppress(RuntimeFault):
                self.remove(container)
            raise
        return container

    def _options(self, spec: ContainerSpec, image: str, host: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "name": spec.name,
            "image": image,
            "command": list(spec.command),
            "hostname": "gleaner",  # the same on all nodes, as a restored process keeps it
            "user": f"{self._uid}:{self._gid}",
            "working_dir": FOLDER_IN_CONTAINER,
            "environment": dict(spec.environment),
            "labels": dict(spec.labels),
            "healthcheck": docker.types.Healthcheck(test=["NONE"]),
            "host_config": host,
        }

    def _host_options(self, spec: ContainerSpec) -> Mapping[str, Any]:
        memory_bytes = spec.memory_mib * _MIB
        has_limit = spec.disk_mib is not None and self._has_quotas
        return {
            "binds": _binds(spec),
            "mounts": [_mount(path) for path in spec.mounts],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            # The scheduler can count more CPUs than the machine has, but the engine refuses a limit above that.
            "nano_cpus": min(spec.cpus, self._info["cpus"]) * 10**9,
            "mem_limit": memory_bytes,
            "memswap_limit": memory_bytes,
            "shm_size": memory_bytes,
            "pids_limit": _PIDS,
            "init": self._handshakes is None,  # the engine's own init, if the shim provides none
            "ulimits": [docker.types.Ulimit(name="core", soft=0, hard=0)],
            "storage_opt": {"size": f"{spec.disk_mib}m"} if has_limit else None,
            "log_config": _LOG,
        }

    def _refuse_volumes(self, container: ContainerId, spec: ContainerSpec) -> None:
        """Refuse an image with volumes. Files in a volume are not part of any layer.

        They would be lost at each save, and the job would continue to compute without them.
        """
        with translate_errors(f"cannot look at {container[:12]}"):
            mounts = {str(mount["Destination"]) for mount in self._api.inspect_container(container)["Mounts"]}
        if others := sorted(mounts - {bind["bind"] for bind in _binds(spec).values()} - set(spec.mounts)):
            advice = f"build it without VOLUME, and let it write to {FOLDER_IN_CONTAINER}"
            raise ImageRefused(
                f"the image {spec.image} has a volume at {', '.join(others)}, which cannot be saved: {advice}"
            )

    def _attach(self, container: ContainerId) -> None:
        with translate_errors(f"cannot attach to {container[:12]}"):
            self._attached_outputs[container] = attach(self._api, container, connect_s=PATIENCE_S)

    def _start(self, container: ContainerId, spec: ContainerSpec, *, restored: bool) -> None:
        """Start the container. A restore takes as long as it takes to read the container's memory."""
        with (
            closing(self._connect(LONG_PATIENCE_S if restored else PATIENCE_S)) as api,
            translate_errors(f"cannot start {spec.name}"),
        ):
            api.start(container)

    def _pause(self, container: ContainerId) -> None:
        for is_last in freezing.tries():
            try:
                with translate_errors(f"cannot pause {container[:12]}"):
                    self._api.pause(container)
                return
            except DockerRefusal as error:
                state = self._state(container)
                if not state["Running"]:
                    raise ContainerExited(f"it has ended with exit code {state['ExitCode']}") from error
                if state["Paused"]:
                    return
                if is_last:
                    raise

    def _unpause(self, container: ContainerId) -> None:
        try:
            with translate_errors(f"cannot let {container[:12]} go on"):
                self._api.unpause(container)
        except DockerRefusal:
            if self._state(container)["Paused"]:
                raise

    def _paused_name(self, container: ContainerId) -> str:
        with translate_errors(f"cannot look at {container[:12]}"):
            inspected = self._api.inspect_container(container)
            state, name = inspected["State"], str(inspected["Name"]).strip("/")
            is_ours = inspected["HostConfig"]["Runtime"] == RUNTIME
            is_running, is_paused = bool(state["Running"]), bool(state["Paused"])
        if not is_running:
            raise RuntimeFault(f"{container[:12]} has ended while it was paused: something has killed it")
        if not is_paused:
            raise RuntimeFault(f"{container[:12]} is not paused")
        if not is_ours:
            raise CannotCheckpoint("it does not run with Gleaner's runtime, without which nothing is saved")
        return name

    def _save(self, container: ContainerId) -> None:
        """Ask for a checkpoint. The engine passes the request on to the shim, even if the caller has ended by then."""
        name = f"gleaner-{secrets.token_hex(8)}"
        body = {"CheckpointID": name, "CheckpointDir": "", "Exit": False}
        try:
            with translate_errors(f"cannot save {container[:12]}"):
                patience_s = (PATIENCE_S, LONG_PATIENCE_S)
                request(self._api, "POST", container, "checkpoints", json=body, timeout=patience_s)
        finally:
            with suppress(RuntimeFault), translate_errors(f"cannot delete the checkpoint {name}"):
                request(self._api, "DELETE", container, f"checkpoints/{name}", timeout=PATIENCE_S)

    def _frames(self, container: ContainerId) -> Iterator[bytes]:
        with translate_errors(f"cannot read the output of {container[:12]}"):
            yield from follow(self._api, container, connect_s=PATIENCE_S)

    def live_output(self, container: ContainerId) -> Iterator[tuple[int, bytes]] | None:
        """Return the output from an attached connection, because the engine's log withholds an incomplete line."""
        output = self._attached_outputs.pop(container, None)
        return None if output is None else messages(output)

    def _wait(self, container: ContainerId) -> tuple[End, bool] | None:
        with translate_errors(f"cannot wait for {container[:12]}"):
            try:
                exit_code = int(self._api.wait(container, timeout=PATIENCE_S)["StatusCode"])
            except (requests.ReadTimeout, requests.ConnectionError) as error:
                if isinstance(error, requests.ReadTimeout) or "timed out" in str(error):
                    return None
                raise
        give_up_s = time.monotonic() + _OOM_KNOWN_WITHIN_S
        while not (at_its_limit := bool(self._state(container)["OOMKilled"])) and exit_code != 0:
            if time.monotonic() > give_up_s:
                break
            time.sleep(0.1)
        return End(exit_code, out_of_memory=at_its_limit), at_its_limit

    def _signal(self, container: ContainerId, name: str) -> None:
        try:
            with translate_errors(f"cannot send {name} to {container[:12]}"):
                self._api.kill(container, name)
        except DockerRefusal:
            if self._state(container)["Running"]:
                raise
        else:
            if name == "SIGKILL" and self._wait(container) is None:
                raise RuntimeFault(f"{container[:12]} was killed, and does not end")

    def remove(self, container: ContainerId) -> None:
        """Remove a container, whether it runs, has stopped, or was left half removed.

        If the container does not exist, nothing happens.
        """
        self._attached_outputs.pop(container, None)
        give_up_s = time.monotonic() + _REMOVE_PATIENCE_S
        while True:
            try:
                with translate_errors(f"cannot remove {container[:12]}"):
                    self._api.remove_container(container, force=True, v=True)
            except Gone:
                return
            except DockerRefusal:  # a removal is under way, or a mount is busy for a moment
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.2)

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        with translate_errors("cannot list containers"):
            listed = self._api.containers(all=True, filters={"label": LABEL_AGENT})
            return {ContainerId(str(one["Id"])): dict(one["Labels"]) for one in listed}

    def data_folders(self) -> Sequence[str]:
        return [self._info["folder"]]

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        with (
            suppress(Gone),
            closing(self._connect(_LOOK_PATIENCE_S)) as api,
            translate_errors(f"cannot measure {container[:12]}"),
        ):
            size_bytes = int(request(api, "GET", container, "json", params={"size": 1}).json().get("SizeRw") or 0)
            return DiskUse(size_bytes, count_changes(api, container, most=most_inodes))
        return DiskUse()

    def cached_images(self) -> Sequence[CachedImage]:
        images: list[CachedImage] = []
        for name, pulled in self._pulled_images.read().items():
            image_id, size_bytes = "", 0
            with suppress(Gone), translate_errors("cannot look at images"):
                inspected = self._api.inspect_image(name)
                image_id, size_bytes = str(inspected["Id"]), int(inspected["Size"])
            if image_id == pulled.image_id:
                images.append(CachedImage(name, size_bytes, pulled.used_s))
            elif image_id or pulled.used_s < time.time() - _LOADED_WITHIN_S:
                # It no longer exists, or another program has put a different image under its name.
                self._pulled_images.forget(name)
        return images

    def drop_image(self, name: str) -> bool:
        try:
            with suppress(Gone), translate_errors("cannot remove an image"):
                self._api.remove_image(name)
        except DockerRefusal:  # a container uses it
            return False
        self._pulled_images.forget(name)
        return True

    def _state(self, container: ContainerId) -> Mapping[str, Any]:
        with translate_errors(f"cannot look at {container[:12]}"):
            state = self._api.inspect_container(container)["State"]
            return {name: state[name] for name in ("Running", "Paused", "OOMKilled", "ExitCode")}


def _shims_folder(runtimes: Sequence[str]) -> Path:
    """Return the folder in which this node's shim connects to its agent.

    Raises `Misconfigured` if the shim cannot be used. `runtimes` are those of the engine.
    """
    if RUNTIME not in runtimes:
        raise config.Misconfigured(f"the engine knows no runtime {RUNTIME!r}")
    settings = config.load()
    if settings.agent_uid != os.getuid():
        raise config.Misconfigured(f"the shim works for uid {settings.agent_uid}, and this agent is {os.getuid()}")
    if not os.access(settings.handshakes, os.W_OK | os.X_OK):
        raise config.Misconfigured(f"{settings.handshakes} is not there or not ours: see the install note")
    return Path(settings.handshakes)


def _annotations(spec: ContainerSpec, *, restored: bool) -> Mapping[str, str]:
    """Return the annotations by which the shim recognizes a container.

    When the time in `LABEL_END` has passed, the shim no longer waits for the agent.
    """
    marks = {ANNOTATION_HANDSHAKE: spec.name} | ({ANNOTATION_RESTORE: "yes"} if restored else {})
    return marks | ({ANNOTATION_END: end_s} if (end_s := spec.labels.get(LABEL_END)) else {})


def _binds(spec: ContainerSpec) -> Mapping[str, Mapping[str, str]]:
    """Return the node's folders that the container sees."""
    binds = {str(spec.folder): {"bind": FOLDER_IN_CONTAINER, "mode": "rw"}}
    if spec.inputs is not None:
        binds[str(spec.inputs)] = {"bind": INPUTS_IN_CONTAINER, "mode": "ro"}
    return binds


def _mount(path: str) -> docker.types.Mount:
    """Return a folder of the node as a mount at its own path. The engine does not create a missing folder."""
    mount = docker.types.Mount(path, path, type="bind", read_only=True, propagation="rprivate")
    mount["BindOptions"]["NonRecursive"] = True  # with older engines, mounts below it could be written to
    return mount


def _criu_version() -> str:
    """Return CRIU's version on this node, or "". CRIU is in a folder that is not on an ordinary user's PATH."""
    program = shutil.which("criu", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    return system_programs.version_of_criu(program or "criu", within_s=_CRIU_PATIENCE_S)


if TYPE_CHECKING:
    _: type[Runtime] = DockerRuntime
