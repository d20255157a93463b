"""The kinds of nodes, and the pairs of kinds that fit together. The pairs decide where a saved job can continue.

A new kind is compared with all others once, when its first node registers. The result is stored, so that a claim only
looks it up.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, text, update

from gleaner.agent.messages import NodeFacts
from gleaner.agent.node import compatibility
from gleaner.agent.node.compatibility import NodeKind, lacks
from gleaner.control.queue.lanes import barred_nodes, need_in_words, needs
from gleaner.control.queue.tables import AGENT, ATTEMPT, FIT, JOB, KIND, LANE, NODE, NODE_HAS, SAVING, NeedKind
from gleaner.control.queue.transitions import insert_unless_there


def record_kind(db: Connection, facts: NodeFacts) -> int:
    """Record the kind of a node on which an agent registers, and the folders that jobs can mount there.

    Return the id of the kind.
    """
    kind = _kind(
        db,
        compatibility.kind(
            architecture=facts.architecture, runtime=facts.runtime, criu=facts.criu, cpu_features=facts.cpu_features
        ),
    )
    is_now = update(NODE).where(NODE.c.name == facts.node).values(kind=kind)
    if not db.execute(is_now).rowcount:
        db.execute(insert_unless_there(db, NODE), {"name": facts.node, "kind": kind})
    has = [(NeedKind.MOUNT, name) for name in facts.mounts] + [(NeedKind.FETCH, name) for name in facts.fetches]
    db.execute(delete(NODE_HAS).where(NODE_HAS.c.node == facts.node))
    for need, name in sorted(set(has)):
        db.execute(insert_unless_there(db, NODE_HAS), {"node": facts.node, "need": need, "name": name})
    return kind


def forget_mount(db: Connection, node: str, folder: str) -> bool:
    """Record that jobs cannot mount a folder on a node now.

    Return False if the folder was not recorded as mountable before.
    """
    mine = (NODE_HAS.c.node == node, NODE_HAS.c.need == NeedKind.MOUNT, NODE_HAS.c.name == folder)
    return bool(db.execute(delete(NODE_HAS).where(*mine)).rowcount)


def what_nodes_have(db: Connection) -> Mapping[str, frozenset[tuple[NeedKind, str]]]:
    """Return, for each known node, the folders that jobs can mount, and the ways to fetch inputs."""
    found: dict[str, set[tuple[NeedKind, str]]] = defaultdict(set)
    for row in db.execute(select(NODE_HAS)):
        found[row.node].add((row.need, row.name))
    return defaultdict(frozenset, {node: frozenset(has) for node, has in found.items()})


def _kind(db: Connection, kind: NodeKind) -> int:
    """Return the id of this kind. A new kind is first compared with all others."""
    columns = [kind.architecture, kind.family, kind.criu, sorted(kind.cpu_features)]
    digest = hashlib.sha256(json.dumps(columns).encode()).hexdigest()
    find = select(KIND.c.id).where(KIND.c.digest == digest)
    found = db.execute(find).scalar_one_or_none()
    if found is not None:
        return int(found)
    if db.dialect.name == "postgresql":
        # Without the lock, two kinds that are recorded at the same time would not be compared with each other. The lock
        # does not make readers wait.
        db.execute(text("LOCK TABLE kind IN SHARE ROW EXCLUSIVE MODE"))
        found = db.execute(find).scalar_one_or_none()
        if found is not None:
            return int(found)
    names = ("architecture", "family", "criu", "cpu_features")
    row = {"digest": digest} | dict(zip(names, columns, strict=True))
    made = int(db.execute(insert(KIND).returning(KIND.c.id), row).scalar_one())
    pairs = [(made, made)]
    for other, that in _kinds(db).items():
        if other != made:
            pairs += [(made, other)] if not lacks(that, saved_on=kind) else []
            pairs += [(other, made)] if not lacks(kind, saved_on=that) else []
    db.execute(
        insert_unless_there(db, KIND), _ANY_THAT_SAVES
    )  # never the first row, because SQLite would number the next one 0
    pairs += [(SAVING, made)] if kind.saves else []
    db.execute(insert(FIT), [{"saved_on": saved_on, "node": node} for saved_on, node in pairs])
    return made


_ANY_THAT_SAVES: dict[str, Any] = {
    "id": SAVING, "digest": "any that saves", "architecture": "", "family": "", "criu": "", "cpu_features": [],
}  # fmt: skip


def _kinds(db: Connection) -> dict[int, NodeKind]:
    return {
        row.id: NodeKind(row.architecture, row.family, row.criu, frozenset(row.cpu_features))
        for row in db.execute(select(KIND).where(KIND.c.id != SAVING))
    }


def nodes_seen_since(db: Connection, since_s: float) -> frozenset[str]:
    """Return the nodes on which an agent has registered since that time."""
    return frozenset(db.execute(select(AGENT.c.node).where(AGENT.c.registered_s > since_s)).scalars())


def misfits(db: Connection, lanes: Sequence[Any], *, since_s: float | None = None) -> dict[int, frozenset[str]]:
    """Return, for each lane, the registered nodes on which its jobs cannot continue.

    The folders of a node that was last checked before `since_s` are unknown. Such a node counts as having all folders.
    """
    has = what_nodes_have(db)
    nodes = db.execute(select(NODE.c.name, NODE.c.kind).where(NODE.c.kind.is_not(None))).all()
    names = frozenset(node.name for node in nodes)
    looked_at = names if since_s is None else nodes_seen_since(db, since_s)
    fits = {(row.saved_on, row.node) for row in db.execute(select(FIT))}
    return {
        lane.id: barred_nodes(lane, names)
        | frozenset(node.name for node in nodes if lane.kind and (lane.kind, node.kind) not in fits)
        | frozenset(name for name in looked_at if not has[name] >= needs(lane))
        for lane in lanes
    }


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The reasons why a job cannot start or continue on some nodes."""

    saved_on: str
    """The node that saved the job, if it is saved."""
    lacking: Mapping[str, str]
    """Each node on which the job cannot continue, with the property that the node lacks. The text is empty if the node
    refused the job, or if the job migrated away from it."""


