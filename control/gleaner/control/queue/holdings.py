"""What each group has, and who waits: what whose turn it is depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select, text

from gleaner.control.queue.claims import OCCUPIED
from gleaner.control.queue.places import NOWHERE
from gleaner.control.queue.tables import AGENT, JOB, LANE, Phase


@dataclass(frozen=True, slots=True)
class Holdings:
    """All groups at one instant."""

    capacity_cpus: int = 0
    """Of all live agents."""
    holds_cpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """What the running jobs of each group have."""
    waiting: frozenset[str] = frozenset()
    """Groups with a job that an agent could claim."""


_HERE = text("phase <> 'ended'")  # word by word, so that the index of the agents that have not ended is used
_CAPACITY = select(func.coalesce(func.sum(AGENT.c.facts["cpus"].as_integer()), 0)).where(
    _HERE, AGENT.c.phase == Phase.LIVE
)
_HOLDS = (
    select(LANE.c.group, func.sum(LANE.c.cpus).label("cpus"))
    .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
    .where(JOB.c.agent.is_not(None))
    .group_by(LANE.c.group)
)
_WAITING = text(
    OCCUPIED + ' SELECT DISTINCT lane."group" FROM occupied JOIN lane ON lane.id = occupied.lane'  # noqa: S608
    f" WHERE lane.not_on <> '{NOWHERE}'"
)


def holdings(db: Connection) -> Holdings:
    """All groups now. It takes time in proportion to the number of running jobs."""
    return Holdings(
        capacity_cpus=int(db.execute(_CAPACITY).scalar_one()),
        holds_cpus={row.group: int(row.cpus) for row in db.execute(_HOLDS)},
        waiting=frozenset(db.execute(_WAITING).scalars()),
    )
