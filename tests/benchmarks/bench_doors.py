"""An agent's heartbeats at the agents' door beside attacks on both doors, in real processes: `make bench-doors`.

It takes a minute and a half. Attackers are a process of their own, which yields to control, as callers elsewhere would.
"""

import multiprocessing
import os
import signal
import socket
import statistics
import sys
import threading
import time
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.api.api_harness import FACTS
from tests.daemon.test_main import Control, until
from tests.databases import new_sqlite

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.queue import agents, tokens
from gleaner.control.queue.database import connect, transaction

LASTS_S = 30.0
EVERY_S = 0.1
CONNECTIONS = 2500
"""More than a door has room for."""


def attack(people: str, agents_door: str, token: str, job: int) -> None:
    """Wrong bodies, unread answers, unknown tokens and idle connections, until it is killed."""
    os.nice(10)
    known = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    wrong = (b'{"job":{' + b",".join(b'"k%d":0' % n for n in range(150_000)) + b"}}", b"[" * 2**20 + b"]" * 2**20)
    numbers = count()

    def asking(base: str, method: str, path: str) -> None:
        while True:
            try:
                with httpx.Client(base_url=base, timeout=30) as client:
                    for _ in range(10):
                        headers = known if base == people else {"Authorization": f"Bearer {next(numbers)}"}
                        client.request(method, path, headers=headers, content=wrong[next(numbers) % 2])
            except httpx.HTTPError:
                pass

    def unread() -> None:
        ask = (
            f"GET /v1/jobs/{job}/log?limit=10000 HTTP/1.1\r\nHost: x\r\nAuthorization: {known['Authorization']}\r\n\r\n"
        )
        while True:
            held = [connected(people) for _ in range(20)]
            for connection in held:
                connection.sendall(ask.encode() * 20)
            time.sleep(20)

    def idle(base: str) -> None:
        held: list[socket.socket] = []
        while True:
            held.append(connected(base))
            time.sleep(0.002)
            if len(held) > CONNECTIONS:
                held.pop(0).close()

    doors = [(people, "POST", "/v1/jobs")] * 8 + [(agents_door, "POST", "/v1/agents/agent-1/beat")] * 4
    threads = [threading.Thread(target=asking, args=door) for door in doors]
    threads += [
        threading.Thread(target=unread),
        *(threading.Thread(target=idle, args=(b,)) for b in (people, agents_door)),
    ]
    for thread in threads:
        thread.start()


def connected(base: str) -> socket.socket:
    """Return a new connection to this door."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), timeout=60)
        except OSError:
            time.sleep(0.1)


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        url = new_sqlite(folder)
        FolderStorage(folder / "storage").prepare()
        secret, engine = tokens.new_secret(), connect(url)
        with transaction(engine) as db:
            now_s = time.time()
            user = tokens.issue(db, role="user", name="alice", group="atlas", now_s=now_s)
            agents.expect(db, name="agent-1", end_s=now_s + 3600, token_hash=tokens.digest(secret), now_s=now_s)
        control = Control(folder, url).start()
        try:
            until(control.leads)
            job = control.ask("POST", "/jobs", user, {"job": {"name": "x", "image": "gleaner/pi"}}).json()["jobs"][0]
            measured(control, secret, user, job)
        finally:
            control.end(signal.SIGTERM)


def measured(control: Control, secret: str, user: str, job: int) -> None:
    """Print how long heartbeats take without attackers, and beside them."""
    voice: dict[str, Any] = {
        "base_url": control.agents_address,
        "headers": {"Authorization": f"Bearer {secret}"},
        "timeout": 60,
    }
    registration = {"facts": FACTS, "end_s": time.time() + 3600}
    claim = {"cpus": 8, "memory_mib": 16384, "most": 1}
    with httpx.Client(**voice) as agent:
        agent.post("/v1/agents/agent-1/register", json=registration).raise_for_status()
        assert agent.post("/v1/agents/agent-1/claim", json=claim).json()["jobs"], "it has the job"
        for first in range(0, 1024, 16):
            lines = {"first": first, "lines": ["<" * 65_536] * 16}
            agent.post(f"/v1/jobs/{job}/attempts/1/log", json=lines).raise_for_status()
    attacker = multiprocessing.Process(target=attack, args=(control.address, control.agents_address, user, job))
    for what in ("alone", "beside attacks"):
        took_s, lost = [], 0
        end_s = time.monotonic() + LASTS_S
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            try:
                with httpx.Client(**voice) as agent:
                    beat = agent.post("/v1/agents/agent-1/beat", json={"attempts": [{"job": job, "attempt": 1}]})
                lost += beat.json()["orders"] != ["go-on"]
            except (httpx.HTTPError, LookupError):
                lost += 1
            took_s.append(time.monotonic() - began_s)
            time.sleep(EVERY_S)
        p99_s = statistics.quantiles(took_s, n=100)[98]
        load = os.getloadavg()[0]
        print(f"{what}: {len(took_s)} heartbeats, median {statistics.median(took_s):.3f} s, 99 % {p99_s:.3f} s,"
              f" most {max(took_s):.3f} s, {lost} failed, load {load:.1f}", flush=True)  # fmt: skip
        if what == "alone":
            attacker.start()
    attacker.kill()
    print("agents:", [(one["name"], one["phase"]) for one in until(lambda: control.ask("GET", "/agents", user).json())])
    print("events:", [one["what"] for one in control.ask("GET", f"/jobs/{job}", user).json()["events"]])


if __name__ == "__main__":
    main()
