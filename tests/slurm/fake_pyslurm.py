"""Stands in for the module PySlurm, in the same folder as the faked programs of Slurm: it tells of their jobs.

With `away` it fails as PySlurm does without slurmctld, with `hangs` no call is answered, `broken` ends the process as
Slurm's library does, and `built` holds the version of Slurm that it was built for.
"""

import json
import os
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
        os.write(2, b"pyslurm: fatal: Unable to process configuration file\n")
        os._exit(1)


def slurm_api_version() -> tuple[int, ...]:
    told = HERE / "built"
    return tuple(int(part) for part in told.read_text().split(".")) if told.exists() else (25, 11, 0)


def call() -> None:
    if (HERE / "hangs").exists():
        time.sleep(60)
    if (HERE / "away").exists():
        raise RPCError("Unable to contact slurm controller (connect failure)")


def jobs() -> list[dict[str, Any]]:
    path = HERE / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


class Jobs:
    @staticmethod
    def load() -> dict[int, Any]:
        call()
        return {job["id"]: _job(job) for job in jobs()}


def _job(job: dict[str, Any]) -> Any:
    start, end = (None if at == "N/A" else at for at in (job["start"], job["end"]))
    return SimpleNamespace(
        id=job["id"], name=job["name"], user_id=os.getuid(), partition="gleaner", state=job["state"],
        state_reason="None",
        allocated_nodes=job["node"] or None, submit_time=job["submitted"], start_time=start, end_time=end,
    )  # fmt: skip


class Nodes:
    @staticmethod
    def load() -> dict[str, Any]:
        call()
        busy = {job["node"] for job in jobs() if job["state"] == "RUNNING"}
        facts: dict[str, Any] = {"total_cpus": 6, "real_memory": 4000, "partitions": ["gleaner"]}
        states = {name: "ALLOCATED" if name in busy else "IDLE" for name in NODES}
        return {name: SimpleNamespace(name=name, state=state, **facts) for name, state in states.items()}


class Partitions:
    @staticmethod
    def load() -> dict[str, Any]:
        return {"gleaner": SimpleNamespace(name="gleaner", state="UP")}


class _Config:
    version = "25.11.4"

    @staticmethod
    def load() -> "_Config":
        call()
        return _Config()


slurmctld = SimpleNamespace(Config=_Config)