def obstacles(db: Connection, job: int) -> Obstacles | None:
    """Return the known reasons that keep the job from some nodes, or None if there are none."""
    lane: Any = db.execute(select(LANE).join(JOB, JOB.c.lane == LANE.c.id).where(JOB.c.id == job)).one_or_none()
    if lane is None:
        return None
    kinds, has = _kinds(db), what_nodes_have(db)
    nodes = db.execute(select(NODE.c.name, NODE.c.kind).where(NODE.c.kind.is_not(None)).order_by(NODE.c.name)).all()
    lacking: dict[str, str] = {}
    for node in nodes:
        missing = [*_missing(kinds, node.kind, lane.kind), *map(need_in_words, sorted(needs(lane) - has[node.name]))]
        if missing:
            lacking[node.name] = " and ".join(missing)
    lacking |= dict.fromkeys(barred_nodes(lane, [node.name for node in nodes]), "")
    return Obstacles(_saved_on(db, job), lacking) if lacking else None


def _missing(kinds: Mapping[int, NodeKind], node: int, needed: int) -> tuple[str, ...]:
    if needed == SAVING:
        return () if kinds[node].saves else ("checkpoints",)
    return lacks(kinds[node], saved_on=kinds[needed]) if needed else ()


def _saved_on(db: Connection, job: int) -> str:
    from_ = (
        select(ATTEMPT.c.node)
        .join_from(JOB, ATTEMPT, (ATTEMPT.c.job == JOB.c.id) & (ATTEMPT.c.attempt == JOB.c.from_attempt))
        .where(JOB.c.id == job)
    )
    return str(db.execute(from_).scalar_one_or_none() or "")
