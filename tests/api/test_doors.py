"""The limits of the two doors: no caller keeps another from an answer."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from starlette.types import Receive, Scope, Send
from tests.api.api_harness import ApiHarness, detail, served
from tests.readers.changes import HOPELESS

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.access import largest_body
from gleaner.control.api.app import Door, create_app
from gleaner.control.api.connections import Patience
from gleaner.control.api.storage_threads import WAIT_AT_MOST
from gleaner.control.control_state import STORAGE_THREADS
from gleaner.control.models.jobs import LogPage
from gleaner.control.queue.logs import PAGE_BYTES
from gleaner.control.web.app import with_pages

MOST_COMPLAINTS = 2100
"""A body has complaints for its fields, and not one for each of its items."""


ITEMS = tuple(",".join(item.format(number) for number in range(300_000)) for item in ("{{}}", "null", '"={}":0'))


def _filled(begin: str, items: str, end: str, size_bytes: int) -> bytes:
    """Return JSON of nearly that size."""
    return (begin + items[: size_bytes - len(begin) - len(end)].rpartition(",")[0] + end).encode()


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each field of a body, and for those within it, the JSON that leads to its value."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for name, field in schema.get("properties", {}).items():
        yield f'{{"{name}":'
        for within in _fields(document, field):
            yield f'{{"{name}":{within}'


def _wrong_bodies(document: Mapping[str, Any], schema: Mapping[str, Any], size_bytes: int) -> Iterator[bytes]:
    half = size_bytes // 2
    yield b"[" * half + b"]" * half
    for begin in ("", *_fields(document, schema)):
        end = "}" * begin.count("{")
        yield _filled(f"{begin}[", ITEMS[0], f"]{end}", size_bytes)
        yield _filled(f"{begin}[", ITEMS[1], f"]{end}", size_bytes)
        yield _filled(f"{begin}{{", ITEMS[2], f"}}{end}", size_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("door", Door)
def test_no_route_takes_more_than_its_limit_nor_complains_of_each_item(harness: ApiHarness, door: Door) -> None:
    app = create_app(harness.state, [door])
    document, agent, asked = app.openapi(), harness.agent(), 0
    headers = (harness.admin if door is Door.PEOPLE else agent).headers | {"Content-Type": "application/json"}
    with TestClient(app, raise_server_exceptions=False) as client:
        for template, verbs in document["paths"].items():
            path = re.sub("{[a-z]+}", "1", template).replace("/agents/1/", f"/agents/{agent.name}/")
            path = path.replace("/uploads/1/1", f"/uploads/inputs/sha256:{'0' * 64}?size_bytes=1")
            size_bytes = largest_body(path.partition("?")[0])
            for verb in verbs.keys() - {"get"}:
                too_much = b"0" * (size_bytes + 1)
                for content in (too_much, iter([too_much])):  # its length is declared, or not
                    answer = client.request(verb, path, content=content, headers=headers)
                    if "requestBody" in verbs[verb] or content is too_much:
                        assert "KiB" in detail(answer, 413), path
                schema = verbs[verb].get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
                for body in () if schema is None else (*HOPELESS, *_wrong_bodies(document, schema, size_bytes)):
                    answer = client.request(verb, path, content=body, headers=headers)
                    assert answer.status_code < 500, (path, body[:80], answer.text)
                    more = re.search(r"\(and (\d+) more\)", answer.text)
                    assert more is None or int(more[1]) < MOST_COMPLAINTS, (path, body[:80], answer.text)
                    asked += 1
    assert asked > 50


class Hanging:
    """The database does not answer one kind of question until it is told to."""

    def __init__(self, harness: ApiHarness, words: str) -> None:
        self.asked = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()

        @event.listens_for(harness.state.engine, "before_cursor_execute")
        def hang(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if words in statement:
                self.asked += 1
                self.begun.set()
                assert self.go_on.wait(120)


@contextmanager
def asked(client: httpx.Client, path: str, headers: Mapping[str, str], times: int) -> Iterator[list[int]]:
    """Yield the statuses of so many requests at once, as far as they are answered."""
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=client.base_url, timeout=150, verify=False) as own:
            statuses.append(own.get(path, headers=headers).status_code)

    with ThreadPoolExecutor(times) as pool:
        for _ in range(times):
            pool.submit(ask)
        yield statuses


def test_an_unknown_token_is_not_looked_up_again_at_once(harness: ApiHarness) -> None:
    hanging = Hanging(harness, "FROM token")
    hanging.go_on.set()
    for _ in range(20):
        assert harness.client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert hanging.asked == 1
    harness.now_s += 3
    assert harness.client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert hanging.asked == 2


class HangingStorage(FolderStorage):
    """A storage that answers nothing until it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go_on = threading.Event()

    def open(self, key: str, digest: str) -> Any:
        assert self.go_on.wait(120)
        return super().open(key, digest)


