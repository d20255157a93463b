"""The stop of all agents, which an admin sets and lifts. It outlives control programs, and Slurm's reconfigurations."""

from datetime import datetime

from sqlalchemy import Connection, delete, select

from gleaner.control.queue.tables import STOP
from gleaner.control.queue.transitions import insert_unless_there


def set_stop(db: Connection, *, by: str, now_s: float) -> None:
    """Let no agent start, and let those that run save their jobs and end. A stop that is there stays as it is."""
    db.execute(insert_unless_there(db, STOP).values(id=1, by=by, at_s=now_s))


def end_stop(db: Connection) -> bool:
    """Let agents start again. Return False if nothing was stopped."""
    return bool(db.execute(delete(STOP)).rowcount)


def why_stopped(db: Connection) -> str:
    """Return who has stopped all agents, when, and the cure, in one line; empty if agents may start."""
    row = db.execute(select(STOP.c.by, STOP.c.at_s)).one_or_none()
    if row is None:
        return ""
    since = f"{datetime.fromtimestamp(row.at_s):%Y-%m-%d %H:%M}"
    return f"all agents are stopped since {since}, by {row.by}: `glean control start` ends that"
