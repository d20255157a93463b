"""Slurm's nodes and jobs, as tests of the loops and of the API want them, and as Slurm's programs print them."""

from typing import Any

from gleaner.control.slurm.parse import JOB_FIELDS, NODE_FIELDS
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot


def node(name: str = "n1", cpus: int = 6, memory_mib: int = 4000, *states: str, **facts: Any) -> SlurmNode:
    """A node in these states, by default idle, in both partitions that tests use."""
    shown = states or ("IDLE",)
    idle_cpus = cpus if "IDLE" in shown else 0
    given: dict[str, Any] = {
        "name": name, "partitions": frozenset({"gleaner", "shared"}), "states": frozenset(shown), "state": shown[0],
        "cpus": cpus, "idle_cpus": idle_cpus, "memory_mib": memory_mib, "allocated_mib": 0 if idle_cpus else memory_mib,
    }  # fmt: skip
    return SlurmNode(**given | facts)


def agent(name: str, *nodes: str, state: str = "RUNNING", **facts: Any) -> SlurmJob:
    """An agent of ours on these nodes."""
    given: dict[str, Any] = {
        "id": "7", "name": name, "is_own": True, "partitions": ("gleaner",), "states": frozenset({state}),
        "nodes": nodes, "cpus": 6, "memory_mib": 4000, "priority": 1, "submitted_s": 900.0, "start_s": 901.0,
    }  # fmt: skip
    return SlurmJob(**given | facts)


def seen(read_s: float, *nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = ()) -> Snapshot:
    """A snapshot of these nodes and jobs."""
    return Snapshot(read_s, {node.name: node for node in nodes}, jobs)


WORD = "x832a19f6"
"""The word that ends each field in the tables below."""
NODE: dict[str, str] = dict(
    zip(NODE_FIELDS, ("n1", "idle", "0/6/0/6", "4000", "0", "amd,fast", "up", "shared", "root", "none"), strict=True)
)
"""An idle node, as Slurm 24.11 prints it."""
JOB: dict[str, str] = dict(
    zip(
        JOB_FIELDS,
        (
            "7", "PENDING", "physics", "shared", "4", "4", "OK", "", "", "", "cpu=4,mem=2000M,node=1,billing=4", "500",
            "N/A", "N/A", "N/A", "N/A", "0", "0", "1", "1", "JobHeldUser", "(null)", "(null)", "0", "1001", "alice",
            "gleaner: waits for its turn", "(null)", "a name",
        ),
        strict=True,
    )
)  # fmt: skip
"""A job that waits for its turn, as Slurm 24.11 prints it."""


def table(*records: dict[str, str]) -> str:
    """Return what sinfo or squeue print of these nodes or jobs."""
    return "".join("".join(field + WORD for field in record.values()) + "\n" for record in records)


def short_table(*rows: tuple[str, ...]) -> str:
    """Return the same of rows without what is alike in them: who drained a node, what can be done to a job."""
    return "".join("".join(field + WORD for field in _whole(row)) + "\n" for row in rows)


def _whole(row: tuple[str, ...]) -> tuple[str, ...]:
    if len(row) < 10:
        return (*row, "root", "none")
    return (*row[:17], "0", "1", "1", *row[17:22], "alice", *row[22:])
