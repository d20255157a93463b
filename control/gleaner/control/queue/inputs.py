"""The inputs that groups have stored, and the search for those that are still needed.

A job keeps the names of its inputs and their places in the storage as they were at its submission. The place of an
input from a URL is known once an agent has fetched it, and never changes afterwards. An input stays while an unfinished
job needs it, and for some days after its last use.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from gleaner.agent.common import allowed_urls
from gleaner.agent.job_spec import InputSpec, UrlInputSpec
from gleaner.agent.messages import InputFetched, StoredInput
from gleaner.control.models.inputs import InputRow
from gleaner.control.queue import uploads
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import INPUT, JOB, SPEC
from gleaner.control.states import State


def use(db: Connection, group: str, contents: Sequence[str], *, now_s: float) -> dict[str, Any]:
    """Return the rows of the inputs in `contents` that the group has stored. They now count as used."""
    mine = (INPUT.c.group == group) & INPUT.c.content.in_(contents)
    db.execute(update(INPUT).where(mine).values(used_s=now_s))
    return {row.content: row for row in db.execute(select(INPUT).where(mine))}


def take_for_spec(
    db: Connection, group: str, inputs: Sequence[InputSpec | UrlInputSpec], *, now_s: float
) -> list[dict[str, object]] | None:
    """Return a new job's inputs in the form in which its spec stores them.

    Raises `Conflict` if the group has not stored an input.
    """
    stored = use(db, group, [one.content for one in inputs if isinstance(one, InputSpec)], now_s=now_s)
    found: list[dict[str, object]] = []
    for one in inputs:
        if isinstance(one, UrlInputSpec):
            found.append(one.model_dump())
        elif one.content not in stored:
            raise Conflict(f"group {group} has not stored the input {one.name}: submit with glean, which sends it")
        else:
            found.append(_stored_as(one.name, stored[one.content], into_job=one.into_job).model_dump())
    return found or None


def take_again(
    db: Connection, group: str, inputs: Sequence[Mapping[str, Any]] | None, *, now_s: float
) -> list[dict[str, Any]] | None:
    """Return the inputs of a spec whose jobs run again. Fetched inputs that are no longer stored are fetched again.

    Raises `Conflict` if a stored input was removed.
    """
    stored = use(db, group, [one["content"] for one in inputs or () if "content" in one], now_s=now_s)
    found: list[dict[str, Any]] = []
    for one in inputs or ():
        row = stored.get(one.get("content", ""))
        if row is None and "url" not in one:
            raise Conflict(
                f"the input {one['name']} was removed from the storage: submit again with glean, which sends it"
            )
        found.append({**one, "digest": row.digest} if row else {name: one[name] for name in UrlInputSpec.model_fields})
    return found or None


def schemes_to_fetch(inputs: Sequence[Mapping[str, Any]] | None) -> frozenset[str]:
    """Return the schemes of the inputs in a spec that an agent still has to fetch."""
    return frozenset(allowed_urls.location(one["url"]).scheme for one in inputs or () if "digest" not in one)


def _stored_as(name: str, row: Any, *, into_job: bool) -> StoredInput:
    return StoredInput(name=name, content=row.content, digest=row.digest, size_bytes=row.size_bytes, into_job=into_job)


def record_fetched(
    db: Connection, job: Any, fetched: InputFetched, *, group_bytes: int, now_s: float
) -> StoredInput | None:
    """Let all jobs of this submission read the fetched input. Return it, or the one that was already recorded.

    Return None if it is not in the storage yet. Raises `NotFound` if the job has no such input, and `Conflict` as
    `uploads.reserve` does.
    """
    group, mine_of = job.group, select(SPEC.c.inputs).where(SPEC.c.id == job.spec).with_for_update()
    inputs: list[dict[str, Any]] = db.execute(mine_of).scalar_one() or []
    mine = next((one for one in inputs if one["name"] == fetched.name), None)
    if mine is None:
        raise NotFound(f"job {job.id} has no input {fetched.name}")
    if "digest" in mine:
        return StoredInput.model_validate(mine)
    row = use(db, group, [fetched.content], now_s=now_s).get(fetched.content)
    if row is None:
        made = InputRow(content=fetched.content, group=group, size_bytes=fetched.size_bytes, used_s=now_s)
        size = {"size_bytes": made.size_bytes, "group_bytes": group_bytes}
        uploads.reserve(db, "inputs", group, made.content, **size, now_s=now_s)
        if fetched.digest is None:
            return None
        put(db, made, digest=fetched.digest)
        row = use(db, group, [fetched.content], now_s=now_s)[fetched.content]
    fixed = _stored_as(fetched.name, row, into_job=mine["into_job"])
    kept = [one if one is not mine else mine | fixed.model_dump() for one in inputs]
    db.execute(update(SPEC).where(SPEC.c.id == job.spec).values(inputs=kept))
    return fixed


def put(db: Connection, row: InputRow, *, digest: str) -> None:
    """Record that an input is in the storage, with the digest of its manifest."""
    db.execute(delete(INPUT).where(INPUT.c.group == row.group, INPUT.c.content == row.content))
    uploads.release(db, "inputs", row.group, row.content)
    db.execute(insert(INPUT).values(**row.model_dump(), digest=digest))


def all_keys(db: Connection) -> list[tuple[str, str]]:
    """Return the group and content of all inputs that must be in the storage."""
    return [(str(row.group), str(row.content)) for row in db.execute(select(INPUT.c.group, INPUT.c.content))]


def unneeded(db: Connection, *, before_s: float) -> list[tuple[str, str]]:
    """Return the group and content of the inputs that have not been used since that time and that no unfinished job
    needs."""
    old = db.execute(select(INPUT.c.group, INPUT.c.content).where(INPUT.c.used_s < before_s)).all()
    needed = _needed(db) if old else set[tuple[str, str]]()
    return [key for row in old if (key := (str(row.group), str(row.content))) not in needed]


def forget(db: Connection, inputs: Sequence[tuple[str, str]], *, before_s: float) -> list[tuple[str, str]]:
    """Delete the rows of these inputs.

    An input that was used since that time stays, so that a new job keeps its inputs.
    """
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
    return {(str(row.group), str(one["content"])) for row in rows for one in row.inputs if "content" in one}
