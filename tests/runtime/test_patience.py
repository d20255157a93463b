"""How long an engine may take for what it is asked; against one that is slow, and not Docker's."""

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gleaner.agent.runtime import engine
from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.engine import LONG_PATIENCE_S, Engine
from gleaner.agent.runtime.protocol import ContainerId, RuntimeFault

SLOW_S = 1.5


class Answers(socketserver.StreamRequestHandler):
    """Slow to start a container, and slower to end one."""

    def handle(self) -> None:
        while (line := self.rfile.readline().decode()) != "":
            while self.rfile.readline().strip():
                pass
            path = line.split()[1]
            if path.endswith("/version"):
                self.say("200 OK", '{"ApiVersion": "1.43"}')
            elif path.endswith("/wait"):
                time.sleep(2 * SLOW_S)
                self.say("200 OK", '{"StatusCode": 137}')
            else:
                time.sleep(SLOW_S if path.endswith("/start") else 0)
                self.say("204 No Content", "")

    def say(self, status: str, content: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write((head + content).encode())


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "socket"), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http+unix://{tmp_path}/socket"
        server.shutdown()


@pytest.mark.slow
def test_a_restore_takes_as_long_as_its_memory_is_read(url: str) -> None:
    slow = Engine(url, patience_s=1)
    slow.start("c", patience_s=LONG_PATIENCE_S)
    with pytest.raises(requests.ReadTimeout):
        slow.start("c", patience_s=1)


def test_a_container_that_does_not_end_was_not_killed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE_S", 1)
    with pytest.raises(RuntimeFault, match="does not end"):
        DockerRuntime(url, user=(4200, 4200)).kill(ContainerId("c"))
