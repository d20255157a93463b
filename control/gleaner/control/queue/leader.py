"""Which control program leads: a lock with a term, in the queue's own database. Only the leader writes."""

from sqlalchemy import Connection, delete, or_, select, update

from gleaner.control.queue.arrows import insert_unless_there
from gleaner.control.queue.site_tables import LEADER


def try_lead(db: Connection, holder: str, *, now_s: float, term_s: float) -> bool:
    """Lead until `now_s + term_s`, if nobody else does; whether it worked. The leader calls it again to go on."""
    values = {"holder": holder, "until_s": now_s + term_s}
    mine = update(LEADER).where(LEADER.c.id == 1, or_(LEADER.c.holder == holder, LEADER.c.until_s <= now_s))
    if db.execute(mine.values(values)).rowcount:
        return True
    first = insert_unless_there(db, LEADER).returning(LEADER.c.id)
    return db.execute(first, {"id": 1} | values).one_or_none() is not None


def leader(db: Connection, now_s: float) -> str | None:
    """Who leads now; None if nobody does."""
    row = db.execute(select(LEADER.c.holder).where(LEADER.c.until_s > now_s)).one_or_none()
    return None if row is None else str(row.holder)


def resign(db: Connection, holder: str) -> None:
    """Lead no more, so that another may at once. Nothing happens if another leads."""
    db.execute(delete(LEADER).where(LEADER.c.holder == holder))
