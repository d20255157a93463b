"""Node containers (tests/suite/node_containers.py): each has an engine, and a disk of its own.

The tests run outside of the nodes. A node's files, the engine's socket among them, are reached through
`/proc/PID/root` of its first process, which needs root.
"""

import dataclasses
import io
import os
import platform
import shutil
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import docker
from demo import nsenter
from docker.errors import DockerException, NotFound
from tests.runtime.account_harness import AsAccount
from tests.runtime.kinds.kind import Versions
from tests.suite import node_containers

from gleaner.agent.checkpoints import workdir_tar as folder
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import Published
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.reporting.output_lines import OutputLines
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.helper_runtime import RuncRuntime
from gleaner.agent.runtime.interface import LABEL_AGENT, LABEL_END, ContainerId, ContainerSpec

NAMES = os.environ.get("GLEANER_TEST_NODES", " ".join(node_containers.NAMES)).split()
IMAGE = "gleaner/runtime-test:demo"
AGENT = "runtime-tests"
RESTORES_LAZILY = not os.environ.get("GLEANER_TEST_EAGERLY")
"""With this variable, no test with nodes lets restored jobs run before all their memory is there."""
USER = (4200, 4200)
"""The service account of the nodes' image."""

_FROM = "gleaner/pi:demo"
_PLACE = Path("/var/lib/gleaner/runtime-tests")


class NoNodes(Exception):
    """A node, or the image that the tests start from, is not there."""


class Node:
    """One node: a runtime of one kind, and what the runtime does not show.

    Kinds: `shim`, Docker with the OCI runtime shim; `criu`, the node helper. The
    engine is there with each of them; with `criu` the tests only make images with it.
    """

    def __init__(self, name: str, kind: str = "shim") -> None:
        self.name, self.kind = name, kind
        try:
            outer = docker.APIClient(base_url=nsenter.SOCKET, version="auto")
            process = outer.inspect_container(name)["State"]["Pid"]
            outer.close()
        except DockerException as error:
            raise NoNodes(f"{name}: {error}") from error
        self.root = Path(f"/proc/{process}/root")
        self.url = f"unix://{self.root}/run/docker.sock"
        self.runtime = _runtime(kind, self.url, self.root)
        self.engine = docker.APIClient(base_url=self.url, version="auto", timeout=120)

    def clear(self) -> None:
        for container, labels in self.runtime.our_containers().items():
            if labels[LABEL_AGENT] == AGENT:
                self.runtime.remove(container)
        place = self.outside(_PLACE)
        if place.exists():
            folder.clear(place)
            place.chmod(0o755)

    def outside(self, path: Path) -> Path:
        """A path of the node, from outside of it."""
        return self.root / path.relative_to("/")

    @property
    def versions(self) -> Versions:
        """The versions that decide which kinds of processes are saved here."""
        has_freezer = self.outside(Path("/sys/fs/cgroup/freezer")).is_dir()
        return Versions(platform.release(), self.run("criu", "--version"), cgroups=1 if has_freezer else 2)

    def containers(self) -> list[str]:
        """The names of all containers of these tests."""
        if self.kind == "criu":
            return sorted(
                name for name, labels in self.runtime.our_containers().items() if labels[LABEL_AGENT] == AGENT
            )
        found = self.engine.containers(all=True, filters={"label": f"{LABEL_AGENT}={AGENT}"})
        return sorted(one["Names"][0] for one in found)

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command as root inside the node; what it printed."""
        return subprocess.run(nsenter.words(self.name, *words), capture_output=True, text=True, check=check).stdout

    def switch_on(self) -> None:
        """Start a node that has ended, as it does when its engine ends. Whoever called waits until it answers."""
        subprocess.run([*nsenter.OUTER, "start", self.name], capture_output=True, check=True, timeout=120)

    def remove_behind(self, container: ContainerId) -> None:
        """Remove a container as somebody else would."""
        if self.kind == "criu":
            Node(self.name, "criu").runtime.remove(container)
        else:
            self.engine.remove_container(container, force=True)

    def image(self, name: str, entry_point: str) -> str:
        """Make an image with nothing in it but a file that is no program, `/open/no-program`; return its id."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo("open/no-program")
            member.mode = 0o644
            tar.addfile(member)
        repository, _, tag = name.partition(":")
        changes = [f'ENTRYPOINT ["{entry_point}"]', "ENV PATH=/bin"]
        self.engine.import_image_from_data(archive.getvalue(), repository=repository, tag=tag, changes=changes)
        if self.kind == "criu":
            self.import_image(name)
        return self.image_id(name)

    def image_id(self, name: str) -> str:
        return str(self.engine.inspect_image(name)["Id"])  # type: ignore[no-untyped-call]

    def import_image(self, name: str) -> None:
        """Have the helper unpack an image of the engine's."""
        archive = self.outside(Path("/tmp/image.tar"))
        with archive.open("wb") as file:
            for chunk in self.engine.get_image(name):
                file.write(chunk)
        self.run("gleaner-helper", "import", name, "/tmp/image.tar")
        archive.unlink()

    def remove_image(self, name: str) -> None:
        self.engine.remove_image(name, force=True)
        if self.kind == "criu":
            self.run("gleaner-helper", "forget", name)


