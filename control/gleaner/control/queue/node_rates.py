"""Node rates: what saves, restores and losses have cost on each node. Reports add to them, and a new agent is told."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from gleaner.agent.messages import Checkpointed, Completed, CostSample, Deregistration, NodeRates, Returned, Saved, Way
from gleaner.agent.timing.save_cost import MOST_SAMPLES, fit, sample
from gleaner.control.policy.rate_estimates import (
    LATE_FACTOR,
    RateRules,
    at_least_s,
    mean_time_between_losses_s,
    remaining_weight,
    with_error,
)
from gleaner.control.queue.tables import AGENT, ATTEMPT, EVENT, NODE, RATE
from gleaner.control.queue.transitions import insert_unless_there

BOUNDARY_S = 120.0
"""Saves within so many seconds belong to one boundary."""
ALIKE_AT_MIB = 256.0
"""Nodes of one kind are compared by the time that a save of so much memory takes."""
_FRESH: dict[str, Any] = {
    "saves": [],
    "save_s": 0.0,
    "restores": [],
    "errors": [],
    "late": False,
    "boundary_s": 0.0,
    "boundary_saves": 0,
    "agents_s": 0.0,
    "losses": 0.0,
    "weighed_s": 0.0,
}


def record_report(
    db: Connection, job: int, attempt: int, report: Checkpointed | Saved | Completed | Returned, *, now_s: float
) -> None:
    """Add what the report measured to its node's figures. Only for a report that was news: what is repeated counts
    once.

    A restore counts at its attempt's end, so that a periodic save, which reports it too, does not count it again. The
    time that a workload takes to save itself, or to begin again, says nothing of the node. A save that came too late
    took longer than it says.
    """
    # What a save costs beside jobs that compute says little of the end of an agent, where they stand still.
    measured = None if isinstance(report, Completed | Checkpointed) else report.measured
    spent = None if isinstance(report, Checkpointed) else report.slice
    restored = spent.restored if spent and spent.restored and spent.restored.way is not Way.SELF else None
    if measured is None and restored is None:
        return
    of_attempt = select(ATTEMPT.c.node).where(ATTEMPT.c.job == job, ATTEMPT.c.attempt == attempt)
    row = _locked(db, db.execute(of_attempt).scalar_one())
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
    """Return True if the attempt had been returned before it reported what it saved."""
    event = select(EVENT.c.id).where(EVENT.c.job == job, EVENT.c.attempt == attempt, EVENT.c.what == "return")
    return db.execute(event.limit(1)).first() is not None


def record_deregistration(db: Connection, agent: str, report: Deregistration) -> None:
    """Record how far the agent's estimate of its last saves was off, for the node's next agents."""
    if report.saving_s is None or report.saving_expected_s is None:
        return
    node = db.execute(select(AGENT.c.node).where(AGENT.c.name == agent)).scalar_one()
    row = _locked(db, node)
    took_s = report.saving_s * (LATE_FACTOR if report.was_late else 1.0)
    errors = with_error(row.errors, took_s=took_s, expected_s=report.saving_expected_s)
    db.execute(update(RATE).where(RATE.c.node == node).values(errors=errors))


def record_exposure(db: Connection, agent: str, *, vanished: bool, rules: RateRules, now_s: float) -> None:
    """Record the time that an agent was on its node, once, when the agent is closed.

    An agent that `vanished` is a loss if it was silent before its end was near. Nobody knows when it died: its time
    runs to the end of its lease.
    """
    row = db.execute(select(AGENT).where(AGENT.c.name == agent)).one()
    if row.registered_s is None:
        return
    until_s = row.lease_until_s if vanished else now_s
    lasted_s = max(min(until_s, row.end_s) - row.registered_s, 0)  # its deregistration may have waited on the storage
    is_loss = vanished and until_s < min(row.end_s, row.facts["end_s"])
    rate = _locked(db, row.node)
    age_s = now_s - rate.weighed_s
    values = {
        "agents_s": remaining_weight(rate.agents_s, age_s=age_s, half_life_s=rules.half_life_s) + lasted_s,
        "losses": remaining_weight(rate.losses, age_s=age_s, half_life_s=rules.half_life_s) + is_loss,
        "weighed_s": now_s,
    }
    db.execute(update(RATE).where(RATE.c.node == row.node).values(values))


def _locked(db: Connection, node: str) -> Any:
    """Return the node's row, locked until the transaction ends. It is made if it is not there."""
    find = select(RATE).where(RATE.c.node == node).with_for_update()
    row = db.execute(find).one_or_none()
    if row is None:
        db.execute(insert_unless_there(db, RATE), {"node": node} | _FRESH)
        row = db.execute(find).one()
    return row


def of_node(db: Connection, node: str) -> NodeRates:
    """Return what an agent on this node should know.

    Of a node that has not saved yet the slowest of the other nodes of its kind says what to expect.
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
    """Return the saves of the slowest other node of the same kind; no saves where there is none."""
    kind = select(NODE.c.kind).where(NODE.c.name == node).scalar_subquery()
    alike = select(RATE.c.saves).join(NODE, NODE.c.name == RATE.c.node).where(NODE.c.kind == kind, NODE.c.name != node)
    slowest = db.execute(alike.order_by(RATE.c.save_s.desc(), RATE.c.node).limit(1))
    return _samples(slowest.scalar_one_or_none() or ())


def _save_s(saves: Sequence[CostSample]) -> float:
    cost = fit(saves)
    return cost.time_s(ALIKE_AT_MIB) if cost else 0.0


def node_mtbf_s(db: Connection, rules: RateRules) -> float:
    """Return the mean time between losses of an agent without notice, over the whole fleet."""
    seen = db.execute(select(func.sum(RATE.c.agents_s), func.sum(RATE.c.losses))).one()
    return mean_time_between_losses_s(agents_s=seen[0] or 0.0, losses=seen[1] or 0.0, prior_s=rules.prior_s)
