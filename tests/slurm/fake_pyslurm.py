"""Stands in for the module `pyslurm` in the child process. For tests without a Slurm.

The folder beside it holds the state: `jobs.json`, and `calls.jsonl` with each submission's facts and the environment.
Its switches: `away` fails as PySlurm does without slurmctld, `stuck` never answers, `mute` takes a submission and then
never answers, `refuse` holds an error of a submission, `broken` ends the process as Slurm's library does,
`chatty` prints, `immortal` lets no job end, and `built` holds another Slurm's version.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
NODES = ("n1", "n2", "n3")
__version__ = "25.11.2"


class RPCError(Exception):
    pass


def slurm_init() -> None:
    if (HERE / "broken").exists():
        print("pyslurm: fatal: Unable to process configuration file", file=sys.stderr)
        os._exit(1)


def slurm_api_version() -> tuple[int, ...]:
    told = HERE / "built"
    return tuple(int(part) for part in told.read_text().split(".")) if told.exists() else (25, 11, 0)


def call() -> None:
    if (HERE / "chatty").exists():
        os.write(1, b'{"said": "what no answer is"}\n')
    if (HERE / "stuck").exists():
        time.sleep(60)
    if (HERE / "away").exists():
        raise RPCError("Unable to contact slurm controller (connect failure)")


def jobs() -> list[dict[str, Any]]:
    path = HERE / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


def save(found: list[dict[str, Any]]) -> None:
    (HERE / "jobs.json").write_text(json.dumps(found))


class Jobs:
    @staticmethod
    def load() -> dict[int, Any]:
        call()
        return {job["id"]: SimpleNamespace(**job) for job in jobs()}


class Nodes:
    @staticmethod
    def load() -> dict[str, Any]:
        call()
        busy = {job["allocated_nodes"] for job in jobs() if job["state"] == "RUNNING"}
        facts: dict[str, Any] = {"total_cpus": 6, "real_memory": 4000, "partitions": ["gleaner"]}
        states = {name: "ALLOCATED" if name in busy else "IDLE" for name in NODES}
        return {name: SimpleNamespace(name=name, state=state, **facts) for name, state in states.items()}


class Job:
    def __init__(self, id_: int) -> None:
        self._id = id_

    def cancel(self) -> None:
        found = jobs()
        for job in found:
            if job["id"] == self._id and not (HERE / "immortal").exists():
                job["state"] = "CANCELLED"
        save(found)
        raise RPCError("an error of another call")


class JobSubmitDescription:
    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def submit(self) -> int:
        call()
        with (HERE / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps({"facts": self._facts, "environment": dict(os.environ)}) + "\n")
        if (HERE / "refuse").exists():
            raise RPCError((HERE / "refuse").read_text())
        if not set(self._facts["excluded_nodes"]) <= set(NODES):
            raise RPCError("Invalid node name specified")
        found, facts, now = jobs(), self._facts, int(time.time())
        taken = {job["allocated_nodes"] for job in found if job["state"] == "RUNNING"} | set(facts["excluded_nodes"])
        node = next(name for name in NODES if name not in taken)
        job = {
            "id": 100 + len(found),
            "name": facts["name"],
            "user_id": os.getuid(),
            "partition": facts["partitions"][0],
        }
        times = {"submit_time": now, "start_time": now, "end_time": now + 60 * facts["time_limit"]}
        save([*found, {**job, **times, "state": "RUNNING", "allocated_nodes": node}])
        if (HERE / "mute").exists():
            time.sleep(60)
        return int(job["id"])


class _Config:
    version = "25.11.4"

    @staticmethod
    def load() -> "_Config":
        call()
        return _Config()


slurmctld = SimpleNamespace(Config=_Config)
