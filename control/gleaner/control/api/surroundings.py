"""What a waiting job waits for, gathered from the queue and from the last look at the cluster."""

from datetime import UTC, datetime

from sqlmodel import Session

from gleaner.control.policy.waiting import Surroundings
from gleaner.control.queue import agents, reads
from gleaner.control.site import Site


def surroundings(db: Session, site: Site) -> Surroundings:
    """The facts for `waits_because`, with times in the zone of control's machine."""
    now_s = site.clock()
    phases = reads.agent_phases(db, now_s=now_s)
    rounds = site.settings.rounds
    return Surroundings(
        now_s=now_s,
        nodes=site.cluster.nodes if site.cluster is not None else None,
        problem=site.problem,
        agents_live=phases.get("live", 0),
        agents_pending=phases.get("submitted", 0),
        agents_at_most=rounds.agents_at_most,
        boundary_s=site.boundary_s,
        shortest_slice_s=rounds.shortest_slice_s,
        avoided=frozenset(agents.avoided(db, now_s)),
        zone=datetime.fromtimestamp(now_s).astimezone().tzinfo or UTC,
    )
