"""Queries for jobs, campaigns, agents and their free room, and the resources of each group. No function here changes
the database."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Float, RowMapping, and_, bindparam, case, func, select, text, union_all
from sqlalchemy.sql import ColumnElement

from gleaner.agent.messages import ReturnReason
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.campaigns import CampaignStatus
from gleaner.control.models.jobs import (
    NOT_SAVED,
    NOTHING_TO_KEEP,
    AttemptRow,
    CheckpointRow,
    Ending,
    EventRow,
    JobDetail,
    JobRow,
)
from gleaner.control.models.outputs import ResultRow
from gleaner.control.policy.fair_share import Shares
from gleaner.control.policy.provisioning import WaitingJobs
from gleaner.control.policy.quotas import Allowance
from gleaner.control.queue import attempts, compatibility, deliveries
from gleaner.control.queue.claims import OCCUPIED, no_limits
from gleaner.control.queue.errors import NotFound
from gleaner.control.queue.tables import (
    AGENT,
    ATTEMPT,
    CAMPAIGN,
    CHECKPOINT,
    EVENT,
    JOB,
    LANE,
    SPEC,
    WAITS,
    Phase,
    Standing,
)
from gleaner.control.queue.transitions import event_name
from gleaner.control.states import Outcome, State, Transition

FIRST_EVENTS, NEWEST_EVENTS = 50, 450
"""The number of a job's first events, and of its latest events, that are shown and kept."""
RESULTS_AT_ONCE = 1000
_UNSAVED = (*attempts.SAVE_FAILURES, ReturnReason.TOO_LATE)


@dataclass(frozen=True, slots=True)
class Kept:
    """The archives of one job that the queue still needs in storage."""

    is_complete: bool
    latest_attempt: int
    checkpoints: Collection[tuple[int, int]]
    """(attempt, number) of the recorded checkpoints and of those set aside as broken. A Complete job has none."""
    output_attempt: int | None


KEEP_S = bindparam("keep_s", None, type_=Float)
"""The time for which results are kept, or None if they are kept indefinitely."""
JOB_ROWS = (  # the columns of a job in a list
    select(
        JOB.c.id,
        SPEC.c.name,
        JOB.c.group,
        JOB.c.campaign,
        JOB.c.index,
        JOB.c.parameters,
        JOB.c.state,
        JOB.c.outcome,
        JOB.c.exit_code,
        JOB.c.held,
        JOB.c.priority,
        LANE.c.cpus,
        LANE.c.memory_mib,
        JOB.c.attempt,
        AGENT.c.node,
        JOB.c.submitted_s,
        JOB.c.ended_s,
        JOB.c.submitter,
        case((JOB.c.output_bytes.is_not(None), JOB.c.ended_s + KEEP_S)).label("kept_until_s"),
    )
    .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
    .join(LANE, LANE.c.id == JOB.c.lane)
    .outerjoin(AGENT, AGENT.c.name == JOB.c.agent)
)


def job_row(db: Connection, job: int, *, keep_s: float | None = None) -> JobRow:
    """Return one job as it appears in a list. Raises `NotFound`."""
    row = db.execute(JOB_ROWS.where(JOB.c.id == job), {"keep_s": keep_s}).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job}")
    return JobRow(**row)


def job_detail(db: Connection, job: int, *, keep_s: float | None = None) -> JobDetail:
    """Return all known facts about one job. The caller adds `waits_because`. Raises `NotFound`."""
    row = job_row(db, job, keep_s=keep_s)
    columns = (
        select(
            SPEC.c.document,
            SPEC.c.image_id,
            SPEC.c.inputs,
            JOB.c.failures,
            JOB.c.output_bytes,
        )
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .where(JOB.c.id == job)
    )
    more = db.execute(columns).mappings().one()
    spec = more["document"].resolved(job=job, campaign=row.campaign, index=row.index, parameters=row.parameters)
    events, slices = tuple(_events(db, job)), tuple(_attempts(db, job))
    reruns = [place for place, event in enumerate(events) if event.what == event_name(Transition.RERUN)]
    of_this_run = events[max(reruns, default=0) :]
    ended = next((each for each in reversed(slices) if each.ending is not None), None)
    has_failed = ended and ended.ending == Ending.FAILED and row.state is not State.COMPLETE
    return JobDetail.model_validate(
        {
            **more,
            "inputs": more["inputs"] or (),
            "spec": spec,
            "delivery": deliveries.find(db, job) if spec.outputs is not None else None,
            "unmatched": [event.detail for event in of_this_run if event.what == NOTHING_TO_KEEP],
            "job": row,
            "counted_s": attempts.counted_s(db, [job]).get(job, 0.0),
            "failed_because": next((event.detail for event in reversed(of_this_run) if event.what == "fail"), None),
            "last_failure": ended.detail if has_failed and ended else None,
            "waits_because": None,
            "unsaved_because": ended.detail if ended and ended.why in _UNSAVED else None,
            "not_saved_because": _not_saved_because(events) if row.state is State.RUNNING else None,
            "attempts": slices,
            "events": events,
            "checkpoints": tuple(_checkpoints(db, row)),
        }
    )