@pytest.mark.slow
def test_a_storage_that_hangs_delays_only_those_who_ask_for_it(harness: ApiHarness) -> None:
    job, agent = harness.user.submit(), harness.agent()
    agent.claim()
    assert agent.completed(job, 1, harness.publish_output(job, 1)).status_code == 204
    path, users = f"/v1/jobs/{job}/output", harness.user.headers
    harness.state.storage = storage = HangingStorage(harness.state.settings.storage.folder)
    with served(create_app(harness.state, [Door.PEOPLE])) as client:
        with asked(client, path, users, STORAGE_THREADS + WAIT_AT_MOST) as statuses:
            try:
                while harness.state.storage_threads.statistics().tasks_waiting < WAIT_AT_MOST:
                    assert client.get("/v1/jobs", headers=users).status_code == 200
                assert "wait for the storage" in detail(client.get(path, headers=users), 503)
            finally:
                storage.go_on.set()
        assert statuses == [200] * (STORAGE_THREADS + WAIT_AT_MOST)


def test_a_page_of_a_log_ends_at_its_size_and_names_the_next_line(harness: ApiHarness) -> None:
    job, agent, line = harness.user.submit(), harness.agent(), "<" * 65_536
    agent.claim()
    for first in (0, 16):
        assert agent.report(job, 1, "log", {"first": first, "lines": [line] * 16}).status_code == 204
    for everything in ({}, {"all": 1}):
        pages: list[LogPage] = []
        following: int | None = 0
        while following is not None:
            answer = harness.user.get(f"/v1/jobs/{job}/log", first=following, limit=10_000, **everything)
            pages.append(LogPage.model_validate(answer.json()))
            assert len(answer.content) < PAGE_BYTES + 100_000
            following = pages[-1].next
        assert [(page.first, len(page.lines)) for page in pages] == [(0, 16), (16, 16)]


HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: control\r\nContent-Length: 100000\r\n"
SHORT = Patience(first_s=0.5, request_s=0.5, answer_s=0.5, idle_s=0.5)


def _connected(client: httpx.Client, at: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60, source_address=(at, 0))


@pytest.mark.parametrize(
    ("begin", "drop"),
    [(b"", b""), (HEAD, b"X: y\r\n"), (HEAD + b"AUTHORIZED\r\n", b" "), (HEAD + b"\r\n", b" "), (b"", b"\r\n"),
     (b"GET /health HTTP/1.1\r\nHost: control\r\n\r\n", b"X")],
    ids=["nothing is said", "a head", "a body", "a body after the refusal", "empty lines", "a second head"],
)  # fmt: skip
def test_a_request_that_dribbles_is_hung_up_on(harness: ApiHarness, begin: bytes, drop: bytes) -> None:
    authorization = f"Authorization: {harness.user.headers['Authorization']}\r\n".encode()
    with served(create_app(harness.state), SHORT) as client, _connected(client) as connection:
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


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=control", "-keyout"]
    subprocess.run([*made, key, "-out", certificate], check=True, capture_output=True, timeout=60)
    return certificate, key


def test_a_tls_handshake_that_never_begins_is_hung_up_on(harness: ApiHarness, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    with served(create_app(harness.state), SHORT, certificate=certificate, key=key) as client:
        with _connected(client) as connection:
            assert connection.recv(1) == b""
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("pieces", [1, 100])
def test_an_answer_that_nobody_reads_is_dropped(pieces: int) -> None:
    size_bytes, ended = 32 * 2**20, threading.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", str(size_bytes).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        piece = b"x" * (size_bytes // pieces)
        for number in range(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": number + 1 < pieces})
        ended.set()

    size_bytes -= size_bytes % pieces
    with served(app, SHORT) as client, _connected(client) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: control\r\n\r\n")
        assert ended.wait(60)
        connection.settimeout(60)
        received = 0
        try:
            while content := connection.recv(2**20):
                received += len(content)
        except ConnectionError:
            pass
        assert received < size_bytes


def test_connections_without_a_request_make_room_for_others_and_those_that_are_answered_stay(
    harness: ApiHarness,
) -> None:
    hanging = Hanging(harness, "FROM agent")
    with served(with_pages(create_app(harness.state)), Patience(first_s=300), connections_at_most=10) as client:
        with asked(client, "/v1/agents", harness.user.headers, 1) as statuses:
            assert hanging.begun.wait(60)
            idle = [_connected(client, f"127.0.0.{2 + number % 8}") for number in range(40)]
            for _ in range(5):
                answer = httpx.get(client.base_url.join("/v1/jobs"), headers=harness.user.headers, timeout=60)
                assert answer.status_code == 200
            hanging.go_on.set()
        assert statuses == [200]
        for connection in idle:
            connection.close()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /health HTTP/1.1\r\nX-Long: ", b"x" * 4096),
        (b"GET /health HTTP/1.1\r\n", b"X-Many: x\r\n" * 400),
        (b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: x\r\n" * 300),
    ],
    ids=["one header", "many headers", "trailers"],
)
def test_a_head_that_never_ends_is_cut_off(harness: ApiHarness, begin: bytes, more: bytes) -> None:
    sent = 0
    with served(create_app(harness.state)) as client, _connected(client) as connection:
        try:
            connection.sendall(begin)
            while sent < 64 * 2**20:
                connection.sendall(more)
                sent += len(more)
        except OSError:
            pass
    assert sent < 64 * 2**20
