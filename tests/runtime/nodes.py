"""The cluster's nodes as the tests of the runtime see them: each with an engine, and a disk of its own.

The tests run outside of the nodes. A node's files, the engine's socket among them, are reached through
`/proc/PID/root` of its first process, which needs root.
"""

import io
import os
import shutil
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import docker
from docker.errors import DockerException, NotFound

from gleaner.agent import folder
from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.lines import Lines
from gleaner.agent.runtime.protocol import LABEL_AGENT, LABEL_END, ContainerId, ContainerSpec
from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.protocol import Published

NAMES = os.environ.get("GLEANER_TEST_NODES", "node1 node2").split()
IMAGE = "gleaner/runtime-test:demo"
AGENT = "runtime-tests"
USER = (4200, 4200)
"""The service account of the nodes' image."""

_OUTER = "unix:///run/gleaner/docker.sock"
_FROM = "gleaner/pi:demo"
_PLACE = Path("/var/lib/gleaner/runtime-tests")


class NoNodes(Exception):
    """A node, or the image that the tests start from, is not there."""


class Node:
    """One node: its runtime, and its engine for what the runtime does not show."""

    def __init__(self, name: str) -> None:
        try:
            outer = docker.APIClient(base_url=_OUTER, version="auto")
            process = outer.inspect_container(name)["State"]["Pid"]
            outer.close()
        except DockerException as error:
            raise NoNodes(f"{name}: {error}") from error
        self.root = Path(f"/proc/{process}/root")
        url = f"unix://{self.root}/run/docker.sock"
        self.runtime = DockerRuntime(url, user=USER)
        self.engine = docker.APIClient(base_url=url, version="auto", timeout=120)

    def clear(self) -> None:
        for container, labels in self.runtime.ours().items():
            if labels[LABEL_AGENT] == AGENT:
                self.runtime.remove(container)
        place = self.outside(_PLACE)
        if place.exists():
            folder.clear(place)

    def outside(self, path: Path) -> Path:
        """A path of the node, from outside of it."""
        return self.root / path.relative_to("/")

    def containers(self) -> list[str]:
        """The names of all containers of these tests."""
        found = self.engine.containers(all=True, filters={"label": f"{LABEL_AGENT}={AGENT}"})
        return sorted(one["Names"][0] for one in found)


class Work:
    """One job, wherever it runs."""

    def __init__(self, storage: FolderStorage) -> None:
        self.storage = storage
        self.job = uuid.uuid4().hex[:8]
        self.lines: list[str] = []
        self.split = Lines()
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
            labels={LABEL_AGENT: AGENT, LABEL_END: str(int(time.time()) + 3600)},
        )

    def folder(self, node: Node) -> Path:
        """The job's folder on a node, from outside."""
        path = node.outside(_PLACE / self.job)
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, *USER)
        return path

    def start(self, node: Node, *command: str, memory_mib: int = 200) -> ContainerId:
        self.folder(node)
        container = node.runtime.start(self.spec(*command, memory_mib=memory_mib))
        self._read(node, container)
        return container

    def save(self, node: Node, container: ContainerId) -> Published:
        """Pause and publish a generation, as the agent does it; the container stays paused."""
        node.runtime.pause(container)
        with self.storage.draft(f"jobs/{self.job}/generation-{uuid.uuid4().hex}") as draft:
            node.runtime.checkpoint(container, draft)
            draft.add("folder.tar", folder.pack(self.folder(node)))
            return draft.publish({"image_id": node.runtime.image_id(container)})

    def end(self, node: Node, container: ContainerId) -> None:
        """Kill and remove it, with all its output read."""
        node.runtime.kill(container)
        self.read_to_end()
        node.runtime.remove(container)

    def restore(self, node: Node, saved: Published, *command: str, memory_mib: int = 200) -> ContainerId:
        """Put the folder back, and let the process go on."""
        parcel = self.storage.open(saved.key, saved.digest)
        place = self.folder(node)
        folder.unpack(parcel.read("folder.tar"), place)
        subprocess.run(["chown", "-hR", f"{USER[0]}:{USER[1]}", str(place)], check=True)
        container = node.runtime.restore(self.spec(*command, memory_mib=memory_mib), parcel)
        self._read(node, container)
        return container

    def until(self, line: str) -> None:
        """Wait until the workload has printed this line."""
        wait_for(lambda: line in self.lines, f"{line!r} in {self.lines[-5:]}")

    def read_to_end(self) -> None:
        assert self._reader is not None
        self._reader.join(60)
        assert not self._reader.is_alive()

    def _read(self, node: Node, container: ContainerId) -> None:
        def read() -> None:
            for line in self.split.of(node.runtime.logs(container)):
                self.lines.append(line)

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()


def wait_for(is_so: Callable[[], bool], what: str, *, timeout_s: float = 60) -> None:
    """Look ten times a second."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def spread_image(nodes: Iterable[Node]) -> None:
    """An image with Python as its entry point and some files for all to write, the same on all nodes.

    Made from the small workload's by committing a container that never ran.
    """
    first, *others = nodes
    try:
        from_id = first.engine.inspect_image(_FROM)["Id"]
    except NotFound as error:
        raise NoNodes(f"{_FROM} is not loaded") from error
    container = first.engine.create_container(_FROM, ["x"], labels={LABEL_AGENT: AGENT})["Id"]
    try:
        first.engine.put_archive(container, "/", _files_for_all())
        changes = ['ENTRYPOINT ["python3", "-u", "-c"]', f"LABEL org.gleaner.from={from_id}"]
        made = first.engine.commit(container, repository=IMAGE, changes=changes)["Id"]
    finally:
        first.engine.remove_container(container)
    for node in others:
        for _ in node.engine.load_image(first.engine.get_image(IMAGE)) or ():
            pass  # it is loaded when the answer has been read
        assert node.engine.inspect_image(IMAGE)["Id"] == made
    for node in (first, *others):
        shutil.rmtree(node.outside(_PLACE), ignore_errors=True)


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
