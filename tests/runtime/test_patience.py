"""The time that an engine may take for a request; against one that is slow, and not Docker's."""

import abc
import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gleaner.agent.privileged.common import freezing
from gleaner.agent.runtime import docker_runtime
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.interface import ContainerId, ContainerSpec, RuntimeFault

SLOW_S = 1.5


class Answers(socketserver.StreamRequestHandler, abc.ABC):
    """An engine, as far as it is needed here."""

    def handle(self) -> None:
        while (line := self.rfile.readline().decode()) != "":
            while self.rfile.readline().strip():
                pass
            path = line.split()[1]
            if path.endswith("/version"):
                self.say("200 OK", '{"ApiVersion": "1.43"}')
            else:
                self.answer(path)

    @abc.abstractmethod
    def answer(self, path: str) -> None:
        """Say what the engine says to a request for this path."""

    def say(self, status: str, content: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write((head + content).encode())


class SlowAnswers(Answers):
    """Slow to start a container, and slower to end one."""

    def answer(self, path: str) -> None:
        if path.endswith("/wait"):
            time.sleep(2 * SLOW_S)
            self.say("200 OK", '{"StatusCode": 137}')
        else:
            time.sleep(SLOW_S if path.endswith("/start") else 0)
            self.say("204 No Content", "")


@contextmanager
def serving(folder: Path, answers: type[Answers]) -> Iterator[str]:
    with socketserver.ThreadingUnixStreamServer(str(folder / "socket"), answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http+unix://{folder}/socket"
        server.shutdown()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path, SlowAnswers) as url:
        yield url


@pytest.mark.slow
def test_a_restore_takes_as_long_as_its_memory_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_runtime, "PATIENCE_S", 1)
    slow = DockerRuntime(url, user=(4200, 4200))
    spec = ContainerSpec("c", "a/b:1", ("true",), {}, cpus=1, memory_mib=100, folder=Path("/nowhere"), labels={})
    slow._start(ContainerId("c"), spec, restored=True)
    with pytest.raises(RuntimeFault, match="timed out"):
        slow._start(ContainerId("c"), spec, restored=False)


def test_a_container_that_does_not_end_was_not_killed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_runtime, "PATIENCE_S", 1)
    with pytest.raises(RuntimeFault, match="does not end"):
        DockerRuntime(url, user=(4200, 4200)).kill(ContainerId("c"))


class HardToPause(Answers):
    """The container runs, and cannot be paused the first two times."""

    tries = 0

    def answer(self, path: str) -> None:
        if path.endswith("/pause"):
            type(self).tries += 1
            failed = ("500 Internal Server Error", '{"message": "unable to freeze"}')
            self.say(*(failed if self.tries <= 2 else ("204 No Content", "")))
        else:
            self.say("200 OK", '{"State": {"Running": true, "Paused": false, "OOMKilled": false, "ExitCode": 0}}')


def test_a_container_that_the_kernel_does_not_stop_in_time_is_paused_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save on a busy node must not fail for that."""
    with serving(tmp_path, HardToPause) as url:
        DockerRuntime(url, user=(4200, 4200)).pause(ContainerId("c"))
        assert HardToPause.tries == 3
        monkeypatch.setattr(freezing, "_WITHIN_S", 0.0)
        HardToPause.tries = 0
        with pytest.raises(RuntimeFault, match="unable to freeze"):
            DockerRuntime(url, user=(4200, 4200)).pause(ContainerId("c"))
        assert HardToPause.tries == 2, "one try may take longer than all are to take"


class Forgetful(Answers):
    """It hangs up when it is first asked to let a container go on."""

    asked: list[str]

    def answer(self, path: str) -> None:
        self.asked.append(path.rpartition("/")[2])
        if self.asked == ["unpause"]:
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.say("204 No Content", "")


def test_what_may_go_on_unknown_to_docker_is_let_go_on_before_it_is_paused_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Docker takes it for paused while it runs, and its save would be of two times."""
    asked: list[str] = []
    monkeypatch.setattr(Forgetful, "asked", asked, raising=False)
    container = ContainerId("c")
    with serving(tmp_path, Forgetful) as url:
        docker = DockerRuntime(url, user=(4200, 4200))
        with pytest.raises(RuntimeFault, match="cannot let c go on"):
            docker.unpause(container)
        docker.pause(container)
        docker.unpause(container)
        docker.pause(container)
    assert asked == ["unpause", "unpause", "pause", "unpause", "pause"]
