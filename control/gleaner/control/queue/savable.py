"""Which agents have jobs that cannot be saved, as far as is known."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, exists, or_, select

from gleaner.agent.protocol import Why
from gleaner.control.queue.site_tables import FIT, SAVING
from gleaner.control.queue.tables import AGENT, ATTEMPT, JOB, SPEC, Ending, Phase

_EARLIER = ATTEMPT.alias("earlier")
SAVES_NOTHING = and_(
    SPEC.c.saves_itself.is_(None), ~exists().where(FIT.c.saved_on == SAVING, FIT.c.node == AGENT.c.kind)
)
"""Of a job, its spec and its agent: neither of them saves it."""
SAVE_HAS_FAILED = exists().where(
    _EARLIER.c.job == JOB.c.id,
    _EARLIER.c.attempt > JOB.c.sound_attempt,
    _EARLIER.c.ending == Ending.GIVEN_BACK,
    _EARLIER.c.detail.startswith(str(Why.SAVE_FAILED)),
)
"""Of a job: since it was sound the last time, an attempt of it could not be saved."""


@dataclass(frozen=True, slots=True)
class AgentFound:
    """An agent, and its jobs. `cannot`: why not all of them can be saved; empty if they can, as far as is known."""

    name: str
    jobs: tuple[int, ...]
    cannot: str


def agents_found(db: Connection, scheduler_ids: Collection[str]) -> Mapping[str, AgentFound]:
    """The agents of these ids of the scheduler's, by id."""
    here = select(AGENT.c.scheduler_id, AGENT.c.name).where(
        AGENT.c.scheduler_id.in_(scheduler_ids), AGENT.c.phase != Phase.ENDED
    )
    return {row.scheduler_id: _found(db, row.name) for row in db.execute(here).all()}


def unsavable(db: Connection, agent: str) -> Mapping[int, str]:
    """The agent's jobs that cannot be saved, as far as is known, and why."""
    rows = (
        select(JOB.c.id, SAVES_NOTHING.label("saves_nothing"))
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .join(AGENT, AGENT.c.name == JOB.c.agent)
        .where(JOB.c.agent == agent, or_(SAVES_NOTHING, SAVE_HAS_FAILED))
        .order_by(JOB.c.id)
    )
    return {
        row.id: "its node saves nothing" if row.saves_nothing else "the last time, it could not be"
        for row in db.execute(rows)
    }


def _found(db: Connection, name: str) -> AgentFound:
    cannot = unsavable(db, name)
    jobs = db.execute(select(JOB.c.id).where(JOB.c.agent == name).order_by(JOB.c.id)).scalars()
    return AgentFound(name, tuple(jobs), ", ".join(f"job {job} cannot be saved ({cannot[job]})" for job in cannot))