def _runtime(kind: str, url: str, root: Path) -> Any:
    settings = Config(
        agent_uid=USER[0],
        handshakes=f"{root}{Config(1).handshakes}",
        helper_socket=f"{root}{Config(1).helper_socket}",
    )
    if kind == "criu":

        def of_helper() -> "_SeenFromOutside":
            runtime = RuncRuntime.of_agent(settings)
            runtime.restores_lazily = RESTORES_LAZILY
            return _SeenFromOutside(runtime, root)

        return AsAccount(of_helper, USER)

    def shimmed() -> DockerRuntime:
        made = _DockerSeenFromOutside(url)
        made.root = root
        made.restores_lazily = RESTORES_LAZILY
        vars(made)["_handshakes"] = Path(settings.handshakes)
        return made

    return AsAccount(shimmed, USER)


class _DockerSeenFromOutside(DockerRuntime):
    """A runtime that finds the jobs' folders below `root`, where the engine finds them by their paths."""

    root: Path

    def _take_inits_line(self, folder: Path) -> str:
        return super()._take_inits_line(self.root / folder.relative_to("/"))


class _SeenFromOutside:
    """A runtime that opens the jobs' folders itself, where an engine is given their paths."""

    def __init__(self, runtime: RuncRuntime, root: Path) -> None:
        self._runtime, self._root = runtime, root

    def start(self, spec: ContainerSpec) -> ContainerId:
        return self._runtime.start(self._outside(spec))

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        return self._runtime.restore(self._outside(spec), archive)

    def _outside(self, spec: ContainerSpec) -> ContainerSpec:
        inputs = None if spec.inputs is None else self._root / spec.inputs.relative_to("/")
        return dataclasses.replace(spec, folder=self._root / spec.folder.relative_to("/"), inputs=inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class Work:
    """One job, wherever it runs."""

    owner = USER
    """Whose the files in its folder are."""

    def __init__(self, storage: FolderStorage) -> None:
        self.storage = storage
        self.job = uuid.uuid4().hex[:8]
        self.lines: list[str] = []
        self.split = OutputLines()
        self.inputs: Path | None = None
        """The folder with its inputs on every node, if it has any."""
        self.mounts: tuple[str, ...] = ()
        self._starts = 0
        self._reader: threading.Thread | None = None

    def spec(self, *command: str, memory_mib: int = 200, image: str = IMAGE) -> ContainerSpec:
        self._starts += 1
        return ContainerSpec(
            name=f"gleaner-test-{self.job}-{self._starts}",
            image=image,
            command=command,
            environment={"GREETING": "hello"},
            cpus=1,
            memory_mib=memory_mib,
            folder=_PLACE / self.job,
            labels=our_labels(),
            inputs=self.inputs,
            mounts=self.mounts,
        )

    def bring(self, node: Node, **files: str) -> Path:
        """Put these inputs on a node. Return their folder, from outside."""
        self.inputs = _PLACE / f"inputs-{self.job}"
        path = node.outside(self.inputs)
        path.mkdir(mode=0o700)
        for name, content in files.items():
            (path / name).write_text(content)
            os.chown(path / name, *self.owner)
        os.chown(path, *self.owner)
        return path

    def folder(self, node: Node) -> Path:
        """The job's folder on a node, from outside."""
        path = node.outside(_PLACE / self.job)
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, *USER)
        return path

    def start(self, node: Node, *command: str, memory_mib: int = 200, image: str = IMAGE) -> ContainerId:
        self.folder(node)
        container: ContainerId = node.runtime.start(self.spec(*command, memory_mib=memory_mib, image=image))
        self._read(node, container)
        return container

    def save(self, node: Node, container: ContainerId) -> Published:
        """Pause and publish a checkpoint, as the agent does it; the container stays paused."""
        node.runtime.pause(container)
        with self.storage.draft(f"jobs/{self.job}/checkpoint-{uuid.uuid4().hex}") as draft:
            node.runtime.checkpoint(container, draft)
            draft.add("folder.tar", folder.pack(self.folder(node)))
            return draft.publish({"image_id": node.runtime.image_id(container)})

    def end(self, node: Node, container: ContainerId) -> None:
        """Kill and remove it, with all its output read."""
        node.runtime.kill(container)
        self.read_to_end()
        node.runtime.remove(container)

    def restore(
        self, node: Node, saved: Published, *command: str, memory_mib: int = 200, image: str = IMAGE
    ) -> ContainerId:
        """Put the folder back, and let the process go on."""
        archive = self.storage.open(saved.key, saved.digest)
        place = self.folder(node)
        folder.unpack(archive.read("folder.tar"), place)
        subprocess.run(["chown", "-hR", f"{self.owner[0]}:{self.owner[1]}", str(place)], check=True)
        container: ContainerId = node.runtime.restore(self.spec(*command, memory_mib=memory_mib, image=image), archive)
        self._read(node, container)
        return container

    def until(self, line: str) -> None:
        """Wait until the workload has printed this line."""
        wait_for(lambda: line in self.lines, f"{line!r} in {self.lines[-5:]}")

    def read_to_end(self) -> None:
        assert self._reader is not None
        self._reader.join(180)
        assert not self._reader.is_alive()

    def _read(self, node: Node, container: ContainerId) -> None:
        def read() -> None:
            for line in self.split.of(node.runtime.logs(container)):
                self.lines.append(line)

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()


