"""The leader is the one control program that writes to the queue. A lock with a term in the queue's database decides
which program leads.

A program that begins to lead receives an *epoch*, a number that is higher than that of every earlier leader. The leader
names its epoch at the beginning of each transaction that writes (`holds`). A program that was stopped, or that waited
longer than its term, learns from this check that it no longer leads. On PostgreSQL, the check also keeps other programs
from taking over until the transaction has ended. On SQLite, the transaction has the database to itself anyway. The
epoch is also sent to the Slurm admin service (see `slurm_admin`).

All times come from the database's clock, so that the clocks of the machines do not matter. A new epoch is the time in
seconds, or the last epoch plus one if that is higher. Therefore an epoch is also higher than all earlier ones after the
database was created again or restored from an older backup.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    delete,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger

from gleaner.control.queue.tables import CONTROL_VIEW, LEADER
from gleaner.control.queue.transitions import insert_unless_there

TERMS_AHEAD = 10
"""The largest number of terms by which the end of a leader's term can be in the future. A row beyond this limit was
written before the database's clock was set back. A program that still leads has since renewed its term by the current
clock."""
_MINE = LEADER.c.id == 1


@dataclass(frozen=True, slots=True)
class Term:
    """The right to lead: the program that has it, and its epoch."""

    holder: str
    epoch: int


class database_now(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The database's time, in seconds since the epoch."""

    type = Float(53)
    inherit_cache = True


@compiles(database_now, "sqlite")
def _of_sqlite(_element: Any, _compiler: Any, **_words: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _of_postgresql(_element: Any, _compiler: Any, **_words: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


NOW: ColumnElement[float] = database_now()
"""The database's time. All statements share this object, so that a statement that is built once can refer to it."""


def read_clock(db: Connection, now: ColumnElement[float]) -> float:
    """Return the time of one of the database's clocks."""
    return db.execute(select(now)).scalar_one()


def try_lead(db: Connection, holder: str, *, now: ColumnElement[float], term_s: float) -> Term | None:
    """Begin to lead for `term_s` seconds, or renew the term of a leader. Return None if another program leads."""
    again = update(LEADER).where(_MINE, LEADER.c.holder == holder).values(until_s=now + term_s)
    epoch = db.execute(again.returning(LEADER.c.epoch)).scalar_one_or_none()
    if epoch is None:
        epoch = _take_over(db, holder, now=now, term_s=term_s)
    return None if epoch is None else Term(holder, epoch)


def _take_over(db: Connection, holder: str, *, now: ColumnElement[float], term_s: float) -> int | None:
    """Take over, and return the new epoch, or None if another program leads."""
    whole_s = cast(now, BigInteger)
    first = insert_unless_there(db, LEADER).returning(LEADER.c.epoch)
    values = {"id": 1, "holder": holder, "until_s": now + term_s, "epoch": whole_s}
    if (made := db.execute(first.values(values)).scalar_one_or_none()) is not None:
        return int(made)
    has_ended = or_(LEADER.c.until_s <= now, LEADER.c.until_s > now + TERMS_AHEAD * term_s)
    is_free = and_(_MINE, has_ended)
    # This waits for the transactions that the last leader has begun (see `holds`).
    if db.execute(select(LEADER.c.id).where(is_free).with_for_update()).one_or_none() is None:
        return None
    epoch = case((LEADER.c.epoch >= whole_s, LEADER.c.epoch + 1), else_=whole_s)
    mine = update(LEADER).where(is_free).values(holder=holder, epoch=epoch, until_s=now + term_s)
    return db.execute(mine.returning(LEADER.c.epoch)).scalar_one_or_none()


def holds(db: Connection, term: Term, *, now: ColumnElement[float], locks: bool, alone: bool = False) -> bool:
    """Return True if this term has not ended. With `locks`, no program takes over before this transaction ends.

    The lock is a share lock on the row's key, which the leader's other transactions and its next term can take as well.
    Only a program that tries to take over waits for it. With `alone`, all other transactions that write also wait.
    """
    found = db.execute(_holding(now, locks, alone), {"holder_": term.holder, "epoch_": term.epoch})
    return found.one_or_none() is not None


@lru_cache(maxsize=8)
def _holding(now: ColumnElement[float], locks: bool, alone: bool) -> Select[tuple[int]]:
    """Return the statement that checks the term.

    It is built once, because every transaction and every claim begins with it.
    """
    is_it = and_(LEADER.c.holder == bindparam("holder_", type_=String()), LEADER.c.epoch == bindparam("epoch_"))
    wanted = select(LEADER.c.id).where(_MINE, is_it, LEADER.c.until_s > now)
    return wanted.with_for_update(read=not alone, key_share=not alone) if locks else wanted


def leader(db: Connection, *, now: ColumnElement[float], locks: bool = False) -> str | None:
    """Return the program that leads now, or None. `locks` has the same meaning as in `holds`."""
    wanted = select(LEADER.c.holder).where(LEADER.c.until_s > now)
    row = db.execute(wanted.with_for_update(read=True, key_share=True) if locks else wanted).one_or_none()
    return None if row is None else str(row.holder)


def resign(db: Connection, holder: str) -> None:
    """Stop leading, so that another program can lead immediately. The epoch is kept.

    Nothing changes if another program leads.
    """
    db.execute(update(LEADER).where(LEADER.c.holder == holder).values(until_s=0.0))


def try_write(db: Connection) -> None:
    """Write the row with unchanged values, to check that the database accepts writes. No term is needed."""
    db.execute(update(LEADER).values(until_s=LEADER.c.until_s))


def publish_view(db: Connection, packed: bytes, *, written_s: float) -> None:
    """Replace the view that the leader's loops publish. `control_view` packs and unpacks it."""
    db.execute(delete(CONTROL_VIEW))
    db.execute(insert(CONTROL_VIEW).values(id=1, written_s=written_s, packed=packed))


def find_view(db: Connection, *, unlike_s: float | None) -> bytes | None:
    """Return the published view. Return None if there is none, or if it was written at `unlike_s`."""
    row = db.execute(select(CONTROL_VIEW.c.packed).where(CONTROL_VIEW.c.written_s.is_distinct_from(unlike_s)))
    return row.scalar_one_or_none()
