"""The slices that ended on each node in the last day, and how many of them were lost.

An index of the attempts' ends selects the day. A day of a thousand nodes has sixty thousand rows, which take a tenth of
a second to read, so the counts are kept in memory for a minute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, case, func, select

from gleaner.control.models.jobs import Ending
from gleaner.control.policy.lossy_nodes import SliceCounts
from gleaner.control.policy.node_time import DAY_S
from gleaner.control.queue.node_history import LOST_S
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.tables import ATTEMPT, JOB

FRESH_S = 60.0
IS_LOST = and_(ATTEMPT.c.ending.in_([Ending.LOST, Ending.RETURNED]), LOST_S > 0)
"""The condition that a slice is lost. A slice that its user cancelled is no loss of the node, nor is a slice of which
its agent never knew."""


@dataclass(frozen=True, slots=True)
class LostSlice:
    """A lost slice, and the computing time that was lost with it."""

    job: int
    attempt: int
    ended_s: float
    lost_s: float
    ending: str
    detail: str


class NodeLosses:
    """The counts of the last day, kept in memory for a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept = SmallCache[None, Mapping[str, SliceCounts]](clock)

    def counts(self, db: Connection) -> Mapping[str, SliceCounts]:
        """Return the counts of each node on which a slice has ended in the last day. They are at most a minute old."""
        since_s = self._clock() - DAY_S
        return self._kept.get(None, lambda: count_slices(db, since_s=since_s), fresh_s=FRESH_S)


def count_slices(db: Connection, *, since_s: float) -> dict[str, SliceCounts]:
    """Return the counts of each node on which a slice has ended since that time."""
    columns = (ATTEMPT.c.node, func.count().label("slices"), func.sum(case((IS_LOST, 1), else_=0)).label("lost"))
    rows = select(*columns).where(ATTEMPT.c.ended_s >= since_s).group_by(ATTEMPT.c.node)
    return {row.node: SliceCounts(int(row.slices), int(row.lost)) for row in db.execute(rows)}


def lost_by_attempt(db: Connection, job: int) -> dict[int, float]:
    """Return the computing time that each ended attempt of a job has lost, in seconds, where it lost any."""
    rows = select(ATTEMPT.c.attempt, LOST_S).where(ATTEMPT.c.job == job, ATTEMPT.c.ended_s.is_not(None), LOST_S > 0)
    return {attempt: float(lost_s) for attempt, lost_s in db.execute(rows)}


def latest_lost(db: Connection, node: str, *, since_s: float, group: str | None, at_most: int) -> list[LostSlice]:
    """Return the latest slices that the node has lost since that time, of this group's jobs or, with None, of all."""
    columns = (ATTEMPT.c.job, ATTEMPT.c.attempt, ATTEMPT.c.ended_s, LOST_S, ATTEMPT.c.ending, ATTEMPT.c.detail)
    rows = select(*columns).where(ATTEMPT.c.ended_s >= since_s, ATTEMPT.c.node == node, IS_LOST)
    if group is not None:
        rows = rows.join(JOB, JOB.c.id == ATTEMPT.c.job).where(JOB.c.group == group)
    return [LostSlice(*row) for row in db.execute(rows.order_by(ATTEMPT.c.ended_s.desc()).limit(at_most))]
