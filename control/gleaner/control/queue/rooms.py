"""The agents that have not ended, with what their jobs leave free: what the live loop plans with."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gleaner.control.queue.tables import AGENT, JOB, LANE, Phase

OFFERS_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class AgentHere:
    """One agent that has not ended. Node and free room are None until it has registered."""

    name: str
    phase: Phase
    scheduler_id: str | None
    end_s: float
    submitted_s: float
    node: str | None
    free_cpus: int | None
    free_memory_mib: int | None


def memory_offered(db: Connection) -> frozenset[int]:
    """The memory, in MiB, that the latest agents have had for jobs: their settings may leave less than the node has."""
    latest = select(AGENT.c.facts).order_by(AGENT.c.name.desc()).limit(OFFERS_LOOKED_AT)
    return frozenset(int(facts["memory_mib"]) for facts in db.execute(latest).scalars() if facts)


def agents_here(db: Connection) -> tuple[AgentHere, ...]:
    """All agents that have not ended, by name."""
    used = {
        row.agent: (int(row.cpus), int(row.memory_mib))
        for row in db.execute(
            select(JOB.c.agent, func.sum(LANE.c.cpus).label("cpus"), func.sum(LANE.c.memory_mib).label("memory_mib"))
            .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
            .where(JOB.c.agent.is_not(None))
            .group_by(JOB.c.agent)
        )
    }
    here: list[AgentHere] = []
    for row in db.execute(select(AGENT).where(AGENT.c.phase != Phase.ENDED).order_by(AGENT.c.name)):
        cpus, memory_mib = used.get(row.name, (0, 0))
        facts = row.facts
        here.append(
            AgentHere(
                name=row.name,
                phase=row.phase,
                scheduler_id=row.scheduler_id,
                end_s=row.end_s,
                submitted_s=row.submitted_s,
                node=row.node,
                free_cpus=None if facts is None else facts["cpus"] - cpus,
                free_memory_mib=None if facts is None else facts["memory_mib"] - memory_mib,
            )
        )
    return tuple(here)


def ended(db: Connection, names: Collection[str]) -> frozenset[str]:
    """Which of these agents the queue knows and has closed."""
    if not names:
        return frozenset()
    closed = select(AGENT.c.name).where(AGENT.c.name.in_(names), AGENT.c.phase == Phase.ENDED)
    return frozenset(db.execute(closed).scalars())
