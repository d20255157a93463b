"""Control as a client sees it: one app, a clock that the test moves, and callers with tokens of their own."""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import Engine
from starlette.types import ASGIApp

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import Published, checkpoint_key, output_key
from gleaner.control.api.app import create_app
from gleaner.control.api.connections import Patience
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.serving import HttpServer
from gleaner.control.queue import agents, tokens
from gleaner.control.queue.database import transaction
from gleaner.control.settings import ApiSettings, QueueSettings, Settings, StorageSettings

START_S = 1_800_000_000.0
SLICE = {"started_s": START_S, "restore_s": 1.5, "compute_s": 60.0, "save_s": 4.0}
FACTS = {
    "node": "n1",
    "cpus": 8,
    "memory_mib": 16384,
    "runtime": "none",
    "criu": "4.1",
    "kernel": "6",
    "architecture": "x",
    "fetches": ["https", "file"],
}


@dataclass
class Caller:
    """Somebody with a token."""

    client: TestClient
    headers: dict[str, str]
    name: str

    def get(self, path: str, **query: object) -> Response:
        answer: Response = self.client.get(path, params={k: str(v) for k, v in query.items()}, headers=self.headers)
        return answer

    def post(self, path: str, body: object = None) -> Response:
        content = None if body is None else json.dumps(body)  # in ASCII, so that it can say what no UTF-8 can
        headers = self.headers | {"Content-Type": "application/json"}
        answer: Response = self.client.post(path, content=content, headers=headers)
        return answer

    def patch(self, path: str, body: object) -> Response:
        answer: Response = self.client.patch(path, json=body, headers=self.headers)
        return answer

    def submit(self, *, spec: Mapping[str, object] | None = None, **fields: object) -> int:
        """The id of a new job (or of a campaign's first one)."""
        wanted = {"name": "pi", "image": "gleaner/pi", "command": ["run", "{index}"]} | dict(spec or {})
        answer = self.post("/v1/jobs", {"job": wanted} | fields)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["jobs"][0])


@dataclass
class Agent(Caller):
    """An agent's voice."""

    def ask(self, verb: str, body: object) -> Response:
        return self.post(f"/v1/agents/{self.name}/{verb}", body)

    def register(self, node: str = "n1", **facts: object) -> None:
        answer = self.ask("register", {"facts": FACTS | {"node": node} | facts, "end_s": START_S + 3600})
        assert answer.status_code == 200, answer.text

    def claim(self, *, most: int = 1) -> list[dict[str, Any]]:
        answer = self.ask("claim", {"cpus": 8, "memory_mib": 16384, "most": most})
        assert answer.status_code == 200, answer.text
        jobs: list[dict[str, Any]] = answer.json()["jobs"]
        return jobs

    def report(self, job: int, attempt: int, kind: str, body: object) -> Response:
        return self.post(f"/v1/jobs/{job}/attempts/{attempt}/{kind}", body)

    def saved(self, job: int, attempt: int, published: Published, number: int = 1, kind: str = "saved") -> Response:
        checkpoint = {"attempt": attempt, "number": number, "digest": published.digest, "log_lines": 0}
        body = {"checkpoint": checkpoint | {"size_bytes": published.size_bytes}, "slice": SLICE}
        return self.report(job, attempt, kind, body)

    def checkpointed(self, job: int, attempt: int, published: Published, number: int) -> Response:
        return self.saved(job, attempt, published, number, "checkpointed")

    def completed(self, job: int, attempt: int, output: Published | None = None, exit_code: int = 0) -> Response:
        left = None if output is None else {"digest": output.digest, "size_bytes": output.size_bytes}
        return self.report(job, attempt, "completed", {"exit_code": exit_code, "output": left, "slice": SLICE})


@dataclass
class ApiHarness:
    """One control program."""

    state: ControlState
    storage: FolderStorage
    now_s: float = START_S
    names: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.state.clock = lambda: self.now_s
        self.client = TestClient(create_app(self.state), raise_server_exceptions=False)
        self.client.__enter__()
        self.nobody = Caller(self.client, {}, "nobody")
        self.admin = self.caller("admin", "root", None)
        self.user = self.caller("user", "alice", "atlas")

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def change(self, **sections: object) -> None:
        """Put these sections into the settings."""
        self.state.settings = self.state.settings.model_copy(update=sections)

    def reopened(self, **sections: object) -> "ApiHarness":
        """Return the same control, started with these sections in its settings."""
        settings = self.state.settings.model_copy(update=sections)
        return ApiHarness(ControlState(settings, self.state.engine, self.storage, leads_until_s=math.inf), self.storage)

    def caller(self, role: str, name: str, group: str | None) -> Caller:
        """Somebody with a new token."""
        with transaction(self.state.engine) as db:
            secret = tokens.issue(db, role=role, name=name, group=group, now_s=self.now_s)
        return Caller(self.client, {"Authorization": f"Bearer {secret}"}, name)

    def agent(self, node: str = "n1", *, registered: bool = True, **facts: object) -> Agent:
        """A new agent, as the live loop makes it."""
        name, secret = f"agent-{next(self.names)}", tokens.new_secret()
        with transaction(self.state.engine) as db:
            agents.expect(db, name=name, end_s=self.now_s + 3600, token_hash=tokens.digest(secret), now_s=self.now_s)
        made = Agent(self.client, {"Authorization": f"Bearer {secret}"}, name)
        if registered:
            made.register(node, **facts)
        return made

    def publish_checkpoint(self, job: int, attempt: int, number: int = 1) -> Published:
        """A whole checkpoint in storage, as an agent publishes it."""
        with self.storage.draft(checkpoint_key(job, attempt, number)) as draft:
            draft.add("memory.tar", [f"memory of {job}/{attempt}".encode()])
            return draft.publish({})

    def publish_output(self, job: int, attempt: int, content: bytes = b"tar", part: str = "folder.tar") -> Published:
        with self.storage.draft(output_key(job, attempt)) as draft:
            draft.add(part, [content])
            return draft.publish({})


@contextmanager
def control_on(engine: Engine, folder: Path, **sections: Any) -> Iterator[ApiHarness]:
    """Yield control that leads, on this database, with a storage of its own and no cluster seen yet."""
    storage = FolderStorage(folder / "storage")
    storage.prepare()
    url = engine.url.render_as_string(hide_password=False)
    queue = QueueSettings(url=url, secret_key_file=folder / "secrets.key")
    settings = Settings(queue=queue, storage=StorageSettings(folder=folder / "storage"), **sections)
    opened = ApiHarness(ControlState(settings, engine, storage, leads_until_s=math.inf), storage)
    yield opened
    opened.close()
    engine.dispose()


@contextmanager
def served(app: ASGIApp, patience: Patience | None = None, **api: Any) -> Iterator[httpx.Client]:
    """Yield a client of this app on a real port, at a door as control opens it."""
    server = HttpServer(app, ApiSettings(**api), 0, patience)
    running = threading.Thread(target=server.run, args=("a door of a test",))
    running.start()
    scheme = "https" if api.get("certificate") else "http"
    try:
        with httpx.Client(base_url=f"{scheme}://127.0.0.1:{server.address[1]}", timeout=30, verify=False) as client:
            yield client
    finally:
        server.stop()
        running.join()


def detail(answer: Response, status: int) -> str:
    """The one line of a problem."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) == ["detail"]
    line: str = body["detail"]
    assert line
    assert "\n" not in line
    return line
