"""Handing out jobs: the queue's hot path. Its cost depends neither on how many jobs wait nor on how many do not fit.

Waiting jobs that are alike to a claim form a *lane*, and the index of the waiting jobs is in claim order within
each lane: saved before new, then the highest priority, then the oldest. A claim finds the lanes that hold a
waiting job by stepping through that index (an empty lane costs nothing), drops those that do not fit, and merges
the rest by their heads. It opens a lane only when that lane's head is next, and takes no more rows from it than can
fit. On PostgreSQL the rows are locked with SKIP LOCKED, so that claims do not wait for each other: a row that
another claim holds at that moment is passed over. SQLite admits one writer at a time.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, select, text

from gleaner.agent.protocol import Ask, Assignment, Assignments, Generation
from gleaner.control.life import State
from gleaner.control.queue.arrows import take
from gleaner.control.queue.errors import Refused, Unknown
from gleaner.control.queue.specs import filled_in, self_save
from gleaner.control.queue.tables import GENERATION, JOB, SPEC, WAITS, Phase


class _Head(NamedTuple):
    """A lane's first waiting job; sorts as jobs are to be claimed."""

    is_new: bool
    lowness: int
    job: int


@dataclass(slots=True)
class _Room:
    """What the asking agent has left."""

    cpus: int
    memory_mib: int
    most: int

    def holds(self, cpus: int, memory_mib: int) -> int:
        """How many jobs of this size fit."""
        return min(self.most, self.cpus // cpus, self.memory_mib // memory_mib)

    def take(self, cpus: int, memory_mib: int) -> None:
        self.cpus -= cpus
        self.memory_mib -= memory_mib
        self.most -= 1


OCCUPIED = f"""
WITH RECURSIVE occupied(lane) AS (
    SELECT min(lane) FROM job WHERE {WAITS}
    UNION ALL
    SELECT (SELECT min(job.lane) FROM job WHERE {WAITS} AND job.lane > occupied.lane)
    FROM occupied WHERE occupied.lane IS NOT NULL
)"""  # noqa: S608  # only our own constants are in it
"""The lanes in which a job waits, by steps through the index of the waiting jobs; and NULL at the end."""

_LANES = text(f"""{OCCUPIED}
SELECT agent.phase, agent.node, agent.vacate,
    lane.id, lane.cpus, lane.memory_mib, lane.not_on, head.state, head.priority, head.id AS job
FROM agent
LEFT JOIN (
    occupied
    JOIN lane ON lane.id = occupied.lane AND lane.cpus <= :cpus AND lane.memory_mib <= :memory_mib
    JOIN job AS head ON head.id = (
        SELECT id FROM job WHERE lane = occupied.lane AND {WAITS} ORDER BY state DESC, priority DESC, id LIMIT 1
    )
) ON agent.phase = '{Phase.LIVE}' AND NOT agent.vacate AND (
    lane.kind = 0 OR EXISTS (SELECT 1 FROM fit WHERE fit.saved_on = lane.kind AND fit.node = agent.kind)
)
WHERE agent.name = :agent
""")  # noqa: S608  # only our own constants are in it
"""The asking agent, with each lane that has work for it: one row with an empty lane if there is none."""

_FRONT = (
    select(
        JOB.c.id,
        JOB.c.attempt,
        JOB.c.group,
        JOB.c.index.label("run"),
        JOB.c.priority,
        JOB.c.state,
        JOB.c.from_attempt,
        JOB.c.from_number,
        GENERATION.c.digest,
        GENERATION.c.size_bytes,
        GENERATION.c.log_lines,
        GENERATION.c.open_lines,
        GENERATION.c.has_memory,
        SPEC.c.name,
        SPEC.c.image,
        SPEC.c.command,
        SPEC.c.environment,
        SPEC.c.saves_itself,
    )
    .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
    .outerjoin(
        GENERATION,
        and_(
            GENERATION.c.job == JOB.c.id,
            GENERATION.c.attempt == JOB.c.from_attempt,
            GENERATION.c.number == JOB.c.from_number,
        ),
    )
    .where(JOB.c.lane == bindparam("lane_"), text(WAITS))
    .order_by(JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id)
    .limit(bindparam("limit_"))
    .with_for_update(of=JOB, skip_locked=True)
)


def claim(db: Connection, agent: str, ask: Ask, *, now_s: float) -> Assignments:
    """As many waiting jobs as fit what the agent has free, each under a new attempt.

    A silent agent gets nothing until its next heartbeat has made it live, nor does one that is to vacate. Raises
    `Unknown` for an agent that nobody has submitted, `Refused` for one that is not registered or has ended.
    """
    wish = {"agent": agent, "cpus": ask.cpus, "memory_mib": ask.memory_mib}
    lanes = db.execute(_LANES, wish).all()
    if not lanes:
        raise Unknown(f"there is no agent {agent}")
    asking = lanes[0]
    if asking.phase not in {Phase.LIVE, Phase.SILENT}:
        raise Refused(f"agent {agent} may not claim: it is {asking.phase}")
    if asking.id is None:
        return Assignments()
    welcome = [lane for lane in lanes if asking.node not in lane.not_on.split()]
    chosen = list(_chosen(db, welcome, _Room(ask.cpus, ask.memory_mib, ask.most)))
    if chosen:
        take(db, [row for row, _ in chosen], agent=agent, node=asking.node, now_s=now_s)
    return Assignments(jobs=tuple(_assignment(row, lane) for row, lane in chosen))


def _chosen(db: Connection, lanes: Sequence[Any], room: _Room) -> Iterator[tuple[Any, Any]]:
    """The jobs to take, in claim order over all lanes, each with its lane."""
    heads = [(_Head(lane.state != State.SAVED, -lane.priority, lane.job), lane) for lane in lanes]
    heapq.heapify(heads)
    fronts: dict[int, Iterator[Any]] = {}
    ready: dict[int, Any] = {}
    while heads and room.most > 0:
        _, lane = heapq.heappop(heads)
        fitting = room.holds(lane.cpus, lane.memory_mib)
        if not fitting:
            continue
        if lane.id not in fronts:
            fronts[lane.id] = iter(_front(db, lane.id, fitting))
        else:
            room.take(lane.cpus, lane.memory_mib)
            yield ready[lane.id], lane
        following = next(fronts[lane.id], None)
        if following is not None:
            ready[lane.id] = following
            heapq.heappush(heads, (_Head(following.state is not State.SAVED, -following.priority, following.id), lane))


def _front(db: Connection, lane: int, limit: int) -> Sequence[Any]:
    return db.execute(_FRONT, {"lane_": lane, "limit_": limit}).all()


def _assignment(row: Any, lane: Any) -> Assignment:
    command, environment = filled_in(row.command, row.environment, row.run)
    generation = None
    if row.from_attempt is not None:
        generation = Generation(
            attempt=row.from_attempt,
            number=row.from_number,
            digest=row.digest,
            size_bytes=row.size_bytes,
            log_lines=row.log_lines,
            open_lines=row.open_lines or {},
            has_memory=row.has_memory,
        )
    return Assignment(
        job=row.id,
        attempt=row.attempt + 1,
        group=row.group,
        name=row.name,
        image=row.image,
        command=command,
        environment=environment,
        cpus=lane.cpus,
        memory_mib=lane.memory_mib,
        generation=generation,
        saves_itself=self_save(row.saves_itself),
    )