def _attempts(db: Connection, job: int) -> Iterator[AttemptRow]:
    found = select(ATTEMPT).where(ATTEMPT.c.job == job).order_by(ATTEMPT.c.attempt)
    return (AttemptRow(**row) for row in db.execute(found).mappings())


def _not_saved_because(events: Sequence[EventRow]) -> str | None:
    """Return the reason of the latest failed save, unless a later save has succeeded or a new slice has begun."""
    these = {NOT_SAVED, event_name(Transition.CHECKPOINT), event_name(Transition.CLAIM)}
    last = next((event for event in reversed(events) if event.what in these), None)
    return last.detail if last is not None and last.what == NOT_SAVED else None


def _events(db: Connection, job: int) -> Iterator[EventRow]:
    mine = select(EVENT.c.id).where(EVENT.c.job == job)
    first = mine.order_by(EVENT.c.id).limit(FIRST_EVENTS).subquery()
    newest = mine.order_by(EVENT.c.id.desc()).limit(NEWEST_EVENTS).subquery()
    some = EVENT.c.id.in_(union_all(select(first), select(newest)))
    found = select(EVENT.c.at_s, EVENT.c.what, EVENT.c.detail).where(some).order_by(EVENT.c.id)
    return (EventRow(**row) for row in db.execute(found).mappings())


def _checkpoints(db: Connection, job: JobRow) -> Iterator[CheckpointRow]:
    if job.state is State.COMPLETE:
        return iter(())
    found = (
        select(CHECKPOINT.c.attempt, CHECKPOINT.c.number, CHECKPOINT.c.size_bytes, CHECKPOINT.c.published_s)
        .where(CHECKPOINT.c.job == job.id, CHECKPOINT.c.standing == Standing.NAMED)
        .order_by(CHECKPOINT.c.attempt, CHECKPOINT.c.number)
    )
    return (CheckpointRow(**row) for row in db.execute(found).mappings())


def latest_event(db: Connection) -> int:
    """Return the number of the latest event of any job, or 0 if there is none. Every transition creates an event."""
    return db.execute(select(func.max(EVENT.c.id))).scalar_one() or 0


def waiting_before(db: Connection, job: int, *, at_most: int) -> int:
    """Return the approximate number of waiting jobs that come before a waiting job of the same group. The count stops
    at `at_most`.

    The order is that of a claim (see `claims`), as if the job were its submitter's next job. Each part of the count is
    a range of the index of the waiting jobs, so no more rows are read than are counted.
    """
    mine = db.execute(select(JOB.c.group, JOB.c.submitter, JOB.c.state, JOB.c.priority).where(JOB.c.id == job)).one()
    same = LANE.c.submitter == mine.submitter
    alike = (JOB.c.state == mine.state, JOB.c.priority == mine.priority)
    parts: list[tuple[ColumnElement[bool], ...]] = [
        (JOB.c.state == mine.state, JOB.c.priority > mine.priority),
        (*alike, JOB.c.id < job),
    ]
    if mine.state is State.NEW:
        parts += [
            (~same, JOB.c.state == State.SAVED),
            (same, JOB.c.state == State.SAVED, JOB.c.priority >= mine.priority),
        ]
    else:
        parts.append((same, JOB.c.state == State.NEW, JOB.c.priority > mine.priority))
    found = 0
    for part in parts:
        some = select(JOB.c.id).join(LANE, and_(LANE.c.id == JOB.c.lane, LANE.c.group == mine.group, ~LANE.c.is_closed))
        some = some.where(text(WAITS), *part).limit(at_most - found)
        found += int(db.execute(select(func.count()).select_from(some.subquery())).scalar_one())
    return found


