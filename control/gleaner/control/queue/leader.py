"""The leader: which control program leads, by a lock with a term in the queue's own database. Only the leader writes.

A program that begins to lead gets an *epoch*, a number that is higher than that of every leader before. A leader names
its epoch at the beginning of each transaction that writes (`holds`): one that was stopped, or that waited for its turn
longer than its term, finds there that it leads no more. On PostgreSQL that look keeps others from taking over until the
transaction has ended; on SQLite the transaction has the database for itself anyway. Slurm's side is told the epoch too,
see `slurm_admin`.

All times are by the database's clock, so that the clocks of the machines do not count. A new epoch is the time in
seconds, or the last epoch and one where that is higher. So it is higher also after the database was made anew, or was
put back as it was yesterday.
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
    or_,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import BigInteger

from gleaner.control.queue.tables import LEADER
from gleaner.control.queue.transitions import insert_unless_there

TERMS_AHEAD = 10
"""Nobody leads for so many terms ahead. A row that says so is from before the database's clock was set back; a program
that still leads will have renewed its term since, by the clock as it is now."""
_MINE = LEADER.c.id == 1


@dataclass(frozen=True, slots=True)
class Term:
    """The right to lead: the program that has it, and its number."""

    holder: str
    epoch: int


class database_now(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The time by the database's clock, in seconds since the epoch."""

    type = Float(53)
    inherit_cache = True


@compiles(database_now, "sqlite")
def _of_sqlite(_element: Any, _compiler: Any, **_words: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _of_postgresql(_element: Any, _compiler: Any, **_words: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


NOW: ColumnElement[float] = database_now()
"""The database's time, the same object for every statement, so that those that are made once can name it."""


def read_clock(db: Connection, now: ColumnElement[float]) -> float:
    """Return the time by a clock of the database's."""
    return db.execute(select(now)).scalar_one()


def try_lead(db: Connection, holder: str, *, now: ColumnElement[float], term_s: float) -> Term | None:
    """Lead for `term_s` from now on, if no other program does; None if one does. The leader calls it again to go on."""
    again = update(LEADER).where(_MINE, LEADER.c.holder == holder).values(until_s=now + term_s)
    epoch = db.execute(again.returning(LEADER.c.epoch)).scalar_one_or_none()
    if epoch is None:
        epoch = _take_over(db, holder, now=now, term_s=term_s)
    return None if epoch is None else Term(holder, epoch)


def _take_over(db: Connection, holder: str, *, now: ColumnElement[float], term_s: float) -> int | None:
    """Take over, and return the new epoch; None if somebody leads."""
    whole_s = cast(now, BigInteger)
    first = insert_unless_there(db, LEADER).returning(LEADER.c.epoch)
    values = {"id": 1, "holder": holder, "until_s": now + term_s, "epoch": whole_s}
    if (made := db.execute(first.values(values)).scalar_one_or_none()) is not None:
        return int(made)
    has_ended = or_(LEADER.c.until_s <= now, LEADER.c.until_s > now + TERMS_AHEAD * term_s)
    is_free = and_(_MINE, has_ended)
    # Waits for the transactions that the last leader has begun: see `holds`.
    if db.execute(select(LEADER.c.id).where(is_free).with_for_update()).one_or_none() is None:
        return None
    epoch = case((LEADER.c.epoch >= whole_s, LEADER.c.epoch + 1), else_=whole_s)
    mine = update(LEADER).where(is_free).values(holder=holder, epoch=epoch, until_s=now + term_s)
    return db.execute(mine.returning(LEADER.c.epoch)).scalar_one_or_none()


def holds(db: Connection, term: Term, *, now: ColumnElement[float], locks: bool, alone: bool = False) -> bool:
    """Return True if this term has not ended. With `locks` no program takes over before this transaction has ended.

    Only a share of the row's key is locked: others of the leader's transactions take it too, and its next term does not
    wait for it. Only a program that takes over waits. With `alone` all other transactions that write wait, too.
    """
    found = db.execute(_holding(now, locks, alone), {"holder_": term.holder, "epoch_": term.epoch})
    return found.one_or_none() is not None


@lru_cache(maxsize=8)
def _holding(now: ColumnElement[float], locks: bool, alone: bool) -> Select[tuple[int]]:
    """Return the statement that looks. It is made once, for it is the first of each transaction, also of each claim."""
    is_it = and_(LEADER.c.holder == bindparam("holder_", type_=String()), LEADER.c.epoch == bindparam("epoch_"))
    wanted = select(LEADER.c.id).where(_MINE, is_it, LEADER.c.until_s > now)
    return wanted.with_for_update(read=not alone, key_share=not alone) if locks else wanted


def leader(db: Connection, *, now: ColumnElement[float], locks: bool = False) -> str | None:
    """Return the program that leads now; None if none does. `locks` as in `holds`."""
    wanted = select(LEADER.c.holder).where(LEADER.c.until_s > now)
    row = db.execute(wanted.with_for_update(read=True, key_share=True) if locks else wanted).one_or_none()
    return None if row is None else str(row.holder)


def resign(db: Connection, holder: str) -> None:
    """Lead no more, so that another program may at once. Nothing happens if another leads. The epoch stays known."""
    db.execute(update(LEADER).where(LEADER.c.holder == holder).values(until_s=0.0))


def try_write(db: Connection) -> None:
    """Write the row as it is, to see that the database takes what is written. It changes nothing, and needs no term."""
    db.execute(update(LEADER).values(until_s=LEADER.c.until_s))
