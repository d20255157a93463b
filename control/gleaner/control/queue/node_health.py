"""Node health: which nodes agents and jobs fail on, whether a node or a job is to blame, and which nodes are excluded.

A node is excluded for a while after its agents have failed there in a row, or after `policy.node_health` has found that
it fails the jobs that it is given. All that is known is in the tables, so that a restart forgets nothing. A node's
health is looked at when it may have changed: at a failure, at a claim from a node that is not healthy, and when a job
that has failed elsewhere runs well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    insert,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.sql import ColumnElement

from gleaner.control.models.jobs import Ending
from gleaner.control.policy import node_health as policy
from gleaner.control.policy.node_health import Blame, JobFailure, NodeHealth, NodeRecord
from gleaner.control.queue.tables import AGENT, ATTEMPT, FAILURE, JOB, LANE, NODE, Phase
from gleaner.control.queue.transitions import insert_unless_there, record
from gleaner.control.states import State

FAULTS_UNTIL_EXCLUDED = 3
EXCLUDED_S = 3600.0
LOOKED_AT = 64
"""Only so many of the jobs that failed on a node, the latest, are looked for on other nodes: more make a claim slow."""

_WELL = (Ending.SAVED, Ending.SUCCEEDED)
_HERE = and_(text("phase <> 'ended'"), AGENT.c.phase == Phase.LIVE, AGENT.c.vacate == false())
_HAS_FAILED_JOBS = NODE.c.failed_jobs > 0
_NO_FAILED_JOBS: dict[str, Any] = {
    "failed_jobs": 0,
    "canaries": 0,
    "since_s": 0.0,
    "last_s": 0.0,
    "health": NodeHealth.HEALTHY,
    "suspect_s": null(),
    "canary_s": 0.0,
    "times_excluded": 0,
    "excluded_until_s": case((NODE.c.health == NodeHealth.EXCLUDED, null()), else_=NODE.c.excluded_until_s),
}
"""The columns of a node whose row of failed jobs is over. An exclusion for its agents' faults goes on."""
_RAN_WELL = (
    select(
        ATTEMPT.c.node,
        exists().where(FAILURE.c.job == ATTEMPT.c.job).label("has_failed"),
        exists()
        .where(NODE.c.name == ATTEMPT.c.node, _HAS_FAILED_JOBS, NODE.c.since_s <= ATTEMPT.c.claimed_s)
        .label("clears"),
    )
    .where(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnhealthyNode:
    """A node that something is held against. `faults`: how many agents in a row have failed there."""

    faults: int
    excluded_until_s: float | None
    reason: str = ""
    """Why the node is not healthy, for people; empty if only its agents have failed."""


def record_fault(db: Connection, node: str, *, now_s: float, faults_until_excluded: int, excluded_s: float) -> None:
    """Record that an agent failed because of its node. After so many in a row the node is excluded for a while.

    The count goes on: after that while a single further fault is enough.
    """
    db.execute(insert_unless_there(db, NODE), {"name": node})
    mine = NODE.c.name == node
    row = db.execute(select(NODE.c.faults, NODE.c.excluded_until_s).where(mine).with_for_update()).one()
    values: dict[str, Any] = {"faults": row.faults + 1}
    if row.faults + 1 >= faults_until_excluded:
        values["excluded_until_s"] = max(row.excluded_until_s or 0.0, now_s + excluded_s)
    db.execute(update(NODE).where(mine).values(values))


def record_sound_agent(db: Connection, node: str) -> None:
    """Record that an agent has run a job on the node and ended without a fault: the row of faults is over."""
    by_jobs = case((NODE.c.health == NodeHealth.EXCLUDED, NODE.c.excluded_until_s), else_=null())
    sound = update(NODE).where(NODE.c.name == node, NODE.c.faults > 0)
    db.execute(sound.values(faults=0, excluded_until_s=by_jobs))


def excluded(db: Connection, now_s: float) -> tuple[str, ...]:
    """Return the nodes that are excluded now, because agents or jobs have failed there."""
    names = select(NODE.c.name).where(NODE.c.excluded_until_s > now_s)
    return tuple(sorted(db.execute(names).scalars()))


def unhealthy(db: Connection, now_s: float) -> dict[str, UnhealthyNode]:
    """Return all nodes that something is held against, by name."""
    rows = db.execute(
        select(NODE).where(or_(NODE.c.faults > 0, NODE.c.health != NodeHealth.HEALTHY)).order_by(NODE.c.name)
    )
    found = {row.name: UnhealthyNode(row.faults, row.excluded_until_s, _reason(row, now_s)) for row in rows}
    return {name: each for name, each in found.items() if each.faults or each.reason}


def suspect(db: Connection, now_s: float) -> frozenset[str]:
    """Return the nodes whose jobs have failed so that the node may be to blame, excluded ones too."""
    return frozenset(name for name, each in unhealthy(db, now_s).items() if each.reason)


def _reason(row: Any, now_s: float) -> str:
    if row.health is NodeHealth.HEALTHY or _is_forgotten(row, now_s):
        return ""
    said = f"{row.failed_jobs} different jobs in a row failed within {policy.QUICK_S:g} s of their start"
    return said + (", and run elsewhere" if row.health is NodeHealth.EXCLUDED else "")


def limit(db: Connection, *, now_s: float, excluded_s: float) -> None:
    """Let no node be excluded or suspect longer than any may, as it would be where the clock has been set back."""
    for column, most_s in (
        (NODE.c.last_s, 0.0),
        (NODE.c.canary_s, policy.LONGEST_EXCLUSION_S),
        (NODE.c.excluded_until_s, max(excluded_s, policy.LONGEST_EXCLUSION_S)),
    ):
        db.execute(update(NODE).where(column > now_s + most_s).values({column: now_s}))


def forget(db: Connection, node: str) -> bool:
    """Use the node again at once: somebody has mended it. Return True if anything was held against the node."""
    mine = update(NODE).where(NODE.c.name == node, or_(NODE.c.faults > 0, _HAS_FAILED_JOBS))
    return bool(db.execute(mine.values(_NO_FAILED_JOBS | {"faults": 0, "excluded_until_s": null()})).rowcount)


def record_job_failure(db: Connection, row: Any, made: Any, *, computed_s: float, now_s: float) -> JobFailure:
    """Record that a workload has exited with an error, and judge its node anew.

    `row` is the job's, locked; `made` is the attempt's.
    """
    is_quick = policy.is_quick(computed_s=computed_s, lasted_s=now_s - made.claimed_s)
    key = {"job": row.id, "attempt": made.attempt, "node": made.node}
    db.execute(insert(FAILURE), key | {"at_s": now_s, "is_quick": is_quick, "blame": Blame.OPEN})
    health = NodeHealth.HEALTHY
    if is_quick:
        _continue_row(db, row.id, made, now_s)
        health = _judge(db, made.node, now_s=now_s, is_new=True)
    mine = db.execute(select(FAILURE.c.node, FAILURE.c.blame).where(FAILURE.c.job == row.id)).all()
    nodes = {each.node for each in mine} | {made.node}
    return JobFailure(
        is_quick=is_quick,
        health=health,
        is_its_last=False,
        other_nodes_failed=len(nodes) - 1,
        others=_others(db, nodes, now_s, lane=row.lane),
        forgiven=sum(each.blame is not Blame.JOB for each in mine) - 1,
    )


def nodes_failed_on(db: Connection, job: int) -> Mapping[str, int]:
    """Return the nodes on which the job has failed, and how often."""
    counted = select(FAILURE.c.node, func.count().label("times")).where(FAILURE.c.job == job).group_by(FAILURE.c.node)
    return {row.node: row.times for row in db.execute(counted)}


def charge_job(db: Connection, job: int, attempt: int) -> int:
    """Let the failure cost its job a retry, with earlier ones on nodes that are healthy.

    Return how many retries that are.
    """
    unhealthy_ones = select(NODE.c.name).where(NODE.c.health != NodeHealth.HEALTHY)
    open_ones = and_(FAILURE.c.job == job, FAILURE.c.blame == Blame.OPEN)
    mine = or_(FAILURE.c.attempt == attempt, FAILURE.c.node.not_in(unhealthy_ones))
    return db.execute(update(FAILURE).where(open_ones, mine).values(blame=Blame.JOB)).rowcount


def record_job_success(db: Connection, job: int, attempt: int, *, now_s: float) -> None:
    """Record that the attempt was saved or its workload succeeded. Judge anew the nodes on which the job failed."""
    row = db.execute(_RAN_WELL, {"job_": job, "attempt_": attempt}).one()
    if row.clears:
        db.execute(update(NODE).where(NODE.c.name == row.node).values(_NO_FAILED_JOBS))
    if row.has_failed:
        for node in sorted(nodes_failed_on(db, job).keys() - {row.node}):
            _judge(db, node, now_s=now_s, is_new=False)


def judge_at_claim(db: Connection, node: str, now_s: float) -> int | None:
    """Judge the node anew, and return how many jobs the node may take now; None: as many as fit."""
    if _judge(db, node, now_s=now_s, is_new=False) is NodeHealth.HEALTHY:
        return None
    return int(db.execute(select(NODE.c.canary_s).where(NODE.c.name == node)).scalar_one() <= now_s)


def record_canary(db: Connection, node: str, now_s: float) -> None:
    """Record that the node has taken the one job that it was allowed: the next job has to wait."""
    canaries = select(NODE.c.canaries).where(NODE.c.name == node)
    pause_s = policy.canary_pause_s(int(db.execute(canaries).scalar_one()) + 1)
    db.execute(update(NODE).where(NODE.c.name == node).values(canary_s=now_s + pause_s))


def _continue_row(db: Connection, job: int, made: Any, now_s: float) -> None:
    """Add one more quick failure to this node's row, of a job that may have failed there before."""
    mine = NODE.c.name == made.node
    row: Any = db.execute(select(NODE).where(mine).with_for_update()).one()
    if not row.failed_jobs or _is_forgotten(row, now_s):
        first = {"failed_jobs": 1, "since_s": made.claimed_s, "last_s": now_s, "canary_s": now_s}
        db.execute(update(NODE).where(mine).values(_NO_FAILED_JOBS | first))
        return
    before = exists().where(
        FAILURE.c.job == job,
        FAILURE.c.attempt != made.attempt,
        FAILURE.c.node == made.node,
        FAILURE.c.is_quick,
        FAILURE.c.at_s >= row.since_s,
    )
    is_new = not db.execute(select(before)).scalar_one()
    is_canary = row.suspect_s is not None and made.claimed_s > row.suspect_s
    values = {"failed_jobs": row.failed_jobs + is_new, "canaries": row.canaries + is_canary, "last_s": now_s}
    db.execute(update(NODE).where(mine).values(values | {"since_s": min(row.since_s, made.claimed_s)}))


def _is_forgotten(row: Any, now_s: float) -> bool:
    return row.health is not NodeHealth.EXCLUDED and row.last_s <= now_s - policy.FORGET_S


def _judge(db: Connection, node: str, *, now_s: float, is_new: bool) -> NodeHealth:
    """Return what the node is now. `is_new`: a job has just failed there."""
    mine = NODE.c.name == node
    row: Any = db.execute(select(NODE).where(mine, _HAS_FAILED_JOBS).with_for_update()).one_or_none()
    if row is None:
        return NodeHealth.HEALTHY
    if _is_forgotten(row, now_s) or _runs_one_well(db, row, now_s):
        db.execute(update(NODE).where(mine).values(_NO_FAILED_JOBS))
        return NodeHealth.HEALTHY
    found = policy.health(_record_of(db, row, now_s))
    values: dict[str, Any] = {"health": found}
    if found is NodeHealth.HEALTHY:
        values |= {
            name: _NO_FAILED_JOBS[name] for name in ("suspect_s", "canaries", "times_excluded", "excluded_until_s")
        }
    elif row.suspect_s is None:
        values |= {"suspect_s": now_s, "canary_s": now_s + policy.canary_pause_s(0)}
    elif is_new:
        values["canary_s"] = now_s + policy.canary_pause_s(row.canaries)
    if found is NodeHealth.EXCLUDED and (is_new or row.health is not NodeHealth.EXCLUDED):
        until_s = now_s + policy.exclusion_s(row.times_excluded + 1)
        values |= {"times_excluded": row.times_excluded + 1, "canary_s": until_s}
        values["excluded_until_s"] = max(row.excluded_until_s or 0.0, until_s)
    db.execute(update(NODE).where(mine).values(values))
    if found is NodeHealth.EXCLUDED:
        _forgive(db, row, now_s)
    return found


def _runs_one_well(db: Connection, row: Any, now_s: float) -> bool:
    """Return True if a job that was claimed there since the first failure has begun well."""
    well = (
        select(JOB.c.id)
        .join_from(AGENT, JOB, JOB.c.agent == AGENT.c.name)
        .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == JOB.c.attempt))
        .where(_HERE, AGENT.c.node == row.name)
        .where(ATTEMPT.c.claimed_s >= row.since_s, ATTEMPT.c.claimed_s <= now_s - policy.STEADY_S)
    )
    return db.execute(well.limit(1)).one_or_none() is not None


