"""The inputs that groups have stored, and which of them are still needed.

A job keeps what it was submitted with: the names, and where each input is in the storage. An input stays while a job
that has not ended needs it, and for some days after its last use.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from gleaner.agent.messages import StoredInput
from gleaner.control.models.inputs import InputRow, InputSpec
from gleaner.control.queue.errors import Refused
from gleaner.control.queue.schema import INPUT, JOB, SPEC
from gleaner.control.states import State


def use(db: Connection, group: str, contents: Sequence[str], *, now_s: float) -> dict[str, Any]:
    """Return the rows of those of these inputs that the group has stored. They count as used now."""
    mine = (INPUT.c.group == group) & INPUT.c.content.in_(contents)
    db.execute(update(INPUT).where(mine).values(used_s=now_s))
    return {row.content: row for row in db.execute(select(INPUT).where(mine))}


def take_for_spec(
    db: Connection, group: str, inputs: Sequence[InputSpec], *, now_s: float
) -> list[dict[str, object]] | None:
    """Return a new job's inputs as its spec keeps them. Raises `Refused` if the group has not stored one."""
    stored = use(db, group, [one.content for one in inputs], now_s=now_s)
    for one in inputs:
        if one.content not in stored:
            raise Refused(f"group {group} has not stored the input {one.name}: submit with glean, which sends it")
    found = [
        StoredInput(
            name=one.name,
            content=one.content,
            digest=stored[one.content].digest,
            size_bytes=stored[one.content].size_bytes,
            into_job=one.into_job,
        )
        for one in inputs
    ]
    return [one.model_dump() for one in found] or None


def put(db: Connection, row: InputRow, *, digest: str, group_bytes: int) -> None:
    """Record that an input is in the storage, with this digest of its manifest.

    Raises `Refused` if the group's inputs are larger than `group_bytes` together.
    """
    mine = INPUT.c.group == row.group
    db.execute(delete(INPUT).where(mine, INPUT.c.content == row.content))
    others = db.execute(select(func.coalesce(func.sum(INPUT.c.size_bytes), 0)).where(mine)).scalar_one()
    if others + row.size_bytes > group_bytes:
        raise Refused(
            f"the inputs of group {row.group} would take {(others + row.size_bytes) / 2**30:.3g} GiB, and may take"
            f" {group_bytes / 2**30:.3g} ([inputs] group_gib); those of jobs that have ended go after some days"
        )
    db.execute(insert(INPUT).values(**row.model_dump(), digest=digest))


def stored(db: Connection) -> list[tuple[str, str]]:
    """Return group and content of all inputs that the storage must have."""
    return [(str(row.group), str(row.content)) for row in db.execute(select(INPUT.c.group, INPUT.c.content))]


def unneeded(db: Connection, *, before_s: float) -> list[tuple[str, str]]:
    """Return group and content of the inputs that were not used since then and that no unended job needs."""
    old = db.execute(select(INPUT.c.group, INPUT.c.content).where(INPUT.c.used_s < before_s)).all()
    needed = _needed(db) if old else set[tuple[str, str]]()
    return [key for row in old if (key := (str(row.group), str(row.content))) not in needed]


def forget(db: Connection, inputs: Sequence[tuple[str, str]], *, before_s: float) -> list[tuple[str, str]]:
    """Forget these inputs, but for those that were used since then: a job that comes meanwhile keeps its own."""
    return [
        (group, content)
        for group, content in inputs
        if db.execute(
            delete(INPUT).where(INPUT.c.group == group, INPUT.c.content == content, INPUT.c.used_s < before_s)
        ).rowcount
    ]


def _needed(db: Connection) -> set[tuple[str, str]]:
    specs = (
        select(JOB.c.group, JOB.c.spec)
        .join(SPEC, SPEC.c.id == JOB.c.spec)
        .where(JOB.c.state != State.COMPLETE, SPEC.c.inputs.is_not(None))
        .distinct()
        .subquery()
    )
    rows = db.execute(select(specs.c.group, SPEC.c.inputs).join(SPEC, SPEC.c.id == specs.c.spec))
    return {(str(row.group), str(one["content"])) for row in rows for one in row.inputs}
