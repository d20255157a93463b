"""Node health: the nodes on which agents and jobs fail, the excluded nodes, and the cost of saves and losses.

All facts are in the tables, so no fact is lost in a restart. A series of failures on a node begins with the first
failed attempt there, and ends when a job runs well there. `policy.returns` contains the rule. It is applied when a job
fails on the node, and when a job that has failed there runs elsewhere.

Agents' reports also update the cost of saves, restores and losses on each node. A new agent receives the costs of its
node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, exists, func, null, or_, select, update

from gleaner.agent.messages import Checkpointed, Completed, CostSample, Deregistration, NodeRates, Returned, Saved, Way
from gleaner.agent.timing.save_cost import MOST_SAMPLES, fit, sample
from gleaner.control.models.jobs import Ending
from gleaner.control.policy import returns
from gleaner.control.policy.rate_estimates import (
    LATE_FACTOR,
    RateRules,
    at_least_s,
    mean_time_between_losses_s,
    remaining_weight,
    with_error,
)
from gleaner.control.policy.returns import Blame
from gleaner.control.queue import attempts
from gleaner.control.queue.tables import AGENT, ATTEMPT, EVENT, JOB, NODE, RATE
from gleaner.control.queue.transitions import ensure_row, insert_unless_there, record
from gleaner.control.states import State

FAULTS_UNTIL_EXCLUDED = 3
LOOKED_AT = 64
"""The number of a node's latest failures for which runs of the same job elsewhere are looked up. More would make a
report slow."""

BOUNDARY_S = 120.0
"""Saves within this many seconds belong to the same boundary."""
ALIKE_AT_MIB = 256.0
"""Nodes of one kind are compared by the time that a save of this much memory takes."""
_TRUSTED: dict[str, Any] = {
    "failing_since_s": null(),
    "excluded_at_s": null(),
    "excluded_until_s": null(),
    "times_excluded": 0,
    "excluded_because": "",
}
_UNRESTORED = [why for why, reaction in returns.REACTIONS.items() if reaction.of_node and reaction.of_checkpoint]
_FAILED, _ELSEWHERE = ATTEMPT.alias("failed"), ATTEMPT.alias("elsewhere")
# True if a job that was claimed at that time and runs well ends the series of failures.
_ENDS_ROW = or_(
    NODE.c.excluded_at_s < bindparam("claimed_s_"),
    and_(NODE.c.excluded_at_s.is_(None), NODE.c.failing_since_s <= bindparam("claimed_s_")),
)
_IS_WRONG = or_(NODE.c.failing_since_s.is_not(None), NODE.c.excluded_at_s.is_not(None))
_RAN_WELL = (
    select(
        ATTEMPT.c.node,
        ATTEMPT.c.claimed_s,
        exists().where(NODE.c.name == ATTEMPT.c.node, _IS_WRONG).label("has_row"),
        exists().where(_FAILED.c.job == ATTEMPT.c.job, _FAILED.c.blame.is_not(None)).label("has_failed"),
    )
    .where(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DistrustedNode:
    """A node with failures. `faults` is the number of agents in a row that have failed there."""

    faults: int
    excluded_until_s: float | None
    """The end of the exclusion, or None if the node is not excluded. After this time, the node receives one job."""
    reason: str
    """The reason why the node is or was excluded, in words."""


def record_fault(db: Connection, node: str, *, now_s: float, faults_until_excluded: int) -> None:
    """Record that an agent failed because of its node. After `faults_until_excluded` such agents in a row, the node is
    excluded.

    The count is kept, so after the exclusion a single further fault excludes the node again.
    """
    db.execute(insert_unless_there(db, NODE), {"name": node})
    row = _lock(db, node)
    db.execute(update(NODE).where(NODE.c.name == node).values(faults=row.faults + 1))
    if row.faults + 1 >= faults_until_excluded:
        _exclude(db, row, f"agents failed here {row.faults + 1} times in a row", now_s)


def record_sound_agent(db: Connection, node: str) -> None:
    """Record that an agent has run a job on the node and ended without a fault, which ends the series of faults."""
    db.execute(update(NODE).where(NODE.c.name == node, NODE.c.faults > 0).values(faults=0))


def excluded_nodes(db: Connection, now_s: float) -> tuple[str, ...]:
    """Return the nodes that are excluded now, because agents or jobs have failed there."""
    names = select(NODE.c.name).where(NODE.c.excluded_until_s > now_s)
    return tuple(sorted(db.execute(names).scalars()))


def distrusted_nodes(db: Connection) -> dict[str, DistrustedNode]:
    """Return, by name, all nodes that take no jobs or only one at a time, and those on which the last agent failed."""
    wrong = or_(NODE.c.faults > 0, NODE.c.excluded_until_s.is_not(None))
    columns = (NODE.c.name, NODE.c.faults, NODE.c.excluded_until_s, NODE.c.excluded_because)
    rows = db.execute(select(*columns).where(wrong).order_by(NODE.c.name))
    return {name: DistrustedNode(*rest) for name, *rest in rows}


def forget(db: Connection, node: str) -> bool:
    """Forget the failures of a repaired node, so that it is used again. Return True if it had any."""
    mine = update(NODE).where(NODE.c.name == node, or_(NODE.c.faults > 0, _IS_WRONG))
    return bool(db.execute(mine.values(_TRUSTED | {"faults": 0})).rowcount)


def record_canary(db: Connection, node: str, now_s: float) -> None:
    """Record that a node that was excluded has taken its one job, so that the next job waits."""
    mine = update(NODE).where(NODE.c.name == node, NODE.c.excluded_until_s <= now_s)
    db.execute(mine.values(excluded_until_s=now_s + returns.CANARY_S))


def record_failure(db: Connection, made: Any, *, now_s: float) -> None:
    """Judge the node of an attempt that has just failed. The attempt's end and blame must already be recorded."""
    since = NODE.c.failing_since_s
    earlier = or_(since.is_(None), since > made.claimed_s)
    db.execute(update(NODE).where(NODE.c.name == made.node, earlier).values(failing_since_s=made.claimed_s))
    _judge(db, made.node, now_s)