def _has_row(now_s: float) -> ColumnElement[bool]:
    """Return the condition, on a node, that jobs in a row have failed there."""
    is_long = and_(NODE.c.failed_jobs >= policy.JOBS_UNTIL_SUSPECT, NODE.c.last_s > now_s - policy.FORGET_S)
    return func.coalesce(or_(is_long, NODE.c.health == NodeHealth.EXCLUDED), false())


def _record_of(db: Connection, row: Any, now_s: float) -> NodeRecord:
    here = select(func.count(AGENT.c.node.distinct())).join_from(AGENT, NODE, NODE.c.name == AGENT.c.node)
    alike = here.where(_HERE, AGENT.c.node != row.name, _has_row(now_s))
    ran, failed_too = _elsewhere(db, row, now_s)
    return NodeRecord(
        jobs=row.failed_jobs,
        canaries=row.canaries,
        ran_elsewhere=ran,
        failed_elsewhere=failed_too,
        others=_others(db, {row.name}, now_s),
        others_alike=int(db.execute(alike).scalar_one()),
        was_excluded=row.health is NodeHealth.EXCLUDED,
    )


def _others(db: Connection, nodes: set[str], now_s: float, *, lane: int | None = None) -> int:
    """Return how many other nodes have a live agent and no row of failures; those large enough for the lane's jobs."""
    found = (
        select(func.count(AGENT.c.node.distinct()))
        .join_from(AGENT, NODE, NODE.c.name == AGENT.c.node, isouter=True)
        .where(_HERE, AGENT.c.node.not_in(sorted(nodes)), ~_has_row(now_s))
    )
    if lane is not None:
        found = found.join(LANE, LANE.c.id == lane).where(
            AGENT.c.facts["cpus"].as_integer() >= LANE.c.cpus,
            AGENT.c.facts["memory_mib"].as_integer() >= LANE.c.memory_mib,
        )
    return int(db.execute(found).scalar_one())


