"""The queue through the HTTP API: the real service on PostgreSQL, and many agents that all ask at once.

The agents speak HTTP over plain sockets, because a client library would take more of the two shared cores than the
service does.
"""

import asyncio
import json
import multiprocessing
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.messages import NodeFacts, Registration
from gleaner.control.daemon.main import run
from gleaner.control.queue import agents, tokens
from gleaner.control.queue.database import transaction
from gleaner.control.settings import (
    ApiSettings,
    QueueSettings,
    Settings,
    StorageSettings,
)

FACTS = NodeFacts(
    node="bench", cpus=64, memory_mib=262_144, runtime="none", criu="4.1", kernel="6.1", architecture="x86_64"
)
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The time of each call, and of all of them together."""

    claims_s: list[float]
    completes_s: list[float]
    elapsed_s: float


def measure(engine: Engine, url: str, *, place: Path, agents_at_once: int, seconds: float) -> Load:
    """Start the service, let all agents claim and complete one job after the other, and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    secrets: dict[str, str] = {}
    with transaction(engine) as db:
        for number in range(agents_at_once):
            name = f"http-{number}"
            secrets[name] = tokens.new_secret()
            agents.expect(db, name=name, end_s=1e10, token_hash=tokens.digest(secrets[name]), now_s=time.time())
            agents.register(db, name, Registration(facts=FACTS, end_s=1e10), lease_s=3600, now_s=time.time())
    context = multiprocessing.get_context("spawn")
    FolderStorage(place / "storage").prepare()
    service = context.Process(target=_serve, args=(url, port, str(place)))
    service.start()
    try:
        return asyncio.run(_load(port, secrets, seconds))
    finally:
        service.terminate()
        service.join()


def _serve(url: str, port: int, place: str) -> None:
    settings = Settings(
        queue=QueueSettings(url=url, lease_s=3600),
        api=ApiSettings(agents_port=port),
        storage=StorageSettings(folder=Path(place) / "storage"),
    )
    run(settings, with_web=False)


async def _load(port: int, secrets: dict[str, str], seconds: float) -> Load:
    await _until_leading(port)
    load = Load([], [], 0.0)
    # Each token is looked up once before the clock starts. The agents connect only afterwards, because the service ends
    # connections on which nothing is said.
    for name, secret in secrets.items():
        voice = await _Voice.connected(port, name, secret)
        await voice.claim_and_complete([], [])
        voice.hang_up()
    voices = [await _Voice.connected(port, name, secret) for name, secret in secrets.items()]
    begun = time.perf_counter()
    await asyncio.gather(*(voice.work(begun + seconds, load) for voice in voices))
    return Load(load.claims_s, load.completes_s, time.perf_counter() - begun)


async def _until_leading(port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            voice = await _Voice.connected(port, "", "")
            health = await voice.exchange("GET", "/health", None)
            if health["leader"]:
                return
        except (OSError, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)
    raise TimeoutError("the service did not come up")


class _Voice:
    """One agent's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, secret: str) -> None:
        self._reader = reader
        self._writer = writer
        self._name = name
        self._secret = secret

    @classmethod
    async def connected(cls, port: int, name: str, secret: str) -> "_Voice":
        return cls(*await asyncio.open_connection("127.0.0.1", port), name, secret)

    def hang_up(self) -> None:
        self._writer.close()

    async def work(self, until: float, load: Load) -> None:
        while time.perf_counter() < until:
            await self.claim_and_complete(load.claims_s, load.completes_s)

    async def claim_and_complete(self, claims_s: list[float], completes_s: list[float]) -> None:
        begun = time.perf_counter()
        ask = {"cpus": 1, "memory_mib": 512, "most": 1}
        answer = await self.exchange("POST", f"/v1/agents/{self._name}/claim", ask)
        claims_s.append(time.perf_counter() - begun)
        for job in answer["jobs"]:
            begun = time.perf_counter()
            report = {"exit_code": 0, "slice": {"started_s": 1.0, "compute_s": 1.0}}
            await self.exchange("POST", f"/v1/jobs/{job['job']}/attempts/{job['attempt']}/completed", report)
            completes_s.append(time.perf_counter() - begun)

    async def exchange(self, method: str, path: str, body: object) -> dict[str, list[dict[str, int]]]:
        content = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self._secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        answer = await self._reader.readexactly(length)
        if status not in {200, 204}:
            raise ConnectionError(f"{method} {path}: {status} {answer.decode()}")
        return json.loads(answer) if answer else {}
