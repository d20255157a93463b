"""The row in which the leader's loops publish what people ask for. `control_view` packs and unpacks its content."""

from sqlalchemy import Connection, delete, insert, select

from gleaner.control.queue.tables import CONTROL_VIEW


def put(db: Connection, packed: bytes, *, written_s: float) -> None:
    """Replace the content of the row."""
    db.execute(delete(CONTROL_VIEW))
    db.execute(insert(CONTROL_VIEW).values(id=1, written_s=written_s, packed=packed))


def find(db: Connection, *, unlike_s: float | None) -> bytes | None:
    """Return the content. Return None if there is none, or if the row was written at `unlike_s`."""
    row = db.execute(select(CONTROL_VIEW.c.packed).where(CONTROL_VIEW.c.written_s.is_distinct_from(unlike_s)))
    return row.scalar_one_or_none()
