"""What a waiting job waits for, gathered from the queue and from the last look at the cluster."""

from datetime import UTC, datetime

from sqlalchemy import Connection

from gleaner.control.policy.waiting import Place, Surroundings
from gleaner.control.queue import agents, reads
from gleaner.control.site import Site


def places(site: Site, *, avoided: frozenset[str] = frozenset()) -> tuple[Place, ...] | None:
    """The nodes at the last look at the cluster; None before the first."""
    if site.cluster is None:
        return None
    idle = {node.name for node in site.cluster.nodes if node.idle and not node.planned}
    return tuple(
        Place(
            node.cpus,
            node.memory_mib,
            is_free=node.name in idle - avoided,
            is_avoided=node.name in idle & avoided,
            name=node.name,
        )
        for node in site.cluster.nodes
    )


def surroundings(db: Connection, site: Site) -> Surroundings:
    """The facts for `waits_because`, with times in the zone of control's machine."""
    now_s = site.clock()
    phases = reads.agent_phases(db, now_s=now_s)
    rounds = site.settings.rounds
    return Surroundings(
        now_s=now_s,
        nodes=places(site, avoided=frozenset(agents.avoided(db, now_s))),
        problem=site.problem,
        agents_live=phases.get("live", 0),
        agents_pending=phases.get("submitted", 0),
        agents_at_most=rounds.agents_at_most,
        boundary_s=site.boundary_s,
        shortest_slice_s=rounds.least_slice_s,
        shares=site.tally.shares(db, site.share_rules),
        zone=datetime.fromtimestamp(now_s).astimezone().tzinfo or UTC,
    )
