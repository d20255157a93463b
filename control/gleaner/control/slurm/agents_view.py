"""The nodes and our agents as provisioning sees them. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterError, SchedulerId
from gleaner.control.slurm.snapshot import WAITING, SlurmJob, SlurmNode, Snapshot

_PENDING = WAITING | {"CONFIGURING"}
"""No agent runs while its node is being made ready."""
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
"""The states in which a job has processes. STAGE_OUT is none of them: its processes have ended."""


class AgentPhase(StrEnum):
    """The phase of one of our agents, as the scheduler sees it. An agent that the scheduler no longer names is gone."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `idle`: all of it is free now and usable. `planned`: it is free, but kept for a waiting regular job."""

    name: str
    cpus: int
    memory_mib: int
    idle: bool
    planned: bool = False
    state: str = ""
    """The scheduler's own words, for people."""


@dataclass(frozen=True, slots=True)
class QueuedAgent:
    """One of our agents that the scheduler knows. `end_s` is the time at which the scheduler will end it."""

    id: SchedulerId
    name: str
    phase: AgentPhase
    submitted_s: float
    node: str | None = None
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The agents' partition at one instant."""

    read_s: float
    nodes: tuple[Node, ...]
    agents: tuple[QueuedAgent, ...]
    regular_nodes: frozenset[str] = frozenset()
    """Names of the nodes that regular jobs use now."""


def cluster_view(snapshot: Snapshot, partition: str) -> ClusterView:
    """Return the view of the agents' partition. Raises `ClusterError` if the scheduler knows no node there.

    The view has no node if none of the nodes' records can be read.
    """
    found = [node for node in snapshot.nodes.values() if partition in node.partitions]
    if not found and not snapshot.gaps:
        raise ClusterError(f"Slurm knows no node in a partition {partition!r}; see [cluster] partition")
    agents = tuple(
        _agent(job)
        for job in snapshot.jobs
        if job.is_own and partition in job.partitions and job.name.startswith(AGENT_PREFIX)
    )
    our_nodes = {agent.node for agent in agents}
    regular = {node.name for node in found if node.is_used and not node.is_drained and node.name not in our_nodes}
    return ClusterView(snapshot.read_s, tuple(_node(node) for node in found), agents, frozenset(regular))


def agent_phase(job: SlurmJob) -> AgentPhase:
    """Return an agent's phase. An agent in an unknown state, perhaps of a newer Slurm, counts as ending."""
    if job.is_completing:
        return AgentPhase.ENDING
    if job.states & _PENDING:
        return AgentPhase.PENDING
    return AgentPhase.RUNNING if job.states & _RUNNING else AgentPhase.ENDING


def _node(node: SlurmNode) -> Node:
    return Node(node.name, node.cpus, node.memory_mib, node.is_idle, node.is_planned, node.state)


def _agent(job: SlurmJob) -> QueuedAgent:
    phase = agent_phase(job)
    is_placed = phase is not AgentPhase.PENDING
    if job.submitted_s is None:
        raise ClusterError(f"Slurm does not say when job {job.id} was submitted")
    return QueuedAgent(
        id=SchedulerId(job.id),
        name=job.name,
        phase=phase,
        submitted_s=job.submitted_s,
        node=job.nodes[0] if is_placed and job.nodes else None,
        start_s=job.start_s if is_placed else None,
        end_s=job.end_s if is_placed else None,
    )
