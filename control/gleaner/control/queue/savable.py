"""Which agents have jobs that cannot be saved, as far as is known."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Row, exists, select

from gleaner.agent.protocol import Why
from gleaner.control.queue import attempts
from gleaner.control.queue.site_tables import FIT, SAVING
from gleaner.control.queue.tables import AGENT, JOB, SPEC, Phase


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
    return {row.id: why for row in _jobs(db, agent) if (why := _why_not(db, row))}


def _found(db: Connection, name: str) -> AgentFound:
    rows = _jobs(db, name)
    cannot = {row.id: why for row in rows if (why := _why_not(db, row))}
    return AgentFound(
        name, tuple(row.id for row in rows), ", ".join(f"job {job} cannot be saved ({cannot[job]})" for job in cannot)
    )


def _jobs(db: Connection, agent: str) -> list[Row[tuple[int, int, int | None, bool]]]:
    saves = exists().where(FIT.c.saved_on == SAVING, FIT.c.node == AGENT.c.kind)
    rows = (
        select(JOB.c.id, JOB.c.sound_attempt, SPEC.c.saves_itself, saves.label("node_saves"))
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .join(AGENT, AGENT.c.name == JOB.c.agent)
        .where(JOB.c.agent == agent)
        .order_by(JOB.c.id)
    )
    return list(db.execute(rows))


def _why_not(db: Connection, row: Row[tuple[int, int, int | None, bool]]) -> str:
    if row.saves_itself is None and not row.node_saves:
        return "its node saves nothing"
    failed = [node for node, why in attempts.futile(db, row.id, after=row.sound_attempt) if why is Why.SAVE_FAILED]
    return f"the last time, on {failed[-1]}, it could not be" if failed else ""
