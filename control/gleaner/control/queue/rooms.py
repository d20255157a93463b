"""The agents that have not ended, with what their jobs leave free: what the live loop plans with."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gleaner.control.queue.tables import AGENT, JOB, LANE, Phase

GONE_S = 600.0
"""So long after its own end an agent is gone, whatever clocks say and however long Slurm waits to kill it."""
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


def gone(db: Connection, names: Collection[str], *, now_s: float) -> frozenset[str]:
    """Which of these agents write nothing any more: those that have said so at their end, and whose time is over.

    One that the scheduler has forgotten may live, cut off from control, until its own end, and save there.
    """
    if not names:
        return frozenset()
    closed = select(AGENT.c.name, AGENT.c.end_s, AGENT.c.facts)
    closed = closed.where(AGENT.c.name.in_(names), AGENT.c.phase == Phase.ENDED)
    found: set[str] = set()
    for row in db.execute(closed):
        facts: dict[str, Any] = row.facts or {}
        end_s = max(row.end_s, facts.get("end_s", 0.0))
        if not facts.get("unseen") or now_s > end_s + GONE_S:
            found.add(row.name)
    return frozenset(found)
