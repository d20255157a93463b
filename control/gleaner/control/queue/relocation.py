"""Migrations of running jobs: which jobs can be saved, which can migrate, and how a migration ends.

Control tells the agent to save a job that migrates. Afterwards the job waits like any other, except that its possible
nodes are restricted. The row of a migration exists from the request until the job runs again, or until no agent has
taken the job in time.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, false, insert, or_, select

from gleaner.agent.messages import NodeRates
from gleaner.agent.timing.save_cost import fit
from gleaner.control.policy.rebalancing import AgentJob, AgentNode
from gleaner.control.policy.why_waiting import cores
from gleaner.control.queue import attempts, compatibility, lanes, node_health
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.tables import AGENT, ATTEMPT, EVENT, FIT, JOB, LANE, MIGRATION, SAVING, SPEC, Phase
from gleaner.control.queue.transitions import lock, record
from gleaner.control.states import State

_EARLIER = ATTEMPT.alias("earlier")
SAVES_NOTHING = and_(~SPEC.c.saves_itself, ~exists().where(FIT.c.saved_on == SAVING, FIT.c.node == AGENT.c.kind))
"""The condition on a job, its spec and its agent that neither the agent nor the job itself can save the job."""
SAVE_HAS_FAILED = exists().where(
    _EARLIER.c.job == JOB.c.id,
    _EARLIER.c.attempt > JOB.c.sound_attempt,
    _EARLIER.c.why.in_(attempts.SAVE_FAILURES),
)
"""The condition that one of a job's attempts could not be saved since the job was last sound."""


@dataclass(frozen=True, slots=True)
class AgentFound:
    """An agent and its jobs.

    `cannot` is the known reason why some of them cannot be saved. It is empty if all of them can be saved.
    """

    name: str
    jobs: tuple[int, ...]
    cannot: str


def find_agents(db: Connection, scheduler_ids: Collection[str]) -> Mapping[str, AgentFound]:
    """Return the agents with these scheduler ids, keyed by id."""
    here = select(AGENT.c.scheduler_id, AGENT.c.name).where(
        AGENT.c.scheduler_id.in_(scheduler_ids), AGENT.c.phase != Phase.ENDED
    )
    return {row.scheduler_id: _found(db, row.name) for row in db.execute(here).all()}


def unsavable(db: Connection, agent: str) -> Mapping[int, str]:
    """Return the agent's jobs that are known to be unsavable, each with the reason."""
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


NOT_MIGRATED = "not migrated"
"""The event of a migration that failed."""


@dataclass(frozen=True, slots=True)
class Relocating:
    """A job that migrates. `by` is the person or the policy that requested the migration."""

    job: int
    from_node: str
    to_node: str | None
    by: str

    @property
    def way(self) -> str:
        """Return the origin and the destination, in words."""
        return f"from {self.from_node}" + (f" to {self.to_node}" if self.to_node else "")


def ask(db: Connection, job: int, *, to: str | None, by: str, now_s: float) -> None:
    """Request the migration of a running job to that node, or to any node except its current one.

    Raises `Conflict` without changing anything.
    """
    row = lock(db, job)
    if row.state is not State.RUNNING:
        raise Conflict(f"job {job} cannot be migrated: it does not run, it is {row.state}")
    node = attempts.find(db, job, row.attempt).node
    if why := unsavable(db, row.agent).get(job):
        raise Conflict(f"job {job} cannot be migrated: it cannot be saved ({why})")
    if to == node:
        raise Conflict(f"job {job} runs on {to} already")
    if to is not None:
        _check_room(db, job, to, now_s)
    values = {"attempt": row.attempt, "from_node": node, "to_node": to, "by": by}
    asked = Relocating(job, node, to, by)
    is_news = relocation_of(db, job) != asked
    db.execute(delete(MIGRATION).where(MIGRATION.c.job == job))
    db.execute(insert(MIGRATION), {"job": job, "asked_s": now_s} | values)
    if is_news:
        record(db, job, "migrate", now_s=now_s, attempt=row.attempt, detail=f"{asked.way}, by {by}")


def _check_room(db: Connection, job: int, to: str, now_s: float) -> None:
    """Raise `Conflict` unless a live agent on that node could continue the job."""
    nodes, running = nodes_and_jobs(db, settled_s=math.inf, assumed_s=0, now_s=now_s)
    mine = next((each for each in running if each.job == job), None)
    if mine is None:
        raise Conflict(f"job {job} cannot be migrated: its agent is about to leave")
    if to in mine.misfits:
        raise Conflict(f"job {job} cannot be migrated to {to}: it cannot continue there; see `glean why {job}`")
    sizes = select(LANE.c.cpus, LANE.c.memory_mib).join_from(MIGRATION, JOB, JOB.c.id == MIGRATION.c.job)
    promised = sizes.join(LANE, LANE.c.id == JOB.c.lane).where(MIGRATION.c.to_node == to, MIGRATION.c.job != job)
    there: list[Any] = [*(each for each in running if each.node == to), *db.execute(promised)]
    for node in nodes:
        free_cpus = node.cpus - sum(each.cpus for each in there)
        free_mib = node.memory_mib - sum(each.memory_mib for each in there)
        if node.name == to and free_cpus >= mine.cpus and free_mib >= mine.memory_mib:
            return
    raise Conflict(
        f"job {job} cannot be migrated to {to}: "
        f"no live agent there has {cores(mine.cpus)} and {mine.memory_mib} MiB free"
    )


def relocation_of(db: Connection, job: int) -> Relocating | None:
    """Return the job's migration, or None if the job does not migrate."""
    row = db.execute(select(MIGRATION).where(MIGRATION.c.job == job)).one_or_none()
    return None if row is None else Relocating(row.job, row.from_node, row.to_node, row.by)