def record_success(db: Connection, job: int, attempt: int, *, now_s: float) -> None:
    """Record that the attempt was saved or its program succeeded. Judge the nodes on which the job failed."""
    row = db.execute(_RAN_WELL, {"job_": job, "attempt_": attempt}).one()
    if row.has_row:
        trusted = update(NODE).where(NODE.c.name == row.node, _ENDS_ROW).values(_TRUSTED)
        db.execute(trusted, {"claimed_s_": row.claimed_s})
    if row.has_failed:
        failed = select(ATTEMPT.c.node).where(ATTEMPT.c.job == job, ATTEMPT.c.blame.is_not(None))
        for node in sorted(set(db.execute(failed).scalars()) - {row.node}):
            _judge(db, node, now_s)


def failures_of(db: Connection, job: int) -> dict[int, tuple[str, Blame]]:
    """Return the node and the blame of each attempt of the job whose program ended with an error, except where the node
    is to blame."""
    mine = select(ATTEMPT.c.attempt, ATTEMPT.c.node, ATTEMPT.c.blame).join(JOB, attempts.OF_THIS_RUN)
    mine = mine.where(ATTEMPT.c.job == job, ATTEMPT.c.ending == Ending.FAILED, ATTEMPT.c.blame != Blame.NODE)
    return {row.attempt: (row.node, row.blame) for row in db.execute(mine.order_by(ATTEMPT.c.attempt))}


def _lock(db: Connection, node: str) -> Any:
    return db.execute(select(NODE).where(NODE.c.name == node).with_for_update()).one()


def _judge(db: Connection, node: str, now_s: float) -> None:
    row = _lock(db, node)
    if row.failing_since_s is None:
        return
    group_of = _groups_of_evidence(db, row, now_s)
    if returns.must_exclude(group_of, was_excluded=row.excluded_at_s is not None):
        jobs = "a job" if len(group_of) == 1 else f"{len(group_of)} jobs in a row"
        _exclude(db, row, f"{jobs} failed here and ran elsewhere", now_s)
    elif row.excluded_at_s is not None:
        _refund(db, row, row.excluded_at_s, now_s)


def _groups_of_evidence(db: Connection, node: Any, now_s: float) -> Mapping[int, str]:
    """Return the jobs that failed on the node in a row and ran elsewhere, with their groups.

    If a restore failed, a restore from the same checkpoint must have worked elsewhere. Attempts that were claimed
    before an exclusion are not considered again.
    """
    after_s = max(node.failing_since_s, node.excluded_at_s or 0.0, now_s - returns.EVIDENCE_S)
    is_new = _FAILED.c.claimed_s >= after_s if node.excluded_at_s is None else _FAILED.c.claimed_s > after_s
    here = (
        select(_FAILED)
        .where(_FAILED.c.node == node.name, _FAILED.c.blame.is_not(None), is_new)
        .order_by(_FAILED.c.claimed_s.desc())
        .limit(LOOKED_AT)
        .subquery("here")
    )
    took_s = here.c.ended_s - here.c.claimed_s
    is_quick = or_(here.c.compute_s < returns.QUICK_S, took_s < returns.QUICK_S)
    is_the_same = and_(_ELSEWHERE.c.from_attempt == here.c.from_attempt, _ELSEWHERE.c.from_number == here.c.from_number)
    still_runs = and_(_ELSEWHERE.c.ending.is_(None), now_s - _ELSEWHERE.c.claimed_s > took_s + returns.STEADY_S)
    found = (
        select(here.c.job, JOB.c.group)
        .distinct()
        .join_from(here, JOB, JOB.c.id == here.c.job)
        .join(_ELSEWHERE, and_(_ELSEWHERE.c.job == here.c.job, _ELSEWHERE.c.node != node.name))
        .where(_ELSEWHERE.c.blame.is_(None), or_(_ELSEWHERE.c.counted_s > 0, still_runs))
        .where(
            case(
                (here.c.why.in_(_UNRESTORED), is_the_same),
                else_=or_(_ELSEWHERE.c.attempt > here.c.attempt, is_quick),
            )
        )
    )
    return {row.job: row.group for row in db.execute(found)}