def hold_reason(db: Connection, job: int) -> str:
    """Return the reason why the job is held, or "" if it is not held."""
    found = db.execute(select(JOB.c.hold_reason).where(JOB.c.id == job)).scalar_one_or_none()
    return found or ""


def archives_to_keep(db: Connection, jobs: Collection[int]) -> dict[int, Kept]:
    """Return the archives to keep for each of these jobs. An unknown job is left out."""
    named: dict[int, set[tuple[int, int]]] = {}
    found = select(CHECKPOINT.c.job, CHECKPOINT.c.attempt, CHECKPOINT.c.number).where(
        CHECKPOINT.c.job.in_(jobs), CHECKPOINT.c.standing != Standing.DROPPED
    )
    for job, attempt, number in db.execute(found):
        named.setdefault(job, set()).add((attempt, number))
    columns = (JOB.c.id, JOB.c.state, JOB.c.attempt, JOB.c.sound_attempt, JOB.c.output_digest)
    rows = db.execute(select(*columns).where(JOB.c.id.in_(jobs)))
    return {
        row.id: Kept(
            is_complete=row.state is State.COMPLETE,
            latest_attempt=row.attempt,
            checkpoints=frozenset() if row.state is State.COMPLETE else frozenset(named.get(row.id, ())),
            output_attempt=None if row.output_digest is None else row.sound_attempt,
        )
        for row in rows
    }


def results(db: Connection, storage: Path, *, job: int = 0, campaign: int = 0, after: int = 0) -> tuple[ResultRow, ...]:
    """Return the result of a job, or a page of a campaign's results, sorted by job. Only ended jobs have a digest."""
    which = JOB.c.id == job if job else JOB.c.campaign == campaign
    accepted = (JOB.c.sound_attempt.label("attempt"), JOB.c.output_digest.label("digest"))
    page = (
        select(JOB.c.id.label("job"), SPEC.c.name, JOB.c.index, JOB.c.state, JOB.c.outcome, *accepted)
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .where(which, JOB.c.id > after)
    )
    rows = db.execute(page.order_by(JOB.c.id).limit(RESULTS_AT_ONCE)).mappings()
    return tuple(ResultRow(**row, storage=str(storage)) for row in rows)


def first_job(db: Connection, campaign: int) -> int:
    """Return the first job of a campaign."""
    return int(db.execute(select(func.min(JOB.c.id)).where(JOB.c.campaign == campaign)).scalar_one())


def find_campaign(db: Connection, campaign: int) -> RowMapping:
    """Return a campaign as it is stored. Raises `NotFound`."""
    row = db.execute(select(CAMPAIGN).where(CAMPAIGN.c.id == campaign)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no campaign {campaign}")
    return row


COUNTED: dict[str, ColumnElement[bool]] = {
    "new": JOB.c.state == State.NEW,
    "running": JOB.c.state == State.RUNNING,
    "saved": JOB.c.state == State.SAVED,
    "succeeded": JOB.c.outcome == Outcome.SUCCEEDED,
    "failed": JOB.c.outcome == Outcome.FAILED,
    "cancelled": JOB.c.outcome == Outcome.CANCELLED,
    "held": JOB.c.held.is_(True),
}


def status(db: Connection, *, campaign: int | None = None, group: str | None = None) -> CampaignStatus:
    """Return how many jobs are in each state, in one campaign, in one group, or altogether. Raises `NotFound`."""
    if campaign is not None:
        find_campaign(db, campaign)
    counted = select(*sums_of(COUNTED))
    for column, only in ((JOB.c.campaign, campaign), (JOB.c.group, group)):
        counted = counted if only is None else counted.where(column == only)
    return CampaignStatus(campaign=campaign, **db.execute(counted).mappings().one())


def sums_of(conditions: Mapping[str, ColumnElement[bool]]) -> Iterator[ColumnElement[int]]:
    """Return, for each of these conditions, the column that counts the rows that satisfy it."""
    return (func.coalesce(func.sum(case((when, 1), else_=0)), 0).label(name) for name, when in conditions.items())


def agent_rows(
    db: Connection, *, now_s: float, group: str | None = None, ended_at_most: int = 1000
) -> tuple[AgentRow, ...]:
    """Return the agents, the latest first, and at most `ended_at_most` ended ones.

    If a group is given, only its jobs are listed with the agents.
    """
    jobs: dict[str, list[int]] = {}
    running = select(JOB.c.agent, JOB.c.id).where(JOB.c.agent.is_not(None)).order_by(JOB.c.id)
    for agent, job in db.execute(running if group is None else running.where(JOB.c.group == group)):
        jobs.setdefault(agent, []).append(job)
    here = select(AGENT).where(AGENT.c.phase != Phase.ENDED)
    ended = select(AGENT).where(AGENT.c.phase == Phase.ENDED).order_by(AGENT.c.submitted_s.desc()).limit(ended_at_most)
    rows = [
        AgentRow.model_validate({**row, "phase": _phase(row, now_s), "jobs": tuple(jobs.get(row["name"], ()))})
        for wanted in (here, ended)
        for row in db.execute(wanted).mappings()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.submitted_s, row.name)))


