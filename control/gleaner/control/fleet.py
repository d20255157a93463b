"""What the queue and the scheduler say of the agents, brought together. Pure: values in, values out.

Neither is believed blindly. An agent that the scheduler no longer names has lost its node, but if it has
registered, its lease is waited out: "gone" for the scheduler is not yet "dead". One that never registered has
nothing to lose, and is closed at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gleaner.control.cluster.gateway import AgentPhase, ClusterView, QueuedAgent, SchedulerId
from gleaner.control.policy.room import NOTHING, Room
from gleaner.control.policy.rounds import IdleNode, PendingAgent, RunningAgent
from gleaner.control.queue.rooms import AgentHere
from gleaner.control.queue.tables import Phase


@dataclass(frozen=True, slots=True)
class Unstarted:
    """An agent that is gone and never registered. `node`: where it died, if that speaks against the node."""

    name: str
    reason: str
    node: str | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What to record and to withdraw, and the agents as the planner sees them."""

    found: tuple[tuple[str, SchedulerId], ...]
    """Agents whose submission was never answered, or never recorded, and that are there."""
    unstarted: tuple[Unstarted, ...]
    vanished: tuple[str, ...]
    """Silent agents that the scheduler no longer names."""
    useless: tuple[SchedulerId, ...]
    """Pending for the scheduler, closed for us: their tokens are worth nothing."""
    pending: tuple[PendingAgent, ...]
    running: tuple[RunningAgent, ...]


def fleet(
    here: Collection[AgentHere],
    view: ClusterView,
    *,
    closed: Collection[str],
    ran_on: Mapping[str, str],
    doubt_s: float,
) -> Fleet:
    """Bring both together, as of the view.

    `closed` are names in the view whose agents have ended for us; `ran_on` says where agents were last seen
    running; an agent whose submission was never answered may still turn up for `doubt_s`.
    """
    seen = {agent.name: agent for agent in view.agents}
    missing = [agent for agent in here if agent.name not in seen]
    in_doubt = [
        agent
        for agent in missing
        if agent.phase is Phase.SUBMITTED and agent.scheduler_id is None and view.read_s - agent.submitted_s < doubt_s
    ]
    by_name = {agent.name: agent for agent in here}
    free_nodes = {node.name: Room(node.cpus, node.memory_mib) for node in view.nodes}
    return Fleet(
        found=tuple((a.name, seen[a.name].id) for a in here if a.scheduler_id is None and a.name in seen),
        unstarted=tuple(
            _unstarted(agent, ran_on.get(agent.name), view)
            for agent in missing
            if agent.phase is Phase.SUBMITTED and agent not in in_doubt
        ),
        vanished=tuple(agent.name for agent in missing if agent.phase is Phase.SILENT),
        useless=tuple(a.id for a in view.agents if a.phase is AgentPhase.PENDING and a.name in closed),
        pending=tuple(
            [
                PendingAgent(a.name, a.submitted_s, by_name[a.name].end_s)
                for a in view.agents
                if a.phase is AgentPhase.PENDING and a.name in by_name
            ]
            + [PendingAgent(agent.name, agent.submitted_s, agent.end_s) for agent in in_doubt]
        ),
        running=tuple(
            _running(agent, by_name.get(agent.name), free_nodes)
            for agent in view.agents
            if agent.phase is not AgentPhase.PENDING
        ),
    )


def idle_nodes(view: ClusterView) -> tuple[IdleNode, ...]:
    """The view's idle nodes, as the planner takes them."""
    return tuple(
        IdleNode(node.name, Room(node.cpus, node.memory_mib), node.planned) for node in view.nodes if node.idle
    )


def _unstarted(agent: AgentHere, node: str | None, view: ClusterView) -> Unstarted:
    if agent.scheduler_id is None:
        return Unstarted(agent.name, "the scheduler never took it", None)
    if node is None:
        return Unstarted(agent.name, "it ended before it registered", None)
    if node in view.regular_nodes or view.read_s >= agent.end_s:
        return Unstarted(agent.name, f"it had to leave {node} before it registered", None)
    return Unstarted(agent.name, f"it died on {node} before it registered", node)


def _running(agent: QueuedAgent, known: AgentHere | None, nodes: Mapping[str, Room]) -> RunningAgent:
    """An agent on a node; what it can still take. One that we do not know, or that is ending, takes nothing."""
    if known is None or agent.phase is AgentPhase.ENDING or known.phase is Phase.SILENT:
        return RunningAgent(known.end_s if known else 0.0, NOTHING)
    if known.free_cpus is None or known.free_memory_mib is None:
        return RunningAgent(known.end_s, nodes.get(agent.node or "", NOTHING), agent.node or "")
    return RunningAgent(known.end_s, Room(known.free_cpus, known.free_memory_mib), known.node or "")