def _exclude(db: Connection, node: Any, because: str, now_s: float) -> None:
    times = node.times_excluded + 1
    values = {
        "times_excluded": times,
        "excluded_at_s": now_s,
        "excluded_until_s": max(node.excluded_until_s or 0.0, now_s + returns.exclusion_s(times)),
        "excluded_because": because,
    }
    db.execute(update(NODE).where(NODE.c.name == node.name).values(values))
    if node.failing_since_s is not None:
        _refund(db, node, now_s, now_s)


def _refund(db: Connection, node: Any, until_s: float, now_s: float) -> None:
    """Refund the retries that failures on an excluded node have cost, for attempts that were claimed by `until_s`.

    Jobs that another transaction has locked are refunded later.
    """
    there = and_(
        ATTEMPT.c.node == node.name,
        ATTEMPT.c.blame != Blame.NODE,
        ATTEMPT.c.claimed_s >= node.failing_since_s,
        ATTEMPT.c.claimed_s <= until_s,
    )
    owed = select(JOB.c.id).where(JOB.c.state != State.COMPLETE, JOB.c.id.in_(select(ATTEMPT.c.job).where(there)))
    for job in db.execute(owed.order_by(JOB.c.id).with_for_update(skip_locked=True)).scalars().all():
        mine = and_(ATTEMPT.c.job == job, there)
        charged = select(func.count()).join_from(ATTEMPT, JOB, attempts.OF_THIS_RUN)
        charged = charged.where(mine, ATTEMPT.c.blame == Blame.JOB)
        retries = int(db.execute(charged).scalar_one())
        db.execute(update(ATTEMPT).where(mine).values(blame=Blame.NODE))
        if retries:
            db.execute(update(JOB).where(JOB.c.id == job).values(failures=JOB.c.failures - retries))
            detail = f"{retries} refunded: {node.name} is excluded"
            record(db, job, "retries refunded", now_s=now_s, detail=detail)


# ── the cost of saves, restores and losses ──


def record_costs(
    db: Connection, job: int, attempt: int, report: Checkpointed | Saved | Completed | Returned, *, now_s: float
) -> None:
    """Add the report's measurements to its node's figures. Call this only for a new report, because a repeated one must
    count only once.

    A restore is counted at the end of its attempt, because a periodic save also reports it. The time that a workload
    takes to save itself, or to start again, depends only on the workload and is left out. A late save took longer than
    its report shows.
    """
    # The cost of a save while jobs compute shows little about saves at the end of an agent, when all jobs stand still.
    measured = None if isinstance(report, Completed | Checkpointed) else report.measured
    spent = None if isinstance(report, Checkpointed) else report.slice
    restored = spent.restored if spent and spent.restored and spent.restored.way is not Way.SELF else None
    if measured is None and restored is None:
        return
    of_attempt = select(ATTEMPT.c.node).where(ATTEMPT.c.job == job, ATTEMPT.c.attempt == attempt)
    row = ensure_row(db, RATE, node=db.execute(of_attempt).scalar_one())
    values: dict[str, Any] = {}
    if measured is not None:
        if measured.way is not Way.SELF:
            saves = _samples(row.saves)
            new = sample(measured.memory_bytes, at_once=measured.at_once, took_s=measured.took_s)
            if isinstance(report, Returned):
                new = new._replace(took_s=at_least_s(new, known=fit(saves), expected_s=measured.expected_s))
            values["saves"] = [*saves, new][-MOST_SAMPLES:]
            values["save_s"] = _save_s(values["saves"])
            values["late"] = isinstance(report, Returned) or (row.late and _came_too_late(db, job, attempt))
        if isinstance(report, Saved):
            is_same = now_s - row.boundary_s < BOUNDARY_S
            values["boundary_s"] = row.boundary_s if is_same else now_s
            values["boundary_saves"] = row.boundary_saves + 1 if is_same else 1
    if restored is not None:
        new = sample(restored.stored_bytes, at_once=restored.at_once, took_s=restored.took_s)
        values["restores"] = [*row.restores, new][-MOST_SAMPLES:]
    if values:
        db.execute(update(RATE).where(RATE.c.node == row.node).values(values))