def our_labels(end_s: float = 3600) -> dict[str, str]:
    """Return the labels of a container of these tests. Its agent ends in `end_s` seconds; without an end the node's
    watchdog would remove it at once."""
    return {LABEL_AGENT: AGENT, LABEL_END: str(int(time.time() + end_s))}


def wait_for(is_so: Callable[[], bool], what: str, *, timeout_s: float = 180) -> None:
    """Look ten times a second."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def spread_image(nodes: Iterable[Node]) -> None:
    """An image with Python as its entry point and some files for all to write, the same on all nodes.

    Made from the small workload's by committing a container that never ran.
    """
    nodes = list(nodes)
    first, *others = nodes
    try:
        from_id = first.engine.inspect_image(_FROM)["Id"]  # type: ignore[no-untyped-call]
    except NotFound as error:
        raise NoNodes(f"{_FROM} is not loaded") from error
    container = first.engine.create_container(_FROM, ["x"], labels=our_labels())["Id"]
    try:
        first.engine.put_archive(container, "/", _files_for_all())
        changes = ['ENTRYPOINT ["python3", "-u", "-c"]', f"LABEL org.gleaner.from={from_id}"]
        made = first.engine.commit(container, repository=IMAGE, changes=changes)["Id"]
    finally:
        first.engine.remove_container(container)
    for node in others:
        for _ in node.engine.load_image(first.engine.get_image(IMAGE)) or ():  # type: ignore[no-untyped-call]
            pass  # it is loaded when the answer has been read
        assert node.engine.inspect_image(IMAGE)["Id"] == made  # type: ignore[no-untyped-call]
    for node in (first, *others):
        if node.kind == "criu":
            node.import_image(IMAGE)
        place = node.outside(_PLACE)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        place.chmod(0o755)


def _files_for_all() -> bytes:
    """A folder `/open` in which everybody may delete: /open/two, /open/inner/one, /open/inner/sub/three."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("open", "open/inner", "open/inner/sub"):
            made = tarfile.TarInfo(name)
            made.type, made.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(made)
        for name in ("open/two", "open/inner/one", "open/inner/sub/three", "open/no-program"):
            made = tarfile.TarInfo(name)
            made.mode, made.size = 0o666, 8
            archive.addfile(made, io.BytesIO(b"content\n"))
    return packed.getvalue()
