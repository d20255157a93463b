"""Drains: what admins have asked for nodes, and the progress of it, so that a control that was killed goes on."""

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
    """Write down a request, and return its number. Raises `Conflict` if one of the nodes is being drained."""
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
    """Return the request of this number. Raises `NotFound`."""
    row = db.execute(select(DRAIN).where(DRAIN.c.id == number)).one_or_none()
    if row is None:
        raise NotFound(f"there is no drain {number}")
    return _stored(row)


def latest(db: Connection, at_most: int) -> tuple[DrainRow, ...]:
    """Return the last requests, the latest first."""
    rows = db.execute(select(DRAIN).order_by(DRAIN.c.id.desc()).limit(at_most))
    return tuple(_stored(row) for row in rows)


def open_ones(db: Connection) -> tuple[DrainRow, ...]:
    """Return the requests for which something is still to be done, the oldest first."""
    rows = db.execute(select(DRAIN).where(DRAIN.c.ended_s.is_(None)).order_by(DRAIN.c.id))
    return tuple(_stored(row) for row in rows)


def nodes_being_emptied(db: Connection) -> frozenset[str]:
    """Return the nodes that are being emptied: nothing of ours is to start there."""
    return frozenset(node for drain in open_ones(db) if drain.task is DrainTask.DRAIN for node in drain.nodes)


def record_progress(db: Connection, drain: DrainRow) -> None:
    """Record how far the request is."""
    values = drain.model_dump(include={"phase", "nodes", "said", "ended_s", "jobs"})
    db.execute(update(DRAIN).where(DRAIN.c.id == drain.id).values(values))


def withdraw(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """Take these nodes from earlier requests that have not begun to empty them."""
    for drain in withdrawable(db, before=before):
        _take_off(db, drain, nodes, phase=DrainPhase.REFUSED, said=f"withdrawn by {by}", now_s=now_s)


def withdrawable(db: Connection, *, before: int) -> tuple[DrainRow, ...]:
    """Return the drains asked for before this request that have not begun to empty their nodes."""
    early = {DrainPhase.ASKED, DrainPhase.MARKING}
    return tuple(
        each for each in open_ones(db) if each.task is DrainTask.DRAIN and each.phase in early and each.id < before
    )


def set_back(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """Take these nodes from all drains asked for before this request: they are in use again."""
    for drain in drains_in_effect(db).values():
        if drain.id < before:
            _take_off(db, drain, nodes, phase=DrainPhase.RESUMED, said=f"set back by {by}", now_s=now_s)


def _take_off(
    db: Connection, drain: DrainRow, nodes: Sequence[str], *, phase: DrainPhase, said: str, now_s: float
) -> None:
    """Take these nodes from the drain. A drain that has none left is over, and keeps the last for those who ask."""
    rest = tuple(node for node in drain.nodes if node not in nodes)
    if not rest:
        record_progress(db, replaced(drain, phase=phase, ended_s=now_s, said=said))
    elif len(rest) < len(drain.nodes):
        record_progress(db, replaced(drain, nodes=rest))


def drains_in_effect(db: Connection) -> Mapping[int, DrainRow]:
    """Return the drains whose nodes have not been set back by us, by number."""
    still = DRAIN.c.phase.in_([DrainPhase.MARKING, DrainPhase.EMPTYING, DrainPhase.EMPTY])
    rows = db.execute(select(DRAIN).where(DRAIN.c.task == DrainTask.DRAIN, still).order_by(DRAIN.c.id))
    return {row.id: _stored(row) for row in rows}


def drain_by_node(db: Connection) -> dict[str, DrainRow]:
    """Return the last drain of each node that has not been set back by us.

    Somebody else may have set the node back without a word.
    """
    return {node: drain for drain in drains_in_effect(db).values() for node in drain.nodes}


def remove_old(db: Connection, *, before_s: float) -> int:
    """Remove what was over before that time, and return how many. A drain whose nodes have not been set back stays."""
    stands = and_(DRAIN.c.task == DrainTask.DRAIN, DRAIN.c.phase == DrainPhase.EMPTY)
    return db.execute(delete(DRAIN).where(DRAIN.c.ended_s < before_s, not_(stands))).rowcount


def _stored(row: Any) -> DrainRow:
    """Return the request. An unknown word is an error, and never taken for another."""
    return DrainRow.model_validate(row._mapping)
