"""Docker Engine may answer anything: the runtime raises nothing but its own errors."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.runtime import core
from gleaner.agent.runtime.criu_streams import DESCRIPTORS_PART
from gleaner.agent.runtime.docker_runtime import RUNTIME, DockerRuntime
from gleaner.agent.runtime.interface import (
    CannotCheckpoint,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    RuntimeFault,
)

OWN = (CannotCheckpoint, RuntimeFault, ImageMissing, ImageRefused, ContainerExited, ContainerKilled)
VERSION = {"Version": "26.1.5", "ApiVersion": "1.45", "Experimental": True}
STATE = {"Running": False, "Paused": False, "OOMKilled": True, "ExitCode": 0}
SPEC = ContainerSpec("c", "a/b:1", ("true",), {}, cpus=1, memory_mib=100, folder=Path("/nowhere"), labels={})
C = ContainerId("c")
CALLS: dict[str, Callable[[DockerRuntime], object]] = {
    "facts": lambda docker: docker.facts(),
    "start": lambda docker: docker.start(SPEC),
    "has_image": lambda docker: docker.has_image("sha256:1"),
    "load_image": lambda docker: docker.load_image("sha256:1", iter([b"archive"])),
    "image_id": lambda docker: docker.image_id(C),
    "pause": lambda docker: docker.pause(C),
    "logs": lambda docker: list(docker.logs(C)),
    "wait": lambda docker: docker.wait(C),
    "ours": lambda docker: docker.our_containers(),
    "places": lambda docker: docker.data_folders(),
    "written": lambda docker: docker.disk_use(C, most_inodes=100),
    "signal": lambda docker: docker.signal(C, "SIGTERM"),
    "kill": lambda docker: docker.kill(C),
    "unpause": lambda docker: docker.unpause(C),
    "live": lambda docker: docker.live_output(C),
    "checkpoint": lambda docker: docker.checkpoint(C, cast("FolderDraft", None)),
}


@dataclass
class AnyEngine:
    """An engine that tells its version as it should, and answers all else with the same bytes."""

    url: str
    body: bytes = b""
    status: int = 200


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyEngine]:
    path = tmp_path_factory.mktemp("engine") / "s"
    found = AnyEngine(f"unix://{path}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = self.headers.get("Content-Length")
            if length is not None:
                self.rfile.read(int(length))
            body = json.dumps(VERSION).encode() if self.path == "/version" else found.body
            gone = 404 if self.command == "DELETE" else found.status  # else a container is removed for ever
            self.send_response(200 if self.path == "/version" else gone)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")  # a body that was not read must not be taken for a request
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = answer

        def address_string(self) -> str:
            return "engine"

        def log_message(self, *_: object) -> None:
            return

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return

    with Server(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"Id": ' + b"9" * 5000 + b"}", b"\xff" * 100, b'"\\ud800"'])
def test_no_hopeless_answer_does(engine: AnyEngine, call: str, body: bytes) -> None:
    engine.body, engine.status = body, 200
    attempt(engine, call)


def attempt(engine: AnyEngine, call: str) -> None:
    docker = DockerRuntime(engine.url, user=(1, 1))
    try:
        CALLS[call](docker)
    except OWN as error:
        assert "\n" not in str(error)


SAVED = VERSION | {
    "Driver": "overlay2",
    "DockerRootDir": "/nowhere",
    "NCPU": 2,
    "Runtimes": {"runc": {}},
    "SizeRw": 7,
    "Id": "c",
    "Mounts": [{"Destination": "/job"}],
    "Name": "/c",
    "State": STATE | {"Running": True, "Paused": True},
    "HostConfig": {"Runtime": RUNTIME},
}


@pytest.mark.parametrize("bug", [KeyError("size"), TypeError("no number")])
def test_an_error_of_our_own_in_a_save_or_a_restore_is_no_fault_of_the_engine(
    engine: AnyEngine, bug: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a fault of the node, it would cost nodes and be seen by nobody."""

    def broken(*_: object) -> None:
        raise bug

    monkeypatch.setattr(core, "during_handshake", broken)
    docker = DockerRuntime(engine.url, user=(1, 1))
    vars(docker)["_handshakes"] = Path("/nowhere")
    engine.body, engine.status = json.dumps(SAVED).encode(), 200
    with pytest.raises(type(bug)):
        docker.checkpoint(C, cast("FolderDraft", None))
    with pytest.raises(type(bug)):
        docker.restore(SPEC, cast("FolderArchive", SimpleNamespace(parts=[DESCRIPTORS_PART], facts={})))


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing that the engine may learn a moment later."""
    monkeypatch.setattr("gleaner.agent.runtime.docker_runtime._OOM_KNOWN_WITHIN_S", 0.0)