def _phase(row: RowMapping, now_s: float) -> Phase:
    """Return the agent's phase. An agent past its lease is silent, even before `agents.expire` has marked it."""
    phase: Phase = row["phase"]
    return Phase.SILENT if phase is Phase.LIVE and row["lease_until_s"] < now_s else phase


def agent_phases(db: Connection, *, now_s: float) -> Mapping[str, int]:
    """Return how many agents are in each phase. Ended agents are not counted."""
    here = select(AGENT.c.phase, AGENT.c.lease_until_s).where(AGENT.c.phase != Phase.ENDED)
    counts = {phase.value: 0 for phase in (Phase.SUBMITTED, Phase.LIVE, Phase.SILENT)}
    for row in db.execute(here).mappings():
        counts[_phase(row, now_s).value] += 1
    return counts


_HERE = text("phase <> 'ended'")  # exactly these words, so that the index of the agents that have not ended is used


@dataclass(frozen=True, slots=True)
class SilentAgents:
    """The agents whose lease has expired, the number of their nodes, and the time at which the first lease expired."""

    agents: int
    nodes: int
    since_s: float


def silent_agents(db: Connection, *, now_s: float) -> SilentAgents | None:
    """Return the agents that have not ended and have stopped sending heartbeats, or None if there are none."""
    counts = (func.count(), func.count(AGENT.c.node.distinct()), func.min(AGENT.c.lease_until_s))
    row = db.execute(select(*counts).where(_HERE, AGENT.c.lease_until_s < now_s)).one()
    return SilentAgents(*row) if row[0] else None


_OCCUPIED = text(
    OCCUPIED + " SELECT lane.* FROM occupied JOIN lane ON lane.id = occupied.lane"  # noqa: S608
    " WHERE NOT lane.is_closed ORDER BY lane.id"
).columns(**{column.name: column.type for column in LANE.c})


def waiting(
    db: Connection,
    *,
    at_most: int = 100_000,
    limits: Callable[[Connection, Collection[str]], Allowance] = no_limits,
    within_s: float = math.inf,
    since_s: float | None = None,
) -> tuple[WaitingJobs, ...]:
    """Return how many jobs of each size an agent with this much time left could claim. Each count stops at `at_most`.

    This bound limits the time of the query. `limits` returns the allowance of the groups. Jobs that fit different nodes
    are each counted against the whole allowance, so that jobs that find no node do not keep agents from the others.
    `since_s` has the same meaning as in `compatibility.misfits`.
    """
    found: Counter[tuple[int, int, frozenset[str]]] = Counter()
    lanes = [lane for lane in db.execute(_OCCUPIED).all() if lane.needs_s <= within_s]
    misfits = compatibility.misfits(db, lanes, since_s=since_s)
    allowed = limits(db, {lane.group for lane in lanes})
    left: dict[frozenset[str], Allowance] = {}
    for lane in lanes:
        mine = left.setdefault(misfits[lane.id], replace(allowed, cores=dict(allowed.cores)))
        whose = (lane.group, lane.submitter)
        most = mine.most(whose, lane.cpus)
        some = select(JOB.c.id).where(JOB.c.lane == lane.id, text(WAITS))
        if not mine.may_begin(whose):
            some = some.where(JOB.c.state == State.SAVED)
        some = some.limit(at_most if most is None else min(most, at_most))
        count = int(db.execute(select(func.count()).select_from(some.subquery())).scalar_one())
        mine.take(whose, count * lane.cpus)
        found[lane.cpus, lane.memory_mib, misfits[lane.id]] += count
    return tuple(WaitingJobs(*key[:2], count, key[2]) for key, count in found.items() if count)


