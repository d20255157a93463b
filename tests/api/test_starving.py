"""Callers whom nobody knows never take what answers agents: the look-ups hang here until the test lets them go on."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from sqlalchemy import event
from tests.api.api_harness import ApiHarness, served

from gleaner.control.api.app import create_app
from gleaner.control.api.caller_places import STORERS_WAIT, STRANGERS_AT_ONCE, STRANGERS_PER_HOST
from gleaner.control.api.http_protocol import BoundedHead
from gleaner.control.queue import tokens

REQUESTS = 500


class Hanging:
    """The database does not answer one kind of question until it is told to."""

    def __init__(self, harness: ApiHarness, words: str, *, but: str = "never said") -> None:
        self.asked = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()

        @event.listens_for(harness.state.engine, "before_cursor_execute")
        def hang(_c: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
            if words in statement and but not in str(parameters):
                self.asked += 1
                self.begun.set()
                assert self.go_on.wait(120)


@contextmanager
def asked(client: httpx.Client, path: str) -> Iterator[list[int]]:
    """Five hundred requests with a wrong token each, under way; the statuses of those that were answered."""
    statuses: list[int] = []

    def ask(number: int) -> None:
        headers = {"Authorization": f"Bearer wrong-{number}"}
        with httpx.Client(base_url=client.base_url, timeout=150, verify=False) as own:
            statuses.append(own.get(path, headers=headers).status_code)

    with ThreadPoolExecutor(60) as pool:
        for number in range(REQUESTS):
            pool.submit(ask, number)
        yield statuses


@pytest.mark.slow
def test_beats_are_answered_while_the_look_ups_of_500_unknown_tokens_hang(harness: ApiHarness) -> None:
    agent = harness.agent()
    known = tokens.digest(agent.headers["Authorization"].removeprefix("Bearer "))
    hanging = Hanging(harness, "FROM token", but=known)
    with served(harness.state) as client:
        assert client.post(f"/v1/agents/{agent.name}/beat", json={}, headers=agent.headers).status_code == 200
        with asked(client, "/v1/status") as statuses:
            try:
                assert hanging.begun.wait(60)
                while len(statuses) < REQUESTS - STRANGERS_PER_HOST:
                    harness.now_s += 6  # so that the agent's own token is looked up again for each beat
                    beat = client.post(f"/v1/agents/{agent.name}/beat", json={}, headers=agent.headers)
                    assert beat.json()["orders"] == []
                assert client.get("/health").json()["queue"] == "ok"
                assert hanging.asked == STRANGERS_AT_ONCE
                assert set(statuses) == {503}
            finally:
                hanging.go_on.set()
        assert len(statuses) == REQUESTS
        assert statuses.count(401) == STRANGERS_PER_HOST


def test_an_unknown_token_is_not_looked_up_again_at_once(harness: ApiHarness) -> None:
    hanging = Hanging(harness, "FROM token")
    hanging.go_on.set()
    for _ in range(20):
        assert harness.client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert hanging.asked == 1
    harness.now_s += 3
    assert harness.client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert hanging.asked == 2


@pytest.mark.slow
def test_beats_are_answered_while_500_ask_for_the_health_of_a_database_that_hangs(harness: ApiHarness) -> None:
    agent = harness.agent()
    hanging = Hanging(harness, "FROM leader")
    with served(harness.state) as client:
        with asked(client, "/health") as statuses:
            try:
                assert hanging.begun.wait(60)
                while len(statuses) < 60:
                    beat = client.post(f"/v1/agents/{agent.name}/beat", json={}, headers=agent.headers)
                    assert beat.status_code == 200
                assert hanging.asked == 1
                assert set(statuses) == {503}
                assert "has not answered" in client.get("/health").json()["queue"]
            finally:
                hanging.go_on.set()
        assert client.get("/health").json()["queue"] == "ok"


@pytest.mark.slow
def test_beats_are_answered_while_many_wait_for_their_turn_to_store(harness: ApiHarness) -> None:
    agent = harness.agent()
    content = f"sha256:{'0' * 64}"
    body = {"content": content, "size_bytes": 1}
    statuses: list[int] = []
    with served(harness.state) as client, ThreadPoolExecutor(STORERS_WAIT + 2) as pool:

        def put() -> None:
            with httpx.Client(base_url=client.base_url, timeout=150, verify=False) as own:
                statuses.append(own.post("/v1/inputs", json=body, headers=harness.user.headers).status_code)

        with harness.state.images_turn:
            for _ in range(STORERS_WAIT + 1):
                pool.submit(put)
            while not statuses:
                beat = client.post(f"/v1/agents/{agent.name}/beat", json={}, headers=agent.headers)
                assert beat.status_code == 200
            assert statuses == [503]
    assert statuses.count(503) == 1
    assert len(set(statuses)) == 2


@contextmanager
def listening(harness: ApiHarness, *, request_s: float = 60, per_host: int = 256) -> Iterator[tuple[str, int]]:
    protocol = BoundedHead.bounded(request_s=request_s, per_host=per_host)
    config = uvicorn.Config(create_app(harness.state), http=protocol, port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run)
    running.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        running.join()


HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: control\r\nContent-Length: 100000\r\n"


@pytest.mark.parametrize(
    ("begin", "drop"),
    [(b"", b""), (HEAD, b"X: y\r\n"), (HEAD + b"AUTHORIZED\r\n", b" "), (HEAD + b"\r\n", b" "), (b"", b"\r\n")],
    ids=["nothing is said", "a head", "a body", "a body after the refusal", "empty lines"],
)
def test_a_request_that_dribbles_is_hung_up_on(harness: ApiHarness, begin: bytes, drop: bytes) -> None:
    authorization = f"Authorization: {harness.user.headers['Authorization']}\r\n".encode()
    with listening(harness, request_s=0.5) as address, socket.create_connection(address, timeout=60) as connection:
        connection.sendall(begin.replace(b"AUTHORIZED\r\n", authorization + b"\r\n"))
        connection.settimeout(0.05)
        while True:
            try:
                if drop:
                    connection.sendall(drop)
                if not connection.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break  # it was hung up while something was on the way


def test_empty_lines_after_an_answer_do_not_keep_a_connection(harness: ApiHarness) -> None:
    with listening(harness, request_s=0.5) as address, socket.create_connection(address, timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: control\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.settimeout(0.05)
        while True:
            try:
                connection.sendall(b"\r\n")
                if not connection.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break


def test_one_host_has_only_so_many_connections(harness: ApiHarness) -> None:
    with listening(harness, per_host=2) as address:
        first, second = (socket.create_connection(address, timeout=60) for _ in range(2))
        for connection in (first, second):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: control\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        with socket.create_connection(address, timeout=60) as third:
            assert third.recv(1) == b""
        for connection in (first, second):
            connection.close()
