"""The results that wait to be delivered to the targets that their jobs name.

A delivery is created in the transaction that accepts a job's success, so the files of an attempt that does not count
are never delivered. An agent takes a delivery for a limited time, under a number, and only the report with that number
counts. If the agent ends or sends no report in time, the next agent takes the delivery under the next number. Two
agents that deliver at the same time do no harm, because they copy the same bytes.
"""

from typing import Any

from sqlalchemy import Connection, exists, insert, select, text, update

from gleaner.agent.messages import DeliveryReport
from gleaner.control.models.outputs import DeliveryPhase, DeliveryRow
from gleaner.control.policy import retries
from gleaner.control.queue.errors import Conflict, NotCurrent, NotFound
from gleaner.control.queue.tables import AGENT, DELIVERY, JOB, SPEC, Phase
from gleaner.control.queue.transitions import record

DELIVERED, NOT_DELIVERED = "delivered", "not delivered"
"""The events that record a delivery's end."""
UNHEARD = "the agent that had it ended, or was not heard in time"


def expect(db: Connection, job: int, attempt: int, *, now_s: float) -> None:
    """Create a delivery of this attempt's result if the job names a target.

    The attempt's result must be the accepted one.
    """
    wanted = select(SPEC.c.document, JOB.c.campaign, JOB.c.index.label("run"), JOB.c.parameters).join_from(
        JOB, SPEC, JOB.c.spec == SPEC.c.id
    )
    row = db.execute(wanted.where(JOB.c.id == job)).one()
    outputs = row.document.resolved(job=job, campaign=row.campaign, index=row.run, parameters=row.parameters).outputs
    if outputs is None or outputs.to is None:
        return
    new = {"job": job, "attempt": attempt, "to": outputs.to, "phase": DeliveryPhase.WAITING, "tries": 0, "failures": 0}
    db.execute(insert(DELIVERY).values(**new, due_s=now_s, problem=""))


def is_due(db: Connection, *, now_s: float) -> bool:
    """Return True if a delivery waits for an agent. This is checked at every heartbeat, so the query uses an index."""
    return db.execute(select(DELIVERY.c.job).where(_IS_OPEN, DELIVERY.c.due_s <= now_s).limit(1)).first() is not None


_IS_OPEN = text("delivery.phase = 'waiting'")  # exactly these words, so that the partial index is used


def release(db: Connection, agent: str, *, now_s: float) -> None:
    """Let another agent take over this agent's delivery immediately, because this agent has ended."""
    db.execute(update(DELIVERY).where(_IS_OPEN, DELIVERY.c.agent == agent).values(due_s=now_s))


def take(db: Connection, agent: str, *, lease_s: float, most_failures: int, now_s: float) -> Any | None:
    """Assign to the agent the delivery that has waited longest. Return its row, or None if none is due.

    The row contains the job's group, its result's digest, and the part of its folder that is kept. A try without a
    report counts as one failure, so a delivery that takes longer than any agent's lifetime is given up after
    `most_failures` failures. Raises `Conflict` for an agent that is not live.
    """
    if not db.execute(select(exists().where(AGENT.c.name == agent, AGENT.c.phase == Phase.LIVE))).scalar_one():
        raise Conflict(f"agent {agent} may not deliver: it is not live")
    run = JOB.c.index.label("run")
    whole = (
        select(DELIVERY, JOB.c.group, run, JOB.c.parameters, JOB.c.output_digest, JOB.c.campaign, SPEC.c.document)
        .join_from(DELIVERY, JOB, JOB.c.id == DELIVERY.c.job)
        .join(SPEC, SPEC.c.id == JOB.c.spec)
    )
    due = whole.where(_IS_OPEN, DELIVERY.c.due_s <= now_s).order_by(DELIVERY.c.due_s, DELIVERY.c.job)
    while row := db.execute(due.limit(1).with_for_update(skip_locked=True, of=DELIVERY)).one_or_none():
        if row.output_digest is None:
            _give_up(db, row, "its result was removed", now_s=now_s)
            continue
        taken = {"tries": row.tries + 1, "agent": agent, "due_s": now_s + lease_s}
        if row.agent is not None:
            if row.failures + 1 >= most_failures:
                _give_up(db, row, UNHEARD, now_s=now_s)
                continue
            taken |= {"failures": row.failures + 1, "problem": UNHEARD}
        _change(db, row.job, taken)
        return db.execute(whole.where(DELIVERY.c.job == row.job)).one()
    return None


def record_end(db: Connection, report: DeliveryReport, *, agent: str, most_failures: int, now_s: float) -> None:
    """Record that a try to deliver a result has ended. A failed delivery is tried again after pauses that grow.

    The delivery is given up after `most_failures` failures, or if another try would certainly fail. Raises `NotCurrent`
    if another try has begun since. A repeated report changes nothing.
    """
    row = _locked(db, report.job)
    if row.tries != report.number or row.agent not in {agent, None}:
        raise NotCurrent(report.job, row.attempt, f"try {row.tries} to deliver its result is the latest")
    if row.agent is None:
        return
    if not report.failed:
        end = {"phase": DeliveryPhase.DELIVERED, "files": report.files, "size_bytes": report.size_bytes}
        _change(db, row.job, {**end, "agent": None, "problem": "", "ended_s": now_s})
        record(db, report.job, DELIVERED, now_s=now_s, detail=f"{report.files} files to {row.to}")
        return
    failures = row.failures + 1
    if report.may_pass and failures < most_failures:
        due_s = now_s + retries.pause_s(failures)
        _change(db, row.job, {"agent": None, "failures": failures, "due_s": due_s, "problem": report.failed})
        return
    _give_up(db, row, report.failed, now_s=now_s)


def _give_up(db: Connection, row: Any, problem: str, *, now_s: float) -> None:
    end = {"phase": DeliveryPhase.FAILED, "failures": row.failures + 1, "problem": problem, "ended_s": now_s}
    _change(db, row.job, {**end, "agent": None})
    record(db, row.job, NOT_DELIVERED, now_s=now_s, detail=problem)


def try_again(db: Connection, job: int, *, now_s: float) -> None:
    """Queue a result for delivery again, even if it was delivered. Raises `NotFound` if its job names no target."""
    if _locked(db, job).phase is not DeliveryPhase.WAITING:
        again = {"phase": DeliveryPhase.WAITING, "failures": 0, "due_s": now_s, "problem": "", "ended_s": None}
        _change(db, job, again | {"files": None, "size_bytes": None})


def find(db: Connection, job: int) -> DeliveryRow | None:
    """Return the delivery of the job's result, if it exists."""
    row = db.execute(select(DELIVERY).where(DELIVERY.c.job == job)).mappings().one_or_none()
    return None if row is None else DeliveryRow.model_validate(row)


def _locked(db: Connection, job: int) -> Any:
    row = db.execute(select(DELIVERY).where(DELIVERY.c.job == job).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"job {job} has no result that is to be delivered")
    return row


def _change(db: Connection, job: int, values: dict[str, Any]) -> None:
    """Update a delivery whose row is locked."""
    db.execute(update(DELIVERY).where(DELIVERY.c.job == job).values(values))
