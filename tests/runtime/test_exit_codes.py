"""The end of a container, as an engine tells it: a stand-in answers what Docker Engine 26.1 answers."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.interface import ContainerId, ContainerKilled, RuntimeFault

C = ContainerId("c" * 64)


@dataclass
class StandIn:
    """An engine with one ended container, or with none (`exit_code` None)."""

    exit_code: int | None
    out_of_memory: list[bool] = field(default_factory=lambda: [False])
    """The engine's answer on `OOMKilled` at each look; the last answer stays."""
    port: int = 0

    def answer(self, path: str) -> tuple[int, object]:
        if path.endswith("/version"):
            return 200, {"ApiVersion": "1.45", "Version": "26.1.5"}
        if self.exit_code is None:
            return 404, {"message": f"No such container: {C}"}
        if path.endswith("/wait"):
            return 200, {"StatusCode": self.exit_code}
        known = self.out_of_memory.pop(0) if len(self.out_of_memory) > 1 else self.out_of_memory[0]
        return 200, {"State": {"OOMKilled": known, "Running": False, "Paused": False, "ExitCode": self.exit_code}}

    def runtime(self) -> DockerRuntime:
        return DockerRuntime(f"tcp://127.0.0.1:{self.port}", user=(4200, 4200))


@pytest.fixture
def engine() -> Iterator[StandIn]:
    told = StandIn(exit_code=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = told.answer(self.path.partition("?")[0])
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield told
        server.shutdown()


@pytest.mark.parametrize("exit_code", [0, 1, 143])
def test_an_exit_is_the_workloads_own(engine: StandIn, exit_code: int) -> None:
    engine.exit_code = exit_code
    assert engine.runtime().wait(C) == exit_code


@pytest.mark.parametrize("told", [[True], [False, False, True]])
def test_hitting_the_memory_limit_is_the_workloads_own_end_even_if_the_engine_says_so_late(
    engine: StandIn, told: list[bool]
) -> None:
    engine.exit_code, engine.out_of_memory = 137, told
    assert engine.runtime().wait(C) == 137
    assert engine.runtime().was_out_of_memory(C)


@pytest.mark.parametrize("known", [True, False])
def test_a_program_that_ends_after_a_part_of_it_was_killed_says_if_that_was_for_its_memory(
    engine: StandIn, *, known: bool
) -> None:
    engine.exit_code, engine.out_of_memory = 1, [known]
    assert engine.runtime().was_out_of_memory(C) is known


def test_a_process_killed_for_another_reason_was_killed_from_outside(engine: StandIn) -> None:
    engine.exit_code = 137
    with pytest.raises(ContainerKilled, match="killed from outside"):
        engine.runtime().wait(C)


def test_a_container_that_is_gone_was_removed_by_somebody(engine: StandIn) -> None:
    engine.exit_code = None
    with pytest.raises(ContainerKilled, match="removed"):
        engine.runtime().wait(C)
    assert not engine.runtime().was_out_of_memory(C)


def test_an_engine_that_is_away_says_nothing_of_its_containers(engine: StandIn) -> None:
    engine.port = 1
    with pytest.raises(RuntimeFault):
        engine.runtime().wait(C)
