"""Agents and their leases, from the submission to the end. An admin can stop all agents."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, insert, or_, select, tuple_, update

from gleaner.agent.messages import AttemptRef, Deregistration, Heartbeat, Order, Orders, Registration, ReturnReason
from gleaner.control.models.jobs import NOT_SAVED, Ending
from gleaner.control.models.tokens import Role
from gleaner.control.policy.rate_estimates import RateRules
from gleaner.control.policy.returns import QUICK_S
from gleaner.control.queue import compatibility, deliveries, node_health, tokens
from gleaner.control.queue.attempt_reports import give_up, lose, revive, running_on, take_from_agent
from gleaner.control.queue.attempts import end_columns
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import AGENT, ATTEMPT, EVENT, JOB, MIGRATION, STOP, Phase
from gleaner.control.queue.transitions import event_name, insert_unless_there, record
from gleaner.control.states import Transition

_RAN = or_(
    ATTEMPT.c.ending.in_([Ending.SAVED, Ending.SUCCEEDED]),
    and_(
        ATTEMPT.c.ending == Ending.FAILED,
        ATTEMPT.c.compute_s >= QUICK_S,
        ATTEMPT.c.ended_s - ATTEMPT.c.claimed_s >= QUICK_S,
    ),
)
"""The proof that a node can run jobs. A workload that has failed quickly does not count, because the node might be to
blame."""

_SILENT = (Phase.SILENT, Phase.ENDED)


def expect(db: Connection, *, name: str, end_s: float, token_hash: str, now_s: float) -> None:
    """Record an agent that is about to be submitted, and its token.

    The record is made before the request to the scheduler, so that control knows every agent that starts.
    """
    db.execute(insert(AGENT), {"name": name, "phase": Phase.SUBMITTED, "end_s": end_s, "submitted_s": now_s})
    until_s = end_s + tokens.AGENT_OVERTIME_S
    tokens.register(db, tokens.Identity(Role.AGENT, name, None, expires_s=until_s), token_hash=token_hash, now_s=now_s)


def record_submission(db: Connection, name: str, scheduler_id: str) -> None:
    """Record that the scheduler has accepted the agent under this id."""
    db.execute(update(AGENT).where(AGENT.c.name == name).values(scheduler_id=scheduler_id))


def register(db: Connection, name: str, registration: Registration, *, lease_s: float, now_s: float) -> None:
    """Record that the agent has started. A second registration is not an error.

    Raises `NotFound`, or `Conflict` for an agent that has ended.
    """
    row = _lock_agent(db, name)
    if row.phase is Phase.ENDED:
        raise Conflict(f"agent {name} may not register: it has ended ({row.reason or 'by its own word'})")
    facts = {
        "phase": Phase.LIVE,
        "node": registration.facts.node,
        "facts": registration.model_dump(mode="json", include={"end_s", "images"})
        | registration.facts.model_dump(mode="json"),
        "registered_s": now_s if row.registered_s is None else row.registered_s,
        "lease_until_s": now_s + lease_s,
        "scheduler_id": row.scheduler_id or registration.slurm_job,
        "kind": compatibility.record_kind(db, registration.facts),
    }
    db.execute(update(AGENT).where(AGENT.c.name == name).values(facts))


_ALIVE = (
    update(AGENT)
    .where(AGENT.c.name == bindparam("name_"), AGENT.c.phase.in_([Phase.LIVE, Phase.SILENT]))
    .values(phase=Phase.LIVE, lease_until_s=bindparam("until_"))
    .returning(AGENT.c.vacate)
)


def record_heartbeat(db: Connection, name: str, beat: Heartbeat, *, lease_s: float, now_s: float) -> Orders:
    """Renew the agent's lease, and return an order for each attempt that the agent names.

    An attempt that was given up is revived if its job has not been claimed since. If control has recorded a job on the
    agent for longer than a lease, and the agent does not name it, the job is taken from the agent, which never learned
    of the claim.
    """
    alive = db.execute(_ALIVE, {"name_": name, "until_": now_s + lease_s}).one_or_none()
    if alive is None:
        row = _lock_agent(db, name)
        raise Conflict(f"agent {name} may not beat: it is {row.phase}")
    known = _known(db, beat.attempts)
    orders = tuple(
        _order(db, name, each, known.get((each.job, each.attempt)), vacate=alive.vacate, now_s=now_s)
        for each in beat.attempts
    )
    for each, order in zip(beat.attempts, orders, strict=True):
        if each.unsaved and order is not Order.DROP:
            _record_failed_save(db, each, now_s=now_s)
    _take_unnamed(db, name, beat.attempts, before_s=now_s - lease_s, now_s=now_s)
    return Orders(orders=orders, vacate=alive.vacate, now_s=now_s)


def _record_failed_save(db: Connection, ref: AttemptRef, *, now_s: float) -> None:
    """Record why a save failed, unless the same reason was recorded last. The owner can then read it before the slice
    ends."""
    these = (NOT_SAVED, event_name(Transition.CHECKPOINT))
    told = (
        select(EVENT.c.what, EVENT.c.detail)
        .where(EVENT.c.job == ref.job, EVENT.c.attempt == ref.attempt, EVENT.c.what.in_(these))
        .order_by(EVENT.c.id.desc())
        .limit(1)
    )
    if db.execute(told).one_or_none() != (NOT_SAVED, ref.unsaved):
        record(db, ref.job, NOT_SAVED, now_s=now_s, attempt=ref.attempt, detail=ref.unsaved)


def node_of(db: Connection, name: str) -> str:
    """Return the node from which the agent has registered."""
    return str(db.execute(select(AGENT.c.node).where(AGENT.c.name == name)).scalar_one())


def _known(db: Connection, named: Sequence[AttemptRef]) -> Mapping[tuple[int, int], Any]:
    if not named:
        return {}
    keys = [(each.job, each.attempt) for each in named]
    rows = (
        select(
            JOB.c.id,
            JOB.c.attempt,
            JOB.c.state,
            JOB.c.lost,
            JOB.c.held,
            ATTEMPT.c.agent,
            ATTEMPT.c.ending,
            MIGRATION.c.job.is_not(None).label("moves"),
        )
        .join_from(JOB, ATTEMPT, (ATTEMPT.c.job == JOB.c.id) & (ATTEMPT.c.attempt == JOB.c.attempt))
        .outerjoin(MIGRATION, (MIGRATION.c.job == JOB.c.id) & (MIGRATION.c.attempt == JOB.c.attempt))
        .where(tuple_(ATTEMPT.c.job, ATTEMPT.c.attempt).in_(keys))
    )
    return {(row.id, row.attempt): row for row in db.execute(rows)}


def _order(db: Connection, name: str, ref: AttemptRef, row: Any, *, vacate: bool, now_s: float) -> Order:
    if row is None or row.agent != name:
        return Order.DROP  # unknown, or no longer the current attempt
    if row.lost and row.ending is Ending.RETURNED:
        return Order.DROP  # it can still report a checkpoint that was published late, but nothing else
    if row.lost:
        try:
            revive(db, ref.job, ref.attempt, agent=name, now_s=now_s)
        except Conflict:  # claimed or cancelled just now
            return Order.DROP
    elif row.state != "Running":
        return Order.DROP
    return Order.VACATE if vacate or row.held or row.moves else Order.GO_ON


def _take_unnamed(db: Connection, name: str, named: Sequence[AttemptRef], *, before_s: float, now_s: float) -> None:
    here = select(JOB.c.id, JOB.c.attempt).join_from(
        JOB, ATTEMPT, (ATTEMPT.c.job == JOB.c.id) & (ATTEMPT.c.attempt == JOB.c.attempt)
    )
    old = db.execute(here.where(JOB.c.agent == name, ATTEMPT.c.claimed_s <= before_s))
    unnamed = {(row.id, row.attempt) for row in old} - {(each.job, each.attempt) for each in named}
    for row in running_on(db, name) if unnamed else ():
        if (row.id, row.attempt) in unnamed:
            give_up(db, row, Ending.FORGOTTEN, now_s=now_s, detail=f"{name} lives but does not know of it")


def record_deregistration(
    db: Connection,
    name: str,
    report: Deregistration,
    *,
    now_s: float,
    faults_until_excluded: int = node_health.FAULTS_UNTIL_EXCLUDED,
    rates: RateRules | None = None,
) -> float | None:
    """Close the agent at its own request. Its remaining jobs count as returned without having started.

    With `rates`, the costs of its node are also recorded.

    Return the shared end for which the agent was submitted. Return None, and change nothing, if the agent had already
    ended.
    """
    row = _lock_agent(db, name)
    if row.phase is Phase.ENDED:
        return None
    if row.phase is Phase.SUBMITTED:
        raise Conflict(f"agent {name} cannot end: it never registered")
    for job in running_on(db, name):
        why = ReturnReason.UNSTARTED
        end = end_columns(Ending.RETURNED, ended_s=now_s, detail=f"{why}: its agent has ended", why=why)
        take_from_agent(db, job, now_s=now_s, detail=f"returned: {name} has ended", end=end)
    _close(db, name, ended_s=report.ended_s, reason=report.reason, now_s=now_s)
    tokens.end_later(db, agent=name, now_s=now_s)
    if report.fault:
        node_health.record_fault(db, row.node, now_s=now_s, faults_until_excluded=faults_until_excluded)
    elif _has_run_a_job(db, name):
        node_health.record_sound_agent(db, row.node)
    if rates is not None:
        node_health.record_exposure(db, name, vanished=False, rules=rates, now_s=now_s)
        node_health.record_estimate_error(db, name, report)
    return float(row.end_s)


def _has_run_a_job(db: Connection, name: str) -> bool:
    """Return True if a workload has run on the agent. An agent that found no work proves nothing about its node."""
    ran = exists().where(ATTEMPT.c.agent == name, _RAN)
    return bool(db.execute(select(ran)).scalar_one())


def _close(db: Connection, name: str, *, ended_s: float, reason: str, now_s: float) -> None:
    row = update(AGENT).where(AGENT.c.name == name)
    db.execute(row.values(phase=Phase.ENDED, ended_s=ended_s, reason=reason))
    deliveries.release(db, name, now_s=now_s)


def overdue(db: Connection, *, now_s: float) -> list[str]:
    """Return the agents to expire. Their lease has ended, or they still have a job although they are silent or have
    ended.

    A silent agent can have a job again, because its claim can be processed after its last heartbeat.
    """
    stray = AGENT.c.phase.in_(_SILENT) & exists().where(JOB.c.agent == AGENT.c.name)
    over = (AGENT.c.phase == Phase.LIVE) & (AGENT.c.lease_until_s < now_s)
    return list(db.execute(select(AGENT.c.name).where(or_(over, stray)).order_by(AGENT.c.name)).scalars())


def expire(db: Connection, name: str, *, now_s: float, losses_until_held: int) -> bool:
    """Declare that an agent whose lease has ended is silent, and that its jobs are lost.

    Return False, and change nothing, if the agent has renewed its lease.
    """
    row = _lock_agent(db, name)
    if row.phase is Phase.LIVE and row.lease_until_s < now_s:
        db.execute(update(AGENT).where(AGENT.c.name == name).values(phase=Phase.SILENT))
    elif row.phase not in _SILENT:
        return False
    lose(db, name, now_s=now_s, losses_until_held=losses_until_held, detail=f"{name} fell silent")
    return True


def nodes_with_jobs(db: Connection) -> frozenset[str]:
    """Return the nodes whose agents have jobs."""
    found = select(AGENT.c.node).join(JOB, JOB.c.agent == AGENT.c.name).where(JOB.c.agent.is_not(None)).distinct()
    return frozenset(db.execute(found).scalars())


def renew_leases(db: Connection, *, now_s: float, lease_s: float) -> None:
    """Give every live agent a full lease, because control was down and could not receive heartbeats."""
    live = update(AGENT).where(AGENT.c.phase == Phase.LIVE)
    db.execute(live.values(lease_until_s=now_s + lease_s))


def vacate(db: Connection, name: str) -> None:
    """Tell the agent at its next heartbeat to save all its jobs and end."""
    _lock_agent(db, name)
    db.execute(update(AGENT).where(AGENT.c.name == name).values(vacate=True))


def forget_unstarted(db: Connection, name: str, *, now_s: float, reason: str) -> bool:
    """Close an agent that the scheduler no longer knows and that never registered.

    Its token becomes invalid. Return False, and change nothing, if the agent has registered.
    """
    gone = update(AGENT).where(AGENT.c.name == name, AGENT.c.phase == Phase.SUBMITTED)
    if not db.execute(gone.values(phase=Phase.ENDED, ended_s=now_s, reason=reason)).rowcount:
        return False
    tokens.revoke(db, role=Role.AGENT, name=name, now_s=now_s)
    return True


def close_silent(
    db: Connection, name: str, *, now_s: float, losses_until_held: int, rates: RateRules | None = None
) -> bool:
    """Close a registered agent that the scheduler no longer knows, if the agent is silent.

    Such an agent might still be running, so a live lease is allowed to run out. The agent's token stays valid just long
    enough for a late report. Return False, and change nothing, if the agent is not silent.
    """
    row = _lock_agent(db, name)
    if row.phase is not Phase.SILENT:
        return False
    reason = "the scheduler no longer knows it"
    lose(db, name, now_s=now_s, losses_until_held=losses_until_held, detail=f"{name} is gone: {reason}")
    _close(db, name, ended_s=now_s, reason=reason, now_s=now_s)
    # Its end was not observed, so an archive that it might still be writing stays until the agent has certainly ended
    # (`queries.gone_agents`).
    db.execute(update(AGENT).where(AGENT.c.name == name).values(facts=row.facts | {"unseen": True}))
    tokens.end_later(db, agent=name, now_s=now_s)
    if rates is not None:
        node_health.record_exposure(db, name, vanished=True, rules=rates, now_s=now_s)
    return True


def set_stop(db: Connection, *, by: str, now_s: float) -> None:
    """Prevent agents from starting, and make running agents save their jobs and end. An existing stop is not
    changed."""
    db.execute(insert_unless_there(db, STOP).values(id=1, by=by, at_s=now_s))


def end_stop(db: Connection) -> bool:
    """Let agents start again. Return False if they were not stopped."""
    return bool(db.execute(delete(STOP)).rowcount)


def why_stopped(db: Connection) -> str:
    """Return, in one line, who has stopped all agents, when, and the remedy, or "" if agents can start."""
    row = db.execute(select(STOP.c.by, STOP.c.at_s)).one_or_none()
    if row is None:
        return ""
    since = f"{datetime.fromtimestamp(row.at_s):%Y-%m-%d %H:%M}"
    return f"all agents are stopped since {since}, by {row.by}: `glean control start` ends that"


def _lock_agent(db: Connection, name: str) -> Any:
    row = db.execute(select(AGENT).where(AGENT.c.name == name).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no agent {name}")
    return row