def all_relocations(db: Connection) -> tuple[Relocating, ...]:
    """Return all jobs that migrate."""
    rows = db.execute(select(MIGRATION).order_by(MIGRATION.c.job))
    return tuple(Relocating(row.job, row.from_node, row.to_node, row.by) for row in rows)


def conclude(db: Connection, *, patience_s: float, now_s: float) -> tuple[int, ...]:
    """End the migrations that have succeeded or failed. Return the jobs that have migrated.

    A job that could not be saved in time stays on its node. If a job was to continue on one particular node and no
    agent there has taken it in time, it can continue on any node, so that it does not wait forever.
    """
    moved: list[int] = []
    rows = db.execute(
        select(MIGRATION, JOB.c.state, JOB.c.attempt.label("latest"))
        .join_from(MIGRATION, JOB, JOB.c.id == MIGRATION.c.job)
        .order_by(MIGRATION.c.job)
    ).all()
    for row in rows:
        is_late = now_s > row.asked_s + patience_s
        what, detail = "", ""
        if row.latest > row.attempt:
            what, detail = "migrated", f"from {row.from_node} to {attempts.find(db, row.job, row.latest).node}"
            moved.append(row.job)
            _open_to_all(db, row.job)  # if it is lost there before its next save, it need not wait for that node
        elif row.state is not State.COMPLETE and not is_late:
            continue
        elif row.state is State.RUNNING:
            what, detail = NOT_MIGRATED, f"it was not saved within {patience_s:g} s, and stays on {row.from_node}"
            _open_to_all(db, row.job)
        elif row.state is not State.COMPLETE and row.to_node is None:
            what, detail = NOT_MIGRATED, f"no other node has taken it within {patience_s:g} s; it still waits for one"
        elif row.state is not State.COMPLETE:
            what = NOT_MIGRATED
            detail = f"nobody on {row.to_node} has taken it within {patience_s:g} s; it may go on anywhere"
            _open_to_all(db, row.job)
        if what:
            record(db, row.job, what, now_s=now_s, attempt=row.latest, detail=detail)
        db.execute(delete(MIGRATION).where(MIGRATION.c.job == row.job))
    return tuple(moved)


def _open_to_all(db: Connection, job: int) -> None:
    """Let the job continue on every node where it can be restored and was not refused. A pause is not cut short."""
    if lock(db, job).state is not State.COMPLETE and lanes.paused_until(db, job) is None:
        lanes.open_to(db, job)


_AGENTS = select(AGENT).where(AGENT.c.phase == Phase.LIVE, AGENT.c.vacate == false()).order_by(AGENT.c.name)
_IN_VAIN = exists().where(EVENT.c.job == JOB.c.id, EVENT.c.attempt == JOB.c.attempt, EVENT.c.what == NOT_MIGRATED)
_JOBS = (
    select(
        JOB.c.id,
        JOB.c.agent,
        LANE.c.cpus,
        LANE.c.memory_mib,
        LANE.c.mounts,
        LANE.c.fetches,
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


def nodes_and_jobs(
    db: Connection, *, settled_s: float, assumed_s: float, now_s: float
) -> tuple[tuple[AgentNode, ...], tuple[AgentJob, ...]]:
    """Return the live agents' nodes and all jobs on them, in the form that `policy.rebalancing` needs.

    A job is migratable if it can be saved as far as is known, has run for at least `settled_s` seconds, and no
    migration of it has failed.
    """
    agents: dict[str, Any] = {row.name: row for row in db.execute(_AGENTS)}
    fits = {(row.saved_on, row.node) for row in db.execute(select(FIT))}
    on_nodes = {row.node: row for row in agents.values()}
    nodes = tuple(
        AgentNode(row.node, row.facts["cpus"], row.facts["memory_mib"], min(row.end_s, row.facts["end_s"]))
        for row in on_nodes.values()
    )
    rates_of = cache(partial(node_health.rates_of, db))
    misfits = {
        kind: tuple(sorted(name for name, other in on_nodes.items() if (kind, other.kind) not in fits))
        for kind in {row.kind for row in agents.values()}
    }
    has = compatibility.what_nodes_have(db)
    jobs: list[AgentJob] = []
    for row in db.execute(_JOBS).all():
        on = agents.get(row.agent)
        if on is None:
            continue
        lacking = {name for name in on_nodes if not has[name] >= lanes.needs(row)}
        is_settled = now_s - row.claimed_s >= settled_s
        jobs.append(
            AgentJob(
                job=row.id,
                node=on.node,
                cpus=row.cpus,
                memory_mib=row.memory_mib,
                is_migratable=is_settled and not row.stays,
                cost_s=cost_s(rates_of(on.node), row.memory_mib, assumed_s=assumed_s) if is_settled else assumed_s,
                misfits=tuple(sorted(lacking.union(() if row.saves_itself else misfits[on.kind]))),
            )
        )
    return nodes, tuple(jobs)


def cost_s(known: NodeRates, memory_mib: int, *, assumed_s: float) -> float:
    """Return the time to save and restore a job of this size, from the measurements on its node.

    The job is assumed to use all its memory.

    >>> seen = NodeRates(saves=[(100, 2.0), (300, 4.0)], restores=[(100, 1.0), (300, 2.0)])
    >>> cost_s(seen, 400, assumed_s=60), cost_s(NodeRates(), 400, assumed_s=60)
    (7.5, 60)
    """
    save, restore = fit(known.saves), fit(known.restores)
    return save.time_s(memory_mib) + restore.time_s(memory_mib) if save and restore else assumed_s
