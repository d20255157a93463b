"""Claims: the choice of waiting jobs for an agent. This module is the queue's hot path.

The cost of a claim depends neither on the number of waiting jobs nor on the number of jobs that do not fit.

Waiting jobs of one submitter that a claim treats alike form a *lane*. Saved jobs and new jobs have different lanes.
Within each lane, the index of the waiting jobs is in claim order, which puts the highest priority first and then the
oldest job. A claim finds the lanes that have a waiting job by stepping through that index, so an empty lane costs
nothing. It drops the lanes that do not fit, and merges the others by their first jobs. Among the jobs of one submitter,
the higher priority comes first, then saved jobs before new ones, then the oldest job. The first jobs of the submitters
of a group are compared differently: saved jobs before new ones, then the higher priority, then the oldest job.
`policy.fair_share` decides which group comes next, but is used only while several groups have a job that fits. The jobs
of a lane are read only when its first job is next, and no more rows are read than can fit.

On PostgreSQL, the rows are locked with SKIP LOCKED, so that claims do not wait for each other. A claim skips a row that
another claim has locked at that moment. SQLite admits one writer at a time.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    column,
    exists,
    func,
    select,
    text,
    true,
)

from gleaner.agent.messages import Assignment, Assignments, Checkpoint, ClaimRequest
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy import fair_share, returns
from gleaner.control.policy.fair_share import Book, First, Shares
from gleaner.control.policy.quotas import Allowance
from gleaner.control.queue import attempts, decisions, lanes, node_health
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import AGENT, CHECKPOINT, JOB, LANE, NODE, PAUSE, SPEC, STORED_IMAGE, WAITS, Phase
from gleaner.control.queue.transitions import take
from gleaner.control.states import State


class _Head(NamedTuple):
    """The first waiting job of a lane. Heads are sorted in the order in which the jobs of one submitter are claimed."""

    lowness: int
    is_new: bool
    job: int

    @property
    def turn(self) -> tuple[bool, int, int]:
        """Return the key by which the heads of several submitters are sorted."""
        return self.is_new, self.lowness, self.job


@dataclass(slots=True)
class _Room:
    """The free room of the asking agent."""

    cpus: int
    memory_mib: int
    most: int

    def holds(self, cpus: int, memory_mib: int) -> int:
        """Return how many jobs of this size fit."""
        return min(self.most, self.cpus // cpus, self.memory_mib // memory_mib)

    def take(self, cpus: int, memory_mib: int) -> None:
        self.cpus -= cpus
        self.memory_mib -= memory_mib
        self.most -= 1


OCCUPIED = f"""
WITH RECURSIVE occupied(lane) AS (
    SELECT min(lane) FROM job WHERE {WAITS} AND lane > 0
    UNION ALL
    SELECT (SELECT min(job.lane) FROM job WHERE {WAITS} AND job.lane > occupied.lane)
    FROM occupied WHERE occupied.lane IS NOT NULL
)"""  # noqa: S608  # only our own constants are in it
"""The lanes with a waiting job, found by stepping through the index of the waiting jobs. NULL marks the end.

The lanes of campaigns whose jobs wait for their turn have numbers below 0."""

_LANES = (
    text(f"""{OCCUPIED}
SELECT lane.id AS lane, lane."group" AS lane_group, lane.submitter AS lane_submitter,
    lane.cpus, lane.memory_mib, lane.not_on,
    head.state AS head_state, head.priority AS head_priority, head.id AS head_job,
    (
        SELECT min(n) FROM (
            SELECT :most AS n UNION ALL SELECT :cpus / lane.cpus UNION ALL SELECT :memory_mib / lane.memory_mib
        ) AS room
    ) AS holds
FROM agent
CROSS JOIN occupied
JOIN lane ON lane.id = occupied.lane AND lane.cpus <= :cpus AND lane.memory_mib <= :memory_mib
    AND lane.needs_s <= coalesce(CAST(:left_s AS FLOAT), agent.end_s - :now_s)
