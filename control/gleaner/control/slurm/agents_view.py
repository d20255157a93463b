"""The part of a snapshot that provisioning uses: the agents' partition, and our agents there. This module is pure."""

from collections.abc import Collection
from dataclasses import replace

from gleaner.control.policy.node_time import Use
from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterError
from gleaner.control.slurm.snapshot import WAITING, JobPhase, SlurmJob, SlurmNode, Snapshot

_PENDING = WAITING | {"CONFIGURING"}
"""In this state the node is still being configured, so the agent does not run yet."""
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
"""The states in which a job has processes. STAGE_OUT is not one of them, because the processes have ended by then."""


def agents_view(snapshot: Snapshot, partition: str) -> Snapshot:
    """Return the nodes of the agents' partition and our agents. Raises `ClusterError` if Slurm knows no node there.

    The view has no nodes if the records of all nodes are unreadable.
    """
    nodes = {node.name: node for node in snapshot.nodes.values() if partition in node.partitions}
    if not nodes and not snapshot.gaps:
        raise ClusterError(f"Slurm knows no node in a partition {partition!r}; see [cluster] partition")
    agents = (
        job for job in snapshot.jobs if job.is_own and partition in job.partitions and job.name.startswith(AGENT_PREFIX)
    )
    return replace(snapshot, nodes=nodes, jobs=tuple(agents))


def agent_phase(agent: SlurmJob) -> JobPhase:
    """Return an agent's phase. An agent in an unknown state, which a newer Slurm might have, counts as ending."""
    if agent.is_completing:
        return JobPhase.ENDING
    if agent.states & _PENDING:
        return JobPhase.PENDING
    return JobPhase.RUNNING if agent.states & _RUNNING else JobPhase.ENDING


def regular_nodes(view: Snapshot) -> frozenset[str]:
    """Return the names of the nodes in an `agents_view` that regular jobs use."""
    ours = {node for agent in view.jobs for node in agent.nodes}
    return frozenset(node.name for node in view.nodes.values() if node.is_used and not node.is_drained) - ours


def kill_switch(view: Snapshot, partition: str) -> str:
    """Return a line of text if the agents' partition is closed, so that Slurm starts no jobs there, or "" if it is
    up."""
    state = view.closed.get(partition)
    cure = f"`scontrol update PartitionName={partition} State=UP` opens it"
    return f"the partition {partition} is {state.upper()}, so no agent starts: {cure}" if state else ""


def waits_for(view: Snapshot) -> str:
    """Return, in brackets, the reasons why agents wait and the number of nodes that are planned for others, or "" if
    unknown."""
    reasons = sorted({agent.reason for agent in view.jobs if agent_phase(agent) is JobPhase.PENDING} - {"", "None"})
    idle = [node for node in view.nodes.values() if node.is_idle]
    planned = sum(node.is_planned for node in idle)
    plan = [f"{planned} of {len(idle)} idle nodes are planned for other jobs"] if planned else []
    return f" ({'; '.join([*reasons, *plan])})" if reasons or plan else ""


def node_uses(view: Snapshot, *, with_jobs: Collection[str]) -> dict[str, Use]:
    """Return the use of each node in an `agents_view`. `with_jobs` are the nodes whose agents have jobs."""
    agents = {node for agent in view.jobs for node in agent.nodes}
    regular = regular_nodes(view)

    def use(node: SlurmNode) -> Use:
        if node.name in agents:
            return Use.HARVESTED if node.name in with_jobs else Use.AGENT
        if node.name in regular:
            return Use.REGULAR
        return Use.IDLE if node.is_idle else Use.UNUSABLE

    return {name: use(node) for name, node in sorted(view.nodes.items())}
