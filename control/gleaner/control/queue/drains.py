"""What admins have asked to be done to nodes, and how far it is: so that a control that was killed goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, not_, select, update

from gleaner.control.policy.draining import Deed, Kind, Spanning
from gleaner.control.queue.drain_tables import DRAIN, OVER, DrainPhase, DrainTask
from gleaner.control.queue.errors import Refused, Unknown


@dataclass(frozen=True, slots=True)
class DrainedJob:
    """One of the scheduler's jobs on nodes that are drained."""

    job: str
    user: str
    kind: Kind
    deed: Deed
    nodes: tuple[str, ...]
    until_s: float | None
    """When the scheduler ends it at the latest."""
    at_first: int = 1
    """How many jobs of our queue the agent had when it was first seen; 1 for whatever is no agent."""
    left: int = 1
    told_s: float | None = None
    gone_s: float | None = None
    released: bool = False
    """Whether it has been let into the scheduler's queue again, or needs no such thing."""


@dataclass(frozen=True, slots=True)
class StoredDrain:
    """One request; see `drain_tables.Drain`."""

    id: int
    task: DrainTask
    phase: DrainPhase
    nodes: tuple[str, ...]
    by: str
    spanning: Spanning
    leaves_others: bool
    asked_s: float
    ended_s: float | None = None
    said: str = ""
    jobs: tuple[DrainedJob, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.phase in OVER


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
    """Write down a request; its number. Raises `Refused` if one of the nodes is being drained."""
    if task is DrainTask.DRAIN:
        for other in open_ones(db):
            both = sorted(set(other.nodes) & set(nodes))
            if other.task is DrainTask.DRAIN and both:
                raise Refused(f"{', '.join(both)}: being drained already, by {other.by} (drain {other.id})")
    row = {
        "task": task,
        "phase": DrainPhase.ASKED,
        "nodes": list(nodes),
        "by": by,
        "spanning": spanning.value,
        "leaves_others": leaves_others,
        "asked_s": now_s,
        "said": "",
        "jobs": [],
    }
    return int(db.execute(insert(DRAIN).returning(DRAIN.c.id), row).scalar_one())


def one(db: Connection, number: int) -> StoredDrain:
    """The request of this number. Raises `Unknown`."""
    row = db.execute(select(DRAIN).where(DRAIN.c.id == number)).one_or_none()
    if row is None:
        raise Unknown(f"there is no drain {number}")
    return _stored(row)


def latest(db: Connection, at_most: int) -> tuple[StoredDrain, ...]:
    """The last requests, the latest first."""
    rows = db.execute(select(DRAIN).order_by(DRAIN.c.id.desc()).limit(at_most))
    return tuple(_stored(row) for row in rows)


def open_ones(db: Connection) -> tuple[StoredDrain, ...]:
    """The requests for which something is still to be done, the oldest first."""
    rows = db.execute(select(DRAIN).where(DRAIN.c.ended_s.is_(None)).order_by(DRAIN.c.id))
    return tuple(_stored(row) for row in rows)


def emptied_now(db: Connection) -> frozenset[str]:
    """The nodes that are being emptied: nothing of ours is to start there."""
    return frozenset(node for drain in open_ones(db) if drain.task is DrainTask.DRAIN for node in drain.nodes)


def note(db: Connection, drain: StoredDrain) -> None:
    """Write down how far it is."""
    values: dict[str, Any] = {
        "phase": drain.phase,
        "nodes": list(drain.nodes),
        "said": drain.said,
        "ended_s": drain.ended_s,
        "jobs": [asdict(job) for job in drain.jobs],
    }
    db.execute(update(DRAIN).where(DRAIN.c.id == drain.id).values(values))


def withdraw(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """Nothing more is to be done to these nodes by an earlier request that has not begun to empty them."""
    for drain in withdrawable(db, before=before):
        _take_off(db, drain, nodes, phase=DrainPhase.REFUSED, said=f"withdrawn by {by}", now_s=now_s)


def withdrawable(db: Connection, *, before: int) -> tuple[StoredDrain, ...]:
    """The drains asked for before this request that have not begun to empty their nodes."""
    early = {DrainPhase.ASKED, DrainPhase.MARKING}
    return tuple(
        each for each in open_ones(db) if each.task is DrainTask.DRAIN and each.phase in early and each.id < before
    )


def set_back(db: Connection, nodes: Sequence[str], *, by: str, before: int, now_s: float) -> None:
    """These nodes are in use again: no drain asked for before this request has them any more."""
    for drain in drained(db).values():
        if drain.id < before:
            _take_off(db, drain, nodes, phase=DrainPhase.RESUMED, said=f"set back by {by}", now_s=now_s)


def _take_off(
    db: Connection, drain: StoredDrain, nodes: Sequence[str], *, phase: DrainPhase, said: str, now_s: float
) -> None:
    """The drain has these nodes no more. One that has none left is over, and keeps the last for those who ask."""
    rest = tuple(node for node in drain.nodes if node not in nodes)
    if not rest:
        note(db, replace(drain, phase=phase, ended_s=now_s, said=said))
    elif len(rest) < len(drain.nodes):
        note(db, replace(drain, nodes=rest))


def drained(db: Connection) -> Mapping[int, StoredDrain]:
    """The drains whose nodes have not been set back by us, by number."""
    still = DRAIN.c.phase.in_([DrainPhase.MARKING, DrainPhase.EMPTYING, DrainPhase.EMPTY])
    rows = db.execute(select(DRAIN).where(DRAIN.c.task == DrainTask.DRAIN, still).order_by(DRAIN.c.id))
    return {row.id: _stored(row) for row in rows}


def nodes_drained(db: Connection) -> dict[str, StoredDrain]:
    """The last drain of each node that has not been set back by us. Others may have set it back without a word."""
    return {node: drain for drain in drained(db).values() for node in drain.nodes}


def remove_old(db: Connection, *, before_s: float) -> int:
    """Remove what was over before that time; how many. A drain whose nodes have not been set back stays."""
    stands = and_(DRAIN.c.task == DrainTask.DRAIN, DRAIN.c.phase == DrainPhase.EMPTY)
    return db.execute(delete(DRAIN).where(DRAIN.c.ended_s < before_s, not_(stands))).rowcount


def _stored(row: Any) -> StoredDrain:
    return StoredDrain(
        id=row.id,
        task=row.task,
        phase=row.phase,
        nodes=tuple(row.nodes),
        by=row.by,
        spanning=Spanning(row.spanning),
        leaves_others=row.leaves_others,
        asked_s=row.asked_s,
        ended_s=row.ended_s,
        said=row.said,
        jobs=tuple(_stored_job(job) for job in row.jobs),
    )


def _stored_job(job: dict[str, Any]) -> DrainedJob:
    """A word that is none of ours is an error, and never taken for another."""
    typed: dict[str, Any] = {"kind": Kind(job["kind"]), "deed": Deed(job["deed"]), "nodes": tuple(job["nodes"])}
    return DrainedJob(**job | typed)
