"""Drains that admins have requested, with their progress, so that control can continue them after being killed."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, not_, select, update

from gleaner.control.models.base import replaced
from gleaner.control.models.drains import DrainPhase, DrainRow, DrainTask
from gleaner.control.policy.draining import Spanning
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import DRAIN


def ask(
    db: Connection,
    *,
    task: DrainTask,
    nodes: Sequence[str],
    by: str,
    now_s: float,
    spanning: Spanning = Spanning.REFUSE,
    leaves_others: bool = False,
) -> int:
    """Store a request and return its number. Raises `Conflict` if one of the nodes is already being drained."""
    if task is DrainTask.DRAIN:
        for other in open_ones(db):
            both = sorted(set(other.nodes) & set(nodes))
            if other.task is DrainTask.DRAIN and both:
                raise Conflict(f"{', '.join(both)}: being drained already, by {other.by} (drain {other.id})")
    row = {
        "task": task,
        "phase": DrainPhase.ASKED,
        "nodes": list(nodes),
        "by": by,
        "spanning": spanning,
        "leaves_others": leaves_others,
        "asked_s": now_s,
        "said": "",
        "jobs": [],
    }
    return int(db.execute(insert(DRAIN).returning(DRAIN.c.id), row).scalar_one())


def one(db: Connection, number: int) -> DrainRow:
    """Return the request with this number. Raises `NotFound`."""
    row = db.execute(select(DRAIN).where(DRAIN.c.id == number)).one_or_none()
    if row is None:
        raise NotFound(f"there is no drain {number}")
    return _stored(row)


def latest(db: Connection, at_most: int) -> tuple[DrainRow, ...]:
    """Return the latest requests, the newest first."""
    rows = db.execute(select(DRAIN).order_by(DRAIN.c.id.desc()).limit(at_most))
    return tuple(_stored(row) for row in rows)


def open_ones(db: Connection) -> tuple[DrainRow, ...]:
    """Return the requests that are not finished, the oldest first."""
    rows = db.execute(select(DRAIN).where(DRAIN.c.ended_s.is_(None)).order_by(DRAIN.c.id))
    return tuple(_stored(row) for row in rows)


def nodes_being_emptied(db: Connection) -> frozenset[str]:
    """Return the nodes that are being emptied. Gleaner's agents and jobs must not start on them."""
    return frozenset(node for drain in open_ones(db) if drain.task is DrainTask.DRAIN for node in drain.nodes)


def record_progress(db: Connection, drain: DrainRow) -> None:
    """Store the progress of the request."""
    values = drain.model_dump(include={"phase", "nodes", "said", "ended_s", "jobs"})
    db.execute(update(DRAIN).where(DRAIN.c.id == drain.id).values(values))


def withdraw(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """Remove these nodes from earlier requests that have not begun to empty them."""
    for drain in withdrawable(db, before=before):
        _take_off(db, drain, nodes, phase=DrainPhase.REFUSED, said=f"withdrawn by {by}", now_s=now_s)


def withdrawable(db: Connection, *, before: int) -> tuple[DrainRow, ...]:
    """Return the drains that were requested before this request and have not begun to empty their nodes."""
    early = {DrainPhase.ASKED, DrainPhase.MARKING}
    return tuple(
        each for each in open_ones(db) if each.task is DrainTask.DRAIN and each.phase in early and each.id < before
    )


def set_back(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """Remove these nodes from all drains that were requested before this one, because the nodes are in use again."""
    for drain in drains_in_effect(db).values():
        if drain.id < before:
            _take_off(db, drain, nodes, phase=DrainPhase.RESUMED, said=f"set back by {by}", now_s=now_s)


def _take_off(
    db: Connection, drain: DrainRow, nodes: Sequence[str], *, phase: DrainPhase, said: str, now_s: float
) -> None:
    """Remove these nodes from the drain.

    A drain that would have no nodes left is over, and keeps its last nodes for the record.
    """
    rest = tuple(node for node in drain.nodes if node not in nodes)
    if not rest:
        record_progress(db, replaced(drain, phase=phase, ended_s=now_s, said=said))
    elif len(rest) < len(drain.nodes):
        record_progress(db, replaced(drain, nodes=rest))


def drains_in_effect(db: Connection) -> Mapping[int, DrainRow]:
    """Return, by number, the drains whose nodes Gleaner has not resumed."""
    still = DRAIN.c.phase.in_([DrainPhase.MARKING, DrainPhase.EMPTYING, DrainPhase.EMPTY])
    rows = db.execute(select(DRAIN).where(DRAIN.c.task == DrainTask.DRAIN, still).order_by(DRAIN.c.id))
    return {row.id: _stored(row) for row in rows}


def drain_by_node(db: Connection) -> dict[str, DrainRow]:
    """Return the last drain of each node that Gleaner has not resumed.

    Another program or person might have resumed the node without Gleaner's knowledge.
    """
    return {node: drain for drain in drains_in_effect(db).values() for node in drain.nodes}


def remove_old(db: Connection, *, before_s: float) -> int:
    """Remove the drains that ended before that time. Return how many were removed.

    A drain stays while Gleaner has not resumed its nodes.
    """
    stands = and_(DRAIN.c.task == DrainTask.DRAIN, DRAIN.c.phase == DrainPhase.EMPTY)
    return db.execute(delete(DRAIN).where(DRAIN.c.ended_s < before_s, not_(stands))).rowcount


def _stored(row: Any) -> DrainRow:
    """Return the request. An unknown value in the row raises an error and is never mistaken for another one."""
    return DrainRow.model_validate(row._mapping)
