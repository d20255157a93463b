"""The quota of the groups' storage. Space for an image or an input is reserved before any part of it is written.

A group is charged for its reservations, its inputs, the images for which it has a name, and the images that only its
unfinished jobs need. Identical content counts once, with its size on disk. A published image is charged to no group.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, Subquery, and_, delete, func, insert, select, update
from sqlalchemy.sql import ColumnElement

from gleaner.agent.job.inputs import input_key
from gleaner.agent.runtime.images import image_key
from gleaner.control.models.images import EVERYBODY
from gleaner.control.models.uploads import Kind
from gleaner.control.queue import quota_checks
from gleaner.control.queue.errors import Conflict, QueueBusy
from gleaner.control.queue.tables import IMAGE, INPUT, JOB, SPEC, STORED_IMAGE, UPLOAD

REMOVAL = "removal"
"""The kind of the rows that name, by key, the content that `storage_gc` is removing."""
FILES_BYTES = 16 * 2**10
"""The size of an archive on disk in addition to its content, for its folder, its manifest and the rest of the last
block."""


def reserve(
    db: Connection, kind: Kind, group: str, content: str, *, size_bytes: int, group_bytes: int, now_s: float
) -> None:
    """Reserve space for an image or an input that the group is about to store, or renew its reservation.

    Raises `Conflict` if the group would exceed `group_bytes`, and `QueueBusy` while the same content is being removed.
    """
    mine = _is(kind, group, content)
    kept = update(UPLOAD).where(mine, UPLOAD.c.size_bytes == size_bytes).values(used_s=now_s)
    if db.execute(kept).rowcount:
        return
    if _key(kind, group, content) in removals(db):
        raise QueueBusy(f"an old {content} is just being removed from the storage: send it again in a minute")
    quota_checks.lock(db, group)
    has = _contents(kind, group)
    taken = select(func.count(), func.coalesce(func.sum(has.c.size_bytes), 0)).where(has.c.content != content)
    count, others_bytes = db.execute(taken).one()
    all_bytes = int(others_bytes) + size_bytes + (count + 1) * FILES_BYTES
    if all_bytes > group_bytes:
        raise Conflict(
            f"group {group} would have {all_bytes / 2**30:.3g} GiB of {kind}, with those that are being sent, and may"
            f" have {group_bytes / 2**30:.3g}: remove images with `glean image rm`, wait for jobs"
            f" to end, or ask an admin for more ([{kind}] group_gib)"
        )
    release(db, kind, group, content)
    db.execute(insert(UPLOAD).values(kind=kind, group=group, content=content, size_bytes=size_bytes, used_s=now_s))


def release(db: Connection, kind: Kind, group: str, content: str) -> None:
    """End a reservation, because the content has been stored and is now counted itself, or was refused."""
    db.execute(delete(UPLOAD).where(_is(kind, group, content)))


def reserved_keys(db: Connection) -> set[str]:
    """Return the keys of all content that is being uploaded."""
    rows = db.execute(select(UPLOAD).where(UPLOAD.c.kind != REMOVAL))
    return {_key(row.kind, row.group, row.content) for row in rows}


def record_removals(db: Connection, keys: Sequence[str]) -> None:
    """Record the keys that are about to be removed from the storage, so that they can no longer be reserved."""
    if keys:
        gone = {"kind": REMOVAL, "group": "", "size_bytes": 0, "used_s": 0.0}
        db.execute(insert(UPLOAD), [gone | {"content": key} for key in keys])


def removals(db: Connection) -> list[str]:
    """Return the keys whose removal has begun and not ended."""
    return list(db.scalars(select(UPLOAD.c.content).where(UPLOAD.c.kind == REMOVAL)))


def end_removals(db: Connection) -> None:
    """Let others reserve the removed content again."""
    db.execute(delete(UPLOAD).where(UPLOAD.c.kind == REMOVAL))


def remove_old(db: Connection, *, before_s: float) -> int:
    """End the reservations that have not been used since that time. Return how many were ended."""
    return db.execute(delete(UPLOAD).where(UPLOAD.c.used_s < before_s, UPLOAD.c.kind != REMOVAL)).rowcount


def _contents(kind: Kind, group: str) -> Subquery:
    """Return the content and size of each image or input that counts for the group."""
    reserved = select(UPLOAD.c.content, UPLOAD.c.size_bytes).where(UPLOAD.c.kind == kind, UPLOAD.c.group == group)
    if kind == "inputs":
        return reserved.union(select(INPUT.c.content, INPUT.c.size_bytes).where(INPUT.c.group == group)).subquery()
    published = select(IMAGE.c.image_id).where(IMAGE.c.group == EVERYBODY)
    named = select(IMAGE.c.image_id).where(IMAGE.c.group == group)
    used = select(SPEC.c.image_id).join(JOB, JOB.c.spec == SPEC.c.id).where(JOB.c.group == group, quota_checks.UNENDED)
    its = named.union(used.where(SPEC.c.image_id.not_in(published)))
    stored = select(STORED_IMAGE.c.image_id, STORED_IMAGE.c.size_bytes)
    return reserved.union(stored.where(STORED_IMAGE.c.image_id.in_(its))).subquery()


def _key(kind: str, group: str, content: str) -> str:
    return image_key(content) if kind == "images" else input_key(group, content)


def _is(kind: Kind, group: str, content: str) -> ColumnElement[bool]:
    return and_(UPLOAD.c.kind == kind, UPLOAD.c.group == group, UPLOAD.c.content == content)