GONE_S = 600.0
"""An agent counts as gone this long after its planned end, whatever the clocks show and however late Slurm kills it."""
_OFFERS = select(AGENT.c.facts).order_by(AGENT.c.name.desc()).limit(200)
"""The facts of the latest agents. They are None for agents that have not registered."""


@dataclass(frozen=True, slots=True)
class AgentHere:
    """One agent that has not ended. Its node and free room are None until it has registered."""

    name: str
    phase: Phase
    scheduler_id: str | None
    end_s: float
    submitted_s: float
    node: str | None
    free_cpus: int | None
    free_memory_mib: int | None
    is_leaving: bool = False
    """True if the agent was told to save its jobs and end."""


def memory_offered(db: Connection) -> frozenset[int]:
    """Return the memory sizes, in MiB, that the latest agents had for jobs.

    An agent's settings can leave less memory than the node has.
    """
    return frozenset(int(facts["memory_mib"]) for facts in db.execute(_OFFERS).scalars() if facts)


def disk_offered(db: Connection) -> int | None:
    """Return the largest disk limit for a job among the latest agents, in MiB, or None if it is unknown."""
    found = [int(facts["disk_mib"]) for facts in db.execute(_OFFERS).scalars() if facts and facts["disk_mib"]]
    return max(found, default=None)


def agents_here(db: Connection) -> tuple[AgentHere, ...]:
    """Return all agents that have not ended, sorted by name."""
    used = {
        row.agent: (int(row.cpus), int(row.memory_mib))
        for row in db.execute(
            select(JOB.c.agent, func.sum(LANE.c.cpus).label("cpus"), func.sum(LANE.c.memory_mib).label("memory_mib"))
            .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
            .where(JOB.c.agent.is_not(None))
            .group_by(JOB.c.agent)
        )
    }
    here: list[AgentHere] = []
    for row in db.execute(select(AGENT).where(AGENT.c.phase != Phase.ENDED).order_by(AGENT.c.name)):
        used_cpus, used_mib = used.get(row.name, (0, 0))
        cpus = None if row.facts is None else row.facts["cpus"] - used_cpus
        memory_mib = None if row.facts is None else row.facts["memory_mib"] - used_mib
        own = (row.name, row.phase, row.scheduler_id, row.end_s, row.submitted_s, row.node)
        here.append(AgentHere(*own, cpus, memory_mib, row.vacate))
    return tuple(here)


def last_lease_s(db: Connection) -> float | None:
    """Return the time at which the last of all leases expires, or None before the first lease."""
    lease_s: float | None = db.execute(select(func.max(AGENT.c.lease_until_s))).scalar_one()
    return lease_s


def has_jobs(db: Connection) -> bool:
    """Return True if the queue has any job."""
    return db.execute(select(JOB.c.id).limit(1)).first() is not None


def gone_agents(db: Connection, names: Collection[str], *, now_s: float) -> frozenset[str]:
    """Return which of these agents no longer write anything, because they have deregistered or their time is over.

    An agent that the scheduler has forgotten might still run without contact with control until its planned end, and
    save checkpoints.
    """
    if not names:
        return frozenset()
    closed = select(AGENT.c.name, AGENT.c.end_s, AGENT.c.facts)
    closed = closed.where(AGENT.c.name.in_(names), AGENT.c.phase == Phase.ENDED)
    found: set[str] = set()
    for row in db.execute(closed):
        facts: dict[str, Any] = row.facts or {}
        end_s = max(row.end_s, facts.get("end_s", 0.0))
        if not facts.get("unseen") or now_s > end_s + GONE_S:
            found.add(row.name)
    return frozenset(found)


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
    " WHERE NOT lane.is_closed"
)


def group_usage(db: Connection) -> Shares:
    """Return the current usage of all groups, without the rules.

    The time that this takes is proportional to the number of running jobs.
    """
    return Shares(
        capacity_cpus=int(db.execute(_CAPACITY).scalar_one()),
        holds_cpus={row.group: int(row.cpus) for row in db.execute(_HOLDS)},
        waiting=frozenset(db.execute(_WAITING).scalars()),
    )
