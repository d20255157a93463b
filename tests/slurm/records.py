"""Slurm's nodes and jobs, as tests of the loops and of the API want them."""

from typing import Any

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
