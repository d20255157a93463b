"""The results that wait to be delivered to the targets that their jobs name.

A delivery comes into being in the transaction that accepts a job's success: what an attempt has that does not count is
never delivered. An agent takes it for a while, under a number. Only the report of that number counts; if none comes, or
the agent ends, the next agent gets it under the next number. Two agents that deliver at once do no harm: they copy the
same bytes.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, insert, select, text, update

from gleaner.agent.messages import DeliveryReport
from gleaner.control.models.outputs import DeliveryPhase, DeliveryRow
from gleaner.control.policy import retries
from gleaner.control.queue.errors import NotCurrent, Refused, Unknown
from gleaner.control.queue.tables import AGENT, DELIVERY, JOB, SPEC, Phase
from gleaner.control.queue.transitions import record

DELIVERED, NOT_DELIVERED = "delivered", "not delivered"
"""The events of a delivery's end."""
AGENT_ENDED = "its agent ended before the end"
NOTHING_HEARD = "its agent has not said in time how it ended"


def expect(db: Connection, job: int, attempt: int, *, now_s: float) -> None:
    """Let the result of this attempt be delivered, if the job names a target. It is the result that counts."""
    wanted = select(SPEC.c.document, JOB.c.campaign, JOB.c.index.label("run")).join_from(
        JOB, SPEC, JOB.c.spec == SPEC.c.id
    )
    row = db.execute(wanted.where(JOB.c.id == job)).one()
    outputs = row.document.resolved(job=job, campaign=row.campaign, index=row.run).outputs
    if outputs is None or outputs.to is None:
        return
    to = outputs.to
    new = {"job": job, "attempt": attempt, "to": to, "phase": DeliveryPhase.WAITING, "tries": 0, "failures": 0}
    db.execute(insert(DELIVERY).values(**new, due_s=now_s, problem=""))


def is_due(db: Connection, *, now_s: float) -> bool:
    """Return True if a delivery waits for an agent.

    Each heartbeat asks: two questions, each answered by the index.
    """
    return any(db.execute(select(DELIVERY.c.job).where(one).limit(1)).first() for one in (_is_due(now_s), _IS_LEFT))


_IS_OPEN = text("delivery.phase IN ('waiting', 'taken')")  # word by word, so that its partial index is used
_IS_TAKEN = text("delivery.phase = 'taken'")
_IS_LEFT = and_(
    _IS_TAKEN,
    exists().where(AGENT.c.name == DELIVERY.c.agent, AGENT.c.phase == Phase.ENDED),
)
"""The condition: the agent that took it has ended."""


def _is_due(now_s: float) -> ColumnElement[bool]:
    """Return the condition: it waits and its pause is over, or the agent that took it has come to no end."""
    return and_(_IS_OPEN, DELIVERY.c.due_s <= now_s)


def take(db: Connection, agent: str, *, lease_s: float, most_failures: int, now_s: float) -> Any | None:
    """Give the delivery that has waited longest to the agent; return its row, or None if none is due.

    The row has the job's group, its result's digest, and what is kept of its folder. A try that nobody has ended is one
    failure: so what fits into no agent's time is given up after `most_failures`. Raises `Refused` for an agent that is
    not live.
    """
    if not db.execute(select(exists().where(AGENT.c.name == agent, AGENT.c.phase == Phase.LIVE))).scalar_one():
        raise Refused(f"agent {agent} may not deliver: it is not live")
    for condition, problem in ((_is_due(now_s), NOTHING_HEARD), (_IS_LEFT, AGENT_ENDED)):
        first = select(DELIVERY).where(condition).order_by(DELIVERY.c.due_s, DELIVERY.c.job).limit(1)
        while row := db.execute(first.with_for_update(skip_locked=True, of=DELIVERY)).one_or_none():
            taken = {"phase": DeliveryPhase.TAKEN, "tries": row.tries + 1, "agent": agent, "due_s": now_s + lease_s}
            if row.phase is DeliveryPhase.TAKEN:
                if row.failures + 1 >= most_failures:
                    _give_up(db, row, problem, now_s=now_s)
                    continue
                taken |= {"failures": row.failures + 1, "problem": problem}
            _change(db, row, taken)
            return _whole(db, row.job)
    return None


def _whole(db: Connection, job: int) -> Any:
    columns = (DELIVERY, JOB.c.group, JOB.c.index.label("run"), JOB.c.output_digest, JOB.c.campaign, SPEC.c.document)
    whole = select(*columns).join_from(DELIVERY, JOB, JOB.c.id == DELIVERY.c.job).join(SPEC, SPEC.c.id == JOB.c.spec)
    return db.execute(whole.where(DELIVERY.c.job == job)).one()


def record_end(db: Connection, report: DeliveryReport, *, agent: str, most_failures: int, now_s: float) -> None:
    """Record how a try to deliver has ended. After a failure it is tried again, with growing pauses.

    It is given up after `most_failures`, or when another try would fail, too. Raises `NotCurrent` if another try has
    begun since. The same report once more changes nothing.
    """
    row = _locked(db, report.job)
    if row.tries != report.number or row.agent != agent:
        raise NotCurrent(report.job, row.attempt, f"try {row.tries} to deliver its result is the latest")
    if row.phase is not DeliveryPhase.TAKEN:
        return
    if not report.failed:
        end = {"phase": DeliveryPhase.DELIVERED, "files": report.files, "size_bytes": report.size_bytes}
        _change(db, row, {**end, "problem": "", "ended_s": now_s})
        record(db, report.job, DELIVERED, now_s=now_s, detail=f"{report.files} files to {row.to}")
        return
    failures = row.failures + 1
    if report.may_pass and failures < most_failures:
        due_s = now_s + retries.pause_s(failures)
        again = {"phase": DeliveryPhase.WAITING, "failures": failures, "due_s": due_s, "problem": report.failed}
        _change(db, row, again)
        return
    _give_up(db, row, report.failed, now_s=now_s)


def _give_up(db: Connection, row: Any, problem: str, *, now_s: float) -> None:
    end = {"phase": DeliveryPhase.FAILED, "failures": row.failures + 1, "problem": problem, "ended_s": now_s}
    _change(db, row, end)
    record(db, row.job, NOT_DELIVERED, now_s=now_s, detail=problem)


def try_again(db: Connection, job: int, *, now_s: float) -> None:
    """Let a result be delivered anew, also one that is delivered. Raises `Unknown` if its job names no target."""
    row = _locked(db, job)
    if row.phase in {DeliveryPhase.DELIVERED, DeliveryPhase.FAILED}:
        again = {"phase": DeliveryPhase.WAITING, "failures": 0, "due_s": now_s, "problem": "", "ended_s": None}
        _change(db, row, again | {"files": None, "size_bytes": None})


def find(db: Connection, job: int) -> DeliveryRow | None:
    """Return the delivery of the job's result, if there is one."""
    row = db.execute(select(DELIVERY).where(DELIVERY.c.job == job)).mappings().one_or_none()
    return None if row is None else DeliveryRow.model_validate(row)


def _locked(db: Connection, job: int) -> Any:
    row = db.execute(select(DELIVERY).where(DELIVERY.c.job == job).with_for_update()).one_or_none()
    if row is None:
        raise Unknown(f"job {job} has no result that is to be delivered")
    return row


def _change(db: Connection, row: Any, values: dict[str, Any]) -> None:
    """Change a delivery whose row is locked."""
    same = and_(DELIVERY.c.job == row.job, DELIVERY.c.tries == row.tries, DELIVERY.c.phase == row.phase)
    db.execute(update(DELIVERY).where(same).values(values))
