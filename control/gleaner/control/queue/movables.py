"""The live agents and the jobs on them, as `policy.moving` decides from them."""

from typing import Any

from sqlalchemy import Connection, and_, exists, false, or_, select

from gleaner.agent.protocol import NodeRates
from gleaner.control.policy.moving import AgentNode, RunningJob
from gleaner.control.queue import migrating, rates
from gleaner.control.queue.savable import SAVE_HAS_FAILED, SAVES_NOTHING
from gleaner.control.queue.site_tables import FIT
from gleaner.control.queue.tables import AGENT, ATTEMPT, EVENT, JOB, LANE, SPEC, Phase

_HERE = select(AGENT).where(AGENT.c.phase == Phase.LIVE, AGENT.c.vacate == false()).order_by(AGENT.c.name)
_IN_VAIN = exists().where(
    EVENT.c.job == JOB.c.id, EVENT.c.attempt == JOB.c.attempt, EVENT.c.what == migrating.NOT_MIGRATED
)
_JOBS = (
    select(
        JOB.c.id,
        JOB.c.agent,
        LANE.c.cpus,
        LANE.c.memory_mib,
        SPEC.c.saves_itself,
        ATTEMPT.c.claimed_s,
        or_(JOB.c.held, SAVES_NOTHING, SAVE_HAS_FAILED, _IN_VAIN).label("stays"),
    )
    .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
    .join(SPEC, SPEC.c.id == JOB.c.spec)
    .join(AGENT, AGENT.c.name == JOB.c.agent)
    .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == JOB.c.attempt))
    .where(JOB.c.agent.is_not(None))
    .order_by(ATTEMPT.c.claimed_s, JOB.c.id)
)


def movables(
    db: Connection, *, settled_s: float, assumed_s: float, now_s: float
) -> tuple[tuple[AgentNode, ...], tuple[RunningJob, ...]]:
    """The live agents' nodes and all jobs on them.

    A job is movable if it can be saved, as far as is known, has run for `settled_s`, and was not tried in vain.
    """
    agents: dict[str, Any] = {row.name: row for row in db.execute(_HERE)}
    fits = {(row.saved_on, row.node) for row in db.execute(select(FIT))}
    on_nodes = {row.node: row for row in agents.values()}
    nodes = tuple(
        AgentNode(row.node, row.facts["cpus"], row.facts["memory_mib"], min(row.end_s, row.facts["end_s"]))
        for row in on_nodes.values()
    )
    known = {name: rates.of_node(db, name) for name in on_nodes}
    misfits = {
        kind: tuple(sorted(name for name, other in on_nodes.items() if (kind, other.kind) not in fits))
        for kind in {row.kind for row in agents.values()}
    }
    jobs: list[RunningJob] = []
    for row in db.execute(_JOBS).all():
        on = agents.get(row.agent)
        if on is None:
            continue
        is_settled = now_s - row.claimed_s >= settled_s
        jobs.append(
            RunningJob(
                job=row.id,
                node=on.node,
                cpus=row.cpus,
                memory_mib=row.memory_mib,
                is_movable=is_settled and not row.stays,
                cost_s=cost_s(known[on.node], row.memory_mib, assumed_s=assumed_s),
                misfits=() if row.saves_itself else misfits[on.kind],
            )
        )
    return nodes, tuple(jobs)


def cost_s(known: NodeRates | None, memory_mib: int, *, assumed_s: float) -> float:
    """What saving and restoring a job of this size take, by what its node has measured; at most it uses all its memory.

    >>> seen = NodeRates(saves=5, save_fixed_s=1, save_mib_s=100, restores=5, restore_fixed_s=0.5, restore_mib_s=200)
    >>> cost_s(seen, 400, assumed_s=60), cost_s(None, 400, assumed_s=60)
    (7.5, 60)
    """
    if known is None or known.save_mib_s is None or known.restore_mib_s is None:
        return assumed_s
    save_s = (known.save_fixed_s or 0.0) + memory_mib / known.save_mib_s
    return save_s + (known.restore_fixed_s or 0.0) + memory_mib / known.restore_mib_s
