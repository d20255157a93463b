"""Avoided nodes: those on which agents have failed in a row, and those that `blame` does not trust."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, null, select, update

from gleaner.control.queue import blame
from gleaner.control.queue.schema import DOUBT, NODE

FAILURES_UNTIL_AVOIDED = 3
AVOID_S = 3600.0


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """The number of times in a row that agents have failed on a node, and until when the node is avoided."""

    failures: int
    avoided_until_s: float | None
    reason: str = ""
    """Why the node is not trusted, if its jobs' failures are the reason."""


def record_failure(db: Connection, node: str, *, now_s: float, failures_until_avoided: int, avoid_s: float) -> None:
    """Record that an agent failed because of its node. After so many in a row the node is avoided for a while.

    The count goes on: after that while a single further failure is enough.
    """
    found = db.execute(select(NODE.c.failures).where(NODE.c.name == node).with_for_update()).scalar_one_or_none()
    failures = (found or 0) + 1
    until_s = now_s + avoid_s if failures >= failures_until_avoided else None
    values = {"failures": failures, "failed_s": now_s, "avoided_until_s": until_s}
    if found is None:
        db.execute(insert(NODE), {"name": node} | values)
    else:
        db.execute(update(NODE).where(NODE.c.name == node).values(values))


def record_success(db: Connection, node: str) -> None:
    """Record that an agent has run a job on the node: the row of failures is broken."""
    worked = update(NODE).where(NODE.c.name == node, NODE.c.failures > 0)
    db.execute(worked.values(failures=0, avoided_until_s=null()))


def limit(db: Connection, *, now_s: float, avoid_s: float) -> None:
    """Let no node be avoided for longer than `avoid_s`, as it would be where the clock has been set back."""
    db.execute(update(NODE).where(NODE.c.avoided_until_s > now_s + avoid_s).values(avoided_until_s=now_s))


def avoided(db: Connection, now_s: float) -> tuple[str, ...]:
    """Return the nodes that are avoided now, because agents or jobs have failed there."""
    names = select(NODE.c.name).where(NODE.c.avoided_until_s > now_s)
    bad = select(DOUBT.c.node).where(DOUBT.c.avoided_until_s > now_s)
    return tuple(sorted({*db.execute(names).scalars(), *db.execute(bad).scalars()}))


def failures(db: Connection, *, now_s: float = 0.0) -> dict[str, NodeFailures]:
    """Return all nodes on which agents have failed, or that are not trusted for their jobs' failures, by name."""
    rows = db.execute(select(NODE).where(NODE.c.failures > 0))
    found = {row.name: NodeFailures(row.failures, row.avoided_until_s) for row in rows}
    for name, doubt in blame.doubted(db, now_s).items():
        agents_failed = found.get(name, NodeFailures(0, None))
        until_s = max(agents_failed.avoided_until_s or 0.0, doubt.avoided_until_s or 0.0) or None
        found[name] = NodeFailures(agents_failed.failures, until_s, doubt.reason)
    return found


def forget(db: Connection, node: str) -> bool:
    """Use the node again at once: somebody has mended it. Return True if anything was held against the node."""
    doubted = blame.forget(db, node)
    failed = db.execute(
        update(NODE).where(NODE.c.name == node, NODE.c.failures > 0).values(failures=0, avoided_until_s=null())
    )
    return bool(failed.rowcount) or doubted
