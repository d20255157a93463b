"""Attempts that end without a word of their own: lost with their agent, or unknown to it; and their revival."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from gleaner.control.life import Move
from gleaner.control.queue import attempts
from gleaner.control.queue.arrows import lock, move
from gleaner.control.queue.flags import put_on_hold
from gleaner.control.queue.tables import JOB, Ending


def lose(db: Connection, agent: str, *, now_s: float, losses_until_held: int, detail: str) -> tuple[int, ...]:
    """Take all running jobs from an agent that is gone. It costs them no retry. The jobs' ids.

    A job that was lost on `losses_until_held` different nodes, with nothing in between that shows it to be sound,
    is held: it may be what kills them.
    """
    jobs = running_on(db, agent)
    for row in jobs:
        give_up(db, row, Ending.LOST, now_s=now_s, detail=detail)
        nodes = attempts.lost_nodes(db, row.id, after=row.sound_attempt)
        if len(nodes) >= losses_until_held and not row.held:
            reason = f"lost together with its agent on {len(nodes)} different nodes in a row: {', '.join(nodes)}"
            put_on_hold(db, lock(db, row.id), reason=reason, now_s=now_s)
    return tuple(row.id for row in jobs)


def running_on(db: Connection, agent: str) -> list[Any]:
    """The rows of the agent's jobs, locked, in the order of their ids (so that two who lock many do not deadlock)."""
    mine = select(JOB).where(JOB.c.agent == agent).order_by(JOB.c.id).with_for_update()
    return list(db.execute(mine))


def give_up(db: Connection, row: Any, ending: Ending, *, now_s: float, detail: str) -> None:
    """End the running attempt on an assumption; until the next claim its own word still counts."""
    end = attempts.ended(ending, ended_s=now_s, detail=detail)
    leave(db, row, now_s=now_s, detail=detail, end=end, lost=True)


def leave(
    db: Connection, row: Any, *, now_s: float, detail: str, end: Mapping[str, object], lost: bool = False
) -> None:
    """Take a running job from its agent: Saved if there is a whole generation, else New."""
    step = Move.LOSE_TO_NEW if row.from_attempt is None else Move.LOSE_TO_SAVED
    move(db, row.id, step, now_s=now_s, attempt=row.attempt, detail=detail, end=end, lost=lost)


def outlived(db: Connection, job: int) -> None:
    """The attempt that was given up has reported its end itself: it may report nothing else."""
    db.execute(update(JOB).where(JOB.c.id == job).values(lost=False))


def revive(db: Connection, job: int, attempt: int, *, agent: str, now_s: float) -> None:
    """An attempt that was given up lives, and nobody has claimed the job since. Raises `Refused` otherwise."""
    move(db, job, Move.REVIVE, now_s=now_s, attempt=attempt, detail=f"{agent} is heard again", agent=agent)
    attempts.reopen(db, job, attempt)