def _came_too_late(db: Connection, job: int, attempt: int) -> bool:
    """Return True if the attempt had been returned before it reported its save."""
    event = select(EVENT.c.id).where(EVENT.c.job == job, EVENT.c.attempt == attempt, EVENT.c.what == "return")
    return db.execute(event.limit(1)).first() is not None


def record_estimate_error(db: Connection, agent: str, report: Deregistration) -> None:
    """Record how far the agent's estimate of its last saves was off, for the node's next agents."""
    if report.saving_s is None or report.saving_expected_s is None:
        return
    node = db.execute(select(AGENT.c.node).where(AGENT.c.name == agent)).scalar_one()
    row = ensure_row(db, RATE, node=node)
    took_s = report.saving_s * (LATE_FACTOR if report.was_late else 1.0)
    errors = with_error(row.errors, took_s=took_s, expected_s=report.saving_expected_s)
    db.execute(update(RATE).where(RATE.c.node == node).values(errors=errors))


def record_exposure(db: Connection, agent: str, *, vanished: bool, rules: RateRules, now_s: float) -> None:
    """Record how long an agent was on its node. Call this once, when the agent is closed.

    An agent that `vanished` is a loss if its lease ended before its planned end. The time of its death is unknown, so
    its time is counted up to the end of its lease.
    """
    row = db.execute(select(AGENT).where(AGENT.c.name == agent)).one()
    if row.registered_s is None:
        return
    until_s = row.lease_until_s if vanished else now_s
    lasted_s = max(min(until_s, row.end_s) - row.registered_s, 0)  # its deregistration might have been delayed
    is_loss = vanished and until_s < min(row.end_s, row.facts["end_s"])
    rate = ensure_row(db, RATE, node=row.node)
    age_s = now_s - rate.weighed_s
    values = {
        "agents_s": remaining_weight(rate.agents_s, age_s=age_s, half_life_s=rules.half_life_s) + lasted_s,
        "losses": remaining_weight(rate.losses, age_s=age_s, half_life_s=rules.half_life_s) + is_loss,
        "weighed_s": now_s,
    }
    db.execute(update(RATE).where(RATE.c.node == row.node).values(values))


def rates_of(db: Connection, node: str) -> NodeRates:
    """Return the rates for an agent on this node.

    For a node on which no job has been saved yet, the figures are those of the slowest other node of its kind.
    """
    row = db.execute(select(RATE).where(RATE.c.node == node)).one_or_none()
    last = select(func.max(RATE.c.boundary_s)).scalar_subquery()
    elsewhere = select(func.sum(RATE.c.boundary_saves)).where(
        RATE.c.node != node, RATE.c.boundary_saves > 0, RATE.c.boundary_s > last - BOUNDARY_S
    )
    own = _samples(row.saves) if row else ()
    saves = own or _slowest_alike(db, node)
    return NodeRates(
        saves=saves,
        restores=_samples(row.restores) if row else (),
        borrowed=bool(saves) and not own,
        errors=tuple(row.errors) if row else (),
        late=bool(row and row.late),
        saves_elsewhere=int(db.execute(elsewhere).scalar_one() or 0),
    )


def _samples(pairs: Iterable[Sequence[float]]) -> tuple[CostSample, ...]:
    return tuple(CostSample(*pair) for pair in pairs)


def _slowest_alike(db: Connection, node: str) -> tuple[CostSample, ...]:
    """Return the saves of the slowest other node of the same kind, or no saves if there is no such node."""
    kind = select(NODE.c.kind).where(NODE.c.name == node).scalar_subquery()
    alike = select(RATE.c.saves).join(NODE, NODE.c.name == RATE.c.node).where(NODE.c.kind == kind, NODE.c.name != node)
    slowest = db.execute(alike.order_by(RATE.c.save_s.desc(), RATE.c.node).limit(1))
    return _samples(slowest.scalar_one_or_none() or ())


def _save_s(saves: Sequence[CostSample]) -> float:
    cost = fit(saves)
    return cost.time_s(ALIKE_AT_MIB) if cost else 0.0


def node_mtbf_s(db: Connection, rules: RateRules) -> float:
    """Return the mean time before an agent is lost without notice, averaged over all nodes."""
    seen = db.execute(select(func.sum(RATE.c.agents_s), func.sum(RATE.c.losses))).one()
    return mean_time_between_losses_s(agents_s=seen[0] or 0.0, losses=seen[1] or 0.0, prior_s=rules.prior_s)
