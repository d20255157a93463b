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

from sqlalchemy import Text, and_, bindparam, insert, literal_column, select, text, update
from sqlmodel import Session

from gleaner.agent.protocol import Ask, Assignment, Assignments, Generation
from gleaner.control.life import Move, State
from gleaner.control.queue.arrows import event_row, record_all, run
from gleaner.control.queue.errors import Refused, Unknown
from gleaner.control.queue.specs import filled_in
from gleaner.control.queue.tables import AGENT, ATTEMPT, GENERATION, JOB, SPEC, WAITS, Phase, listed


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


_AGENT = select(AGENT.c.phase, AGENT.c.node, AGENT.c.vacate).where(AGENT.c.name == bindparam("agent_"))

_LANES = text(f"""
WITH RECURSIVE occupied(lane) AS (
    SELECT min(lane) FROM job WHERE {WAITS}
    UNION ALL
    SELECT (SELECT min(job.lane) FROM job WHERE {WAITS} AND job.lane > occupied.lane)
    FROM occupied WHERE occupied.lane IS NOT NULL
)
SELECT lane.id, lane.cpus, lane.memory_mib, head.state, head.priority, head.id AS job
FROM occupied
JOIN lane ON lane.id = occupied.lane AND lane.cpus <= :cpus AND lane.memory_mib <= :memory_mib
JOIN job AS head ON head.id = (
    SELECT id FROM job WHERE lane = occupied.lane AND {WAITS} ORDER BY state DESC, priority DESC, id LIMIT 1
)
""")  # noqa: S608  # only our own constants are in it

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
        SPEC.c.name,
        SPEC.c.image,
        SPEC.c.command,
        SPEC.c.environment,
    )
    .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
    .where(JOB.c.lane == bindparam("lane_"), text(WAITS))
    .order_by(JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id)
    .limit(bindparam("limit_"))
    .with_for_update(of=JOB, skip_locked=True)
)

_GENERATION = select(
    GENERATION.c.digest, GENERATION.c.size_bytes, GENERATION.c.log_lines, GENERATION.c.attempt, GENERATION.c.number
).where(
    and_(
        GENERATION.c.job == bindparam("job_"),
        GENERATION.c.attempt == bindparam("from_attempt_"),
        GENERATION.c.number == bindparam("from_number_"),
    )
)

_TAKE = (
    update(JOB)
    .where(
        JOB.c.id == bindparam("job_"),
        JOB.c.attempt == bindparam("before_"),
        literal_column(f"state IN ({listed(*Move.CLAIM.sources)})"),
    )
    .values(
        state=literal_column(f"'{Move.CLAIM.target}'", Text),
        attempt=JOB.c.attempt + 1,
        agent=bindparam("agent_"),
        lost=False,
    )
)
_ADD_ATTEMPT = insert(ATTEMPT).inline()


def claim(db: Session, agent: str, ask: Ask, *, now_s: float) -> Assignments:
    """As many waiting jobs as fit what the agent has free, each under a new attempt.

    A silent agent gets nothing until its next heartbeat has made it live, nor does one that is to vacate. Raises
    `Unknown` for an agent that nobody has submitted, `Refused` for one that is not registered or has ended.
    """
    connection = db.connection()
    asking = connection.execute(_AGENT, {"agent_": agent}).one_or_none()
    if asking is None:
        raise Unknown(f"there is no agent {agent}")
    if asking.phase not in {Phase.LIVE, Phase.SILENT}:
        raise Refused(f"agent {agent} may not claim: it is {asking.phase}")
    if asking.phase is Phase.SILENT or asking.vacate:
        return Assignments()
    rows = list(_chosen(db, _Room(ask.cpus, ask.memory_mib, ask.most)))
    if not rows:
        return Assignments()
    taken = run(db, _TAKE, [{"job_": row.id, "before_": row.attempt, "agent_": agent} for row, _, _ in rows])
    if taken.rowcount != len(rows):
        raise RuntimeError(f"{len(rows)} locked jobs, of which only {taken.rowcount} could be claimed")
    made = [_assignment(db, row, cpus, memory_mib) for row, cpus, memory_mib in rows]
    run(db, _ADD_ATTEMPT, [_attempt_row(assignment, agent, asking.node, now_s) for assignment in made])
    what = Move.CLAIM.name.lower()
    record_all(
        db,
        [
            event_row(each.job, what, now_s=now_s, attempt=each.attempt, detail=f"by {agent} on {asking.node}")
            for each in made
        ],
    )
    return Assignments(jobs=tuple(made))


def _chosen(db: Session, room: _Room) -> Iterator[tuple[Any, int, int]]:
    """The jobs to take, in claim order over all lanes, each with its cpus and memory."""
    lanes = db.connection().execute(_LANES, {"cpus": room.cpus, "memory_mib": room.memory_mib}).all()
    heads = [(_Head(lane.state != State.SAVED, -lane.priority, lane.job), lane) for lane in lanes]
    heapq.heapify(heads)
    fronts: dict[int, Iterator[Any]] = {}
    ready: dict[int, Any] = {}
    while heads and room.most > 0:
        _, lane = heapq.heappop(heads)
        if not room.holds(lane.cpus, lane.memory_mib):
            continue
        if lane.id not in fronts:
            limit = room.holds(lane.cpus, lane.memory_mib)
            fronts[lane.id] = iter(_front(db, lane.id, limit))
        else:
            room.take(lane.cpus, lane.memory_mib)
            yield ready[lane.id], lane.cpus, lane.memory_mib
        following = next(fronts[lane.id], None)
        if following is not None:
            ready[lane.id] = following
            heapq.heappush(heads, (_head(following), lane))


def _front(db: Session, lane: int, limit: int) -> Sequence[Any]:
    return db.connection().execute(_FRONT, {"lane_": lane, "limit_": limit}).all()


def _head(row: Any) -> _Head:
    return _Head(row.state is not State.SAVED, -row.priority, row.id)


def _assignment(db: Session, row: Any, cpus: int, memory_mib: int) -> Assignment:
    command, environment = filled_in(row.command, row.environment, row.run)
    return Assignment(
        job=row.id,
        attempt=row.attempt + 1,
        group=row.group,
        name=row.name,
        image=row.image,
        command=command,
        environment=environment,
        cpus=cpus,
        memory_mib=memory_mib,
        generation=_generation(db, row) if row.from_attempt is not None else None,
    )


def _generation(db: Session, row: Any) -> Generation:
    found = (
        db.connection()
        .execute(_GENERATION, {"job_": row.id, "from_attempt_": row.from_attempt, "from_number_": row.from_number})
        .one()
    )
    return Generation(
        attempt=found.attempt,
        number=found.number,
        digest=found.digest,
        size_bytes=found.size_bytes,
        log_lines=found.log_lines,
    )


def _attempt_row(assignment: Assignment, agent: str, node: str, now_s: float) -> dict[str, object]:
    generation = assignment.generation
    return {
        "job": assignment.job,
        "attempt": assignment.attempt,
        "agent": agent,
        "node": node,
        "claimed_s": now_s,
        "detail": "",
        "from_attempt": generation.attempt if generation else None,
        "from_number": generation.number if generation else None,
        "log_from": generation.log_lines if generation else 0,
        "restore_s": 0.0,
        "compute_s": 0.0,
        "save_s": 0.0,
    }