def _elsewhere(db: Connection, row: Any, now_s: float) -> tuple[int, int]:
    """Return how many of the jobs that have failed on this node ran well elsewhere, and how many failed there too."""
    here = (
        select(FAILURE.c.job)
        .where(FAILURE.c.node == row.name, FAILURE.c.at_s >= row.since_s, FAILURE.c.is_quick)
        .group_by(FAILURE.c.job)
        .order_by(func.max(FAILURE.c.at_s).desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    lives_well = and_(
        ATTEMPT.c.ending.is_(None),
        ATTEMPT.c.claimed_s <= now_s - policy.STEADY_S,
        exists().where(AGENT.c.name == ATTEMPT.c.agent, AGENT.c.phase == Phase.LIVE),
    )
    well = or_(ATTEMPT.c.ending.in_(_WELL), FAILURE.c.is_quick == false(), lives_well)
    told = (
        select(ATTEMPT.c.job, well.label("well"), and_(FAILURE.c.is_quick, ~_has_row(now_s)).label("badly"))
        .join_from(here, ATTEMPT, ATTEMPT.c.job == here.c.job)
        .outerjoin(FAILURE, and_(FAILURE.c.job == ATTEMPT.c.job, FAILURE.c.attempt == ATTEMPT.c.attempt))
        .outerjoin(NODE, NODE.c.name == ATTEMPT.c.node)
        .where(ATTEMPT.c.node != row.name)
    )
    ran: set[int] = set()
    failed_too: set[int] = set()
    for each in db.execute(told):
        if each.badly:
            failed_too.add(each.job)
        elif each.well:
            ran.add(each.job)
    return len(ran - failed_too), len(failed_too)


def _forgive(db: Connection, row: Any, now_s: float) -> None:
    """Refund the retries that failures on a bad node have cost. A job that another transaction holds comes later."""
    there = and_(FAILURE.c.node == row.name, FAILURE.c.at_s >= row.since_s)
    owed = (
        select(JOB.c.id)
        .where(JOB.c.state != State.COMPLETE)
        .where(JOB.c.id.in_(select(FAILURE.c.job).where(there, FAILURE.c.blame != Blame.NODE)))
        .order_by(JOB.c.id)
        .with_for_update(skip_locked=True)
    )
    for job in db.execute(owed).scalars().all():
        mine = and_(FAILURE.c.job == job, there)
        forgiven = select(func.count()).where(FAILURE.c.job == job, FAILURE.c.blame == Blame.NODE)
        if db.execute(forgiven).scalar_one() >= policy.FORGIVEN_AT_MOST:
            continue
        counted = select(func.count()).where(mine, FAILURE.c.blame == Blame.JOB)
        retries = int(db.execute(counted).scalar_one())
        db.execute(update(FAILURE).where(mine).values(blame=Blame.NODE))
        if retries:
            db.execute(update(JOB).where(JOB.c.id == job).values(failures=JOB.c.failures - retries))
            detail = f"{retries} refunded: {row.name} fails the jobs that it is given"
            record(db, job, "retries refunded", now_s=now_s, detail=detail)
