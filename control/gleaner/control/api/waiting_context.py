"""The circumstances of a waiting job, from the queue and from the last snapshot of the cluster."""

from datetime import UTC, datetime

from sqlalchemy import Connection

from gleaner.agent.privileged.shim.head_room import HEAD_ROOM_MIB
from gleaner.control.control_state import ControlState
from gleaner.control.policy.why_waiting import NodeOutlook, Surroundings
from gleaner.control.queue import agents, node_health, queries
from gleaner.control.slurm.agents_view import kill_switch, waits_for


def places(state: ControlState, *, excluded: frozenset[str] = frozenset()) -> tuple[NodeOutlook, ...] | None:
    """Return the nodes of the last snapshot with their memory for jobs, or None before the first snapshot."""
    if state.cluster is None:
        return None
    nodes = state.cluster.nodes.values()
    idle = {node.name for node in nodes if node.is_idle}
    return tuple(
        NodeOutlook(
            node.cpus,
            max(1, node.memory_mib - HEAD_ROOM_MIB),
            is_free=node.name in idle - excluded,
            is_excluded=node.name in idle & excluded,
            name=node.name,
        )
        for node in nodes
    )


def surroundings(db: Connection, state: ControlState) -> Surroundings:
    """Return the facts for `waits_because`, with times in the time zone of control's machine."""
    now_s = state.clock()
    phases = queries.agent_phases(db, now_s=now_s)
    rounds = state.settings.rounds
    return Surroundings(
        now_s=now_s,
        nodes=places(state, excluded=frozenset(node_health.excluded_nodes(db, now_s))),
        problem=state.problem,
        closed=agents.why_stopped(db)
        or (kill_switch(state.cluster, state.settings.cluster.partition) if state.cluster else ""),
        slurm_says=waits_for(state.cluster) if state.cluster else "",
        agents_live=phases.get("live", 0),
        agents_pending=phases.get("submitted", 0),
        agents_at_most=rounds.agents_at_most,
        boundary_s=state.boundary_s,
        shortest_slice_s=rounds.least_slice_s,
        agent_needs_s=rounds.agent_needs_s,
        shares=state.usage_cache.shares(db, state.share_rules),
        zone=datetime.fromtimestamp(now_s).astimezone().tzinfo or UTC,
    )
