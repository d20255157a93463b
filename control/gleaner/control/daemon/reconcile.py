"""The agents as the queue and Slurm know them, brought together. Pure: values in, values out.

Neither the queue nor Slurm is believed blindly. An agent that the scheduler no longer names has lost its node. But if
the agent has registered, its lease is waited out: "gone" for the scheduler is not yet "dead". An agent that never
registered has nothing to lose, and is closed at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gleaner.control.policy.provisioning import IdleNode, PendingAgent, RunningAgent
from gleaner.control.policy.resources import NOTHING, Resources
from gleaner.control.queue.queries import AgentHere
from gleaner.control.queue.schema import Phase
from gleaner.control.slurm.agents_view import AgentPhase, ClusterView, QueuedAgent
from gleaner.control.slurm.interface import SchedulerId


@dataclass(frozen=True, slots=True)
class Unstarted:
    """An agent that is gone and never registered. `node`: the node on which it died, if the node may be to blame."""

    name: str
    reason: str
    node: str | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The agents to record and to withdraw, and those that the policy plans with."""

    found: tuple[tuple[str, SchedulerId], ...]
    """Agents that are there, although their submission was never answered or never recorded."""
    unstarted: tuple[Unstarted, ...]
    vanished: tuple[str, ...]
    """Silent agents that the scheduler no longer names."""
    useless: tuple[SchedulerId, ...]
    """Agents that are pending for the scheduler and closed for us: their tokens are worth nothing."""
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
    """Return the agents of the queue and of the view brought together, as of the view.

    `closed` are names in the view whose agents have ended for us. `ran_on` names the nodes on which agents were last
    seen running. An agent whose submission was never answered may still turn up for `doubt_s`.
    """
    seen = {agent.name: agent for agent in view.agents}
    missing = [agent for agent in here if agent.name not in seen]
    in_doubt = [
        agent
        for agent in missing
        if agent.phase is Phase.SUBMITTED and agent.scheduler_id is None and view.read_s - agent.submitted_s < doubt_s
    ]
    by_name = {agent.name: agent for agent in here}
    free_nodes = {node.name: Resources(node.cpus, node.memory_mib) for node in view.nodes}
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
    """Return the view's idle nodes, as the policy takes them."""
    return tuple(
        IdleNode(node.name, Resources(node.cpus, node.memory_mib), node.planned) for node in view.nodes if node.idle
    )


def _unstarted(agent: AgentHere, node: str | None, view: ClusterView) -> Unstarted:
    if agent.scheduler_id is None:
        return Unstarted(agent.name, "the scheduler never took it", None)
    if node is None:
        return Unstarted(agent.name, "it ended before it registered", None)
    if node in view.regular_nodes or view.read_s >= agent.end_s:
        return Unstarted(agent.name, f"it had to leave {node} before it registered", None)
    return Unstarted(agent.name, f"it died on {node} before it registered", node)


def _running(agent: QueuedAgent, known: AgentHere | None, nodes: Mapping[str, Resources]) -> RunningAgent:
    """Return an agent on a node, with the room that it has left: none if we do not know the agent, or it is ending."""
    if known is None or agent.phase is AgentPhase.ENDING or known.phase is Phase.SILENT:
        return RunningAgent(known.end_s if known else 0.0, NOTHING)
    if known.free_cpus is None or known.free_memory_mib is None:
        return RunningAgent(known.end_s, nodes.get(agent.node or "", NOTHING), agent.node or "")
    return RunningAgent(known.end_s, Resources(known.free_cpus, known.free_memory_mib), known.node or "")
