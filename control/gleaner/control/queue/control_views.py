"""The row in which the leader's loops leave what people ask for, packed: `control_view` makes and reads its content."""

from sqlalchemy import Connection, delete, insert, select

from gleaner.control.queue.tables import CONTROL_VIEW


def put(db: Connection, packed: bytes, *, written_s: float) -> None:
    """Write the content in place of the last one."""
    db.execute(delete(CONTROL_VIEW))
    db.execute(insert(CONTROL_VIEW).values(id=1, written_s=written_s, packed=packed))


def find(db: Connection, *, unlike_s: float | None) -> bytes | None:
    """Return the content; None if there is none, or if it was written at `unlike_s`."""
    row = db.execute(select(CONTROL_VIEW.c.packed).where(CONTROL_VIEW.c.written_s.is_distinct_from(unlike_s)))
    return row.scalar_one_or_none()