JOIN job AS head ON head.id = (
    SELECT id FROM job WHERE lane = occupied.lane AND {WAITS} ORDER BY state DESC, priority DESC, id LIMIT 1
)
WHERE agent.name = :agent AND agent.phase = '{Phase.LIVE}' AND NOT agent.vacate AND NOT lane.is_closed
AND lane.only_on IN ('', agent.node) AND (
    lane.kind = 0 OR EXISTS (SELECT 1 FROM fit WHERE fit.saved_on = lane.kind AND fit.node = agent.kind)
) AND (
    lane.mounts = '' AND lane.fetches = '' OR NOT EXISTS (
        SELECT 1 FROM lane_need AS wanted WHERE wanted.lane = lane.id AND NOT EXISTS (
            SELECT 1 FROM node_has AS has
            WHERE has.node = agent.node AND has.need = wanted.need AND has.name = wanted.name
        )
    )
)
""")  # noqa: S608  # only our own constants are in it
    .columns(
        column("lane", Integer),
        column("lane_group", String),
        column("lane_submitter", String),
        column("cpus", Integer),
        column("memory_mib", Integer),
        column("not_on", LANE.c.not_on.type),
        column("head_state", String),
        column("head_priority", Integer),
        column("head_job", BigInteger),
        column("holds", Integer),
    )
    .cte("lanes")
)
"""Each lane that has work for the asking agent, with its first job and the number of its jobs that fit into the
agent."""


_SAVED = [name for name in Checkpoint.model_fields if name != "chain"]
"""The fields of a checkpoint that an agent needs to continue from it."""


def _front(lane: Any, limit: Any) -> Select[*tuple[Any, ...]]:
    """Return the first waiting jobs of a lane, locked, with all facts that an assignment contains."""
    return (
        select(
            JOB.c.lane.label("of_lane"),
            JOB.c.id,
            JOB.c.attempt,
            JOB.c.group,
            JOB.c.spec,
            JOB.c.campaign,
            JOB.c.index.label("run"),
            JOB.c.parameters,
            JOB.c.priority,
            JOB.c.state,
            JOB.c.from_attempt,
            *(CHECKPOINT.c[name].label(f"saved_{name}") for name in _SAVED),
            SPEC.c.document,
            SPEC.c.image_id,
            SPEC.c.inputs,
            STORED_IMAGE.c.digest.label("image_digest"),
        )
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .outerjoin(STORED_IMAGE, STORED_IMAGE.c.image_id == SPEC.c.image_id)
        .outerjoin(
            CHECKPOINT,
            and_(
                CHECKPOINT.c.job == JOB.c.id,
                CHECKPOINT.c.attempt == JOB.c.from_attempt,
                CHECKPOINT.c.number == JOB.c.from_number,
            ),
        )
        .where(JOB.c.lane == lane, text(WAITS))
        .order_by(JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id)
        .limit(limit)
        .with_for_update(of=JOB, skip_locked=True)
    )


_FRONT = _front(bindparam("lane_"), bindparam("limit_"))


def _look() -> Select[*tuple[Any, ...]]:
    in_order = (_LANES.c.head_state.desc(), _LANES.c.head_priority.desc(), _LANES.c.head_job)
    best, holds = (
        select(each).order_by(*in_order).limit(1).scalar_subquery() for each in (_LANES.c.lane, _LANES.c.holds)
    )
    front = _front(best, func.coalesce(holds, 0)).cte("front")
    return (
        select(
            AGENT.c.phase,
            AGENT.c.node,
            exists().where(PAUSE.c.wakes_s <= bindparam("now_s")).label("somebody_wakes"),
            select(NODE.c.excluded_until_s)
            .where(NODE.c.name == AGENT.c.node)
            .scalar_subquery()
            .label("excluded_until_s"),
            _LANES,
            front,
        )
        .select_from(AGENT)
        .outerjoin(_LANES, true())
        .outerjoin(front, front.c.of_lane == _LANES.c.lane)
        .where(AGENT.c.name == bindparam("agent"))
        .order_by(front.c.state.desc(), front.c.priority.desc(), front.c.id)
    )


_LOOK = _look()
"""The query for the asking agent. It returns a row for each lane with work for the agent, or one row with an empty lane
if there is no such lane. The query also reads the jobs of the lane that comes first in the order between submitters,
because most claims need no other lane. For this lane, it returns a row for each of the first jobs."""


def no_limits(_db: Connection, _groups: Collection[str]) -> Allowance:
    """Return an allowance without limits."""
    return Allowance()


def claim(
    db: Connection,
    agent: str,
    ask: ClaimRequest,
    *,
    now_s: float,
    shares: Callable[[Connection], Shares] = lambda _db: Shares(),
    may_record: Callable[[], bool] = lambda: True,
    limits: Callable[[Connection, Collection[str]], Allowance] = no_limits,
) -> Assignments:
    """Assign to the agent as many waiting jobs as fit into its free room, each under a new attempt.

    `shares` is called once, and only if several groups have a job that fits. The decision between the groups is
    recorded if `may_record` returns True. `limits` is called for the groups whose jobs the agent could receive, and
    returns their allowance.

    A silent agent receives no job until its next heartbeat has made it live. An agent that must vacate its node
    receives none. A node that is or was excluded receives at most one. Raises `NotFound` for an agent that was never
    submitted, and `Conflict` for an agent that is not registered or has ended.
    """
    wish = {"agent": agent, "cpus": ask.cpus, "memory_mib": ask.memory_mib, "most": ask.most}
    wish |= {"now_s": now_s, "left_s": ask.left_s}
    rows = db.execute(_LOOK, wish).all()
    if not rows:
        raise NotFound(f"there is no agent {agent}")
    if rows[0].somebody_wakes:
        lanes.wake(db, now_s)
        rows = db.execute(_LOOK, wish).all()
    asking = rows[0]
    if asking.phase not in {Phase.LIVE, Phase.SILENT}:
        raise Conflict(f"agent {agent} may not claim: it is {asking.phase}")
    if asking.lane is None:
        return Assignments()
    welcome = [row for row in rows if asking.node not in row.not_on]
    allowed = limits(db, {row.lane_group for row in welcome})
    welcome = [row for row in welcome if _is_allowed(row, allowed)]
    book = Book(shares(db)) if len({row.lane_group for row in welcome}) > 1 else None
    allowance = returns.allowance(asking.excluded_until_s, now_s)
    most = ask.most if allowance is None else min(allowance, ask.most)
    chosen = list(_chosen(db, welcome, _Room(ask.cpus, ask.memory_mib, most), book, allowed))
    if chosen:
        take(db, [row.id for row, _ in chosen], agent=agent, node=asking.node, now_s=now_s)
    if chosen and allowance is not None:
        node_health.record_canary(db, asking.node, now_s)
    if book is not None and book.starts and may_record():
        decisions.record(
            db,
            kind=DecisionKind.START,
            subjects={f"job {job}": None for job in book.starts},
            policy=fair_share.POLICY,
            given={"agent": agent, "node": asking.node} | book.input_json(),
            answer=book.answer(),
            acted=True,
            now_s=now_s,
        )
    counted_s = attempts.counted_s(db, [row.id for row, _ in chosen if row.document.compute_limit_s is not None])
    return Assignments(jobs=tuple(_assignment(row, lane, counted_s.get(row.id, 0.0)) for row, lane in chosen))


_Lanes = list[tuple[_Head, Any]]
"""The lanes of one submitter, as a heap of their heads."""
_Submitters = list[tuple[tuple[bool, int, int], _Lanes]]
"""The submitters of one group, as a heap of their turns."""


def _is_allowed(lane: Any, allowed: Allowance) -> bool:
    whose = (lane.lane_group, lane.lane_submitter)
    return allowed.holds(whose, lane.cpus) and (lane.head_state == State.SAVED or allowed.may_begin(whose))


def _chosen(
    db: Connection, rows: Sequence[Any], room: _Room, book: Book | None, allowed: Allowance
) -> Iterator[tuple[Any, Any]]:
    """Yield the jobs to take, each with its lane, in the order of choice. Without a book, all jobs belong to one
    group."""
    by_submitter: dict[tuple[str, str], _Lanes] = {}
    for lane in {row.lane: row for row in rows}.values():
        head = _Head(-lane.head_priority, lane.head_state != State.SAVED, lane.head_job)
        heapq.heappush(by_submitter.setdefault((lane.lane_group, lane.lane_submitter), []), (head, lane))
    groups: dict[str, _Submitters] = {}
    for (group, _), lanes_of in by_submitter.items():
        heapq.heappush(groups.setdefault(group, []), (lanes_of[0][0].turn, lanes_of))
    opened = [row for row in rows if row.id is not None]
    fronts = {row.lane: iter(opened) for row in opened[:1]}
    ready: dict[int, Any] = {}
    while fitting := [group for group, waiting in groups.items() if _has_one_that_fits(waiting, room, allowed)]:
        firsts = {group: _first(*groups[group][0][1][0]) for group in fitting} if book else {}
        group = book.best(firsts.values()).group if book else fitting[0]
        lanes_of = groups[group][0][1]
        head, lane = heapq.heappop(lanes_of)
        if lane.lane in ready:
            if book:
                book.start(firsts[group], tuple(firsts.values()), free_cpus=room.cpus)
            room.take(lane.cpus, lane.memory_mib)
            allowed.take((group, lane.lane_submitter), lane.cpus)
            yield ready[lane.lane], lane
        elif lane.lane not in fronts:
            limit = room.holds(lane.cpus, lane.memory_mib)
            fronts[lane.lane] = iter(db.execute(_FRONT, {"lane_": lane.lane, "limit_": limit}).all())
        following = next(fronts[lane.lane], None)
        if following is not None:
            ready[lane.lane] = following
            heapq.heappush(lanes_of, (_Head(-following.priority, head.is_new, following.id), lane))
        _let_next_submitter_follow(groups[group])


def _has_one_that_fits(submitters: _Submitters, room: _Room, allowed: Allowance) -> bool:
    """Drop lanes of a group until the first one fits. A dropped lane cannot fit later, because the room only shrinks.
    Return False if no lane is left."""
    while submitters:
        lanes_of = submitters[0][1]
        lane = lanes_of[0][1]
        whose = lane.lane_group, lane.lane_submitter
        if room.holds(lane.cpus, lane.memory_mib) and allowed.holds(whose, lane.cpus):
            return True
        heapq.heappop(lanes_of)
        _let_next_submitter_follow(submitters)
    return False


def _let_next_submitter_follow(submitters: _Submitters) -> None:
    """Move the first submitter, whose first lane has changed, to its new place among the others."""
    lanes_of = heapq.heappop(submitters)[1]
    if lanes_of:
        heapq.heappush(submitters, (lanes_of[0][0].turn, lanes_of))


def _first(head: _Head, lane: Any) -> First:
    return First(head.job, lane.lane_group, lane.cpus, is_saved=not head.is_new, priority=-head.lowness)


def _assignment(row: Any, lane: Any, counted_s: float) -> Assignment:
    spec = row.document.resolved(job=row.id, campaign=row.campaign, index=row.run, parameters=row.parameters)
    checkpoint = None
    if row.from_attempt is not None:
        checkpoint = Checkpoint.model_validate({name: getattr(row, f"saved_{name}") for name in _SAVED})
    limit_s = spec.compute_limit_s
    return Assignment(
        job=row.id,
        attempt=row.attempt + 1,
        group=row.group,
        submission=row.spec,
        spec=spec,
        memory_mib=lane.memory_mib,
        image_id=row.image_id,
        image_digest=row.image_digest,
        checkpoint=checkpoint,
        compute_left_s=None if limit_s is None else max(0.0, limit_s - counted_s),
        inputs=row.inputs or (),
    )
