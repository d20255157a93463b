"""Blame for failures: what is known is brought before `policy.blame`, and retries are refunded and probes allowed.

All that is known is in the tables, so that a restart forgets nothing. A verdict is looked at when it may have changed:
at a failure, at a claim from a node that is not trusted, and when a job that has failed elsewhere runs well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, false, func, insert, or_, select, text, update
from sqlalchemy.sql import ColumnElement

from gleaner.control.models.jobs import Ending
from gleaner.control.policy import blame
from gleaner.control.policy.blame import Failed, Seen, Verdict
from gleaner.control.queue.schema import AGENT, ATTEMPT, DOUBT, FAILURE, JOB, LANE, Blame, Phase
from gleaner.control.queue.transitions import insert_unless_there, record
from gleaner.control.states import State

LOOKED_AT = 64
"""Only so many of the jobs that failed on a node, the latest, are looked for on other nodes: more make a claim slow."""

_WELL = (Ending.SAVED, Ending.SUCCEEDED)
_HERE = and_(text("phase <> 'ended'"), AGENT.c.phase == Phase.LIVE, AGENT.c.vacate == false())
_RAN_WELL = (
    select(
        ATTEMPT.c.node,
        exists().where(FAILURE.c.job == ATTEMPT.c.job).label("has_failed"),
        exists().where(DOUBT.c.node == ATTEMPT.c.node, DOUBT.c.since_s <= ATTEMPT.c.claimed_s).label("clears"),
    )
    .where(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Doubted:
    """A node that is not trusted now. `reason` is for people."""

    avoided_until_s: float | None
    reason: str


def record_failure(db: Connection, row: Any, made: Any, *, computed_s: float, now_s: float) -> Failed:
    """Record that a workload has exited with an error, and judge its node anew.

    `row` is the job's, locked; `made` is the attempt's.
    """
    is_quick = blame.is_quick(computed_s=computed_s, lasted_s=now_s - made.claimed_s)
    key = {"job": row.id, "attempt": made.attempt, "node": made.node}
    db.execute(insert(FAILURE), key | {"at_s": now_s, "is_quick": is_quick, "blame": Blame.OPEN})
    verdict = Verdict.TRUSTED
    if is_quick:
        _continue_row(db, row.id, made, now_s)
        verdict = _judge(db, made.node, now_s=now_s, is_new=True)
    mine = db.execute(select(FAILURE.c.node, FAILURE.c.blame).where(FAILURE.c.job == row.id)).all()
    nodes = {each.node for each in mine} | {made.node}
    return Failed(
        is_quick=is_quick,
        verdict=verdict,
        is_its_last=False,
        other_nodes_failed=len(nodes) - 1,
        others=_others(db, nodes, now_s, lane=row.lane),
        forgiven=sum(each.blame is not Blame.JOB for each in mine) - 1,
    )


def nodes_failed_on(db: Connection, job: int) -> Mapping[str, int]:
    """Return the nodes on which the job has failed, and how often."""
    counted = select(FAILURE.c.node, func.count().label("times")).where(FAILURE.c.job == job).group_by(FAILURE.c.node)
    return {row.node: row.times for row in db.execute(counted)}


def charge_job(db: Connection, job: int, attempt: int) -> int:
    """Let the failure cost its job a retry, with earlier ones on nodes that are trusted.

    Return how many retries that are.
    """
    doubted = select(DOUBT.c.node).where(DOUBT.c.verdict != Verdict.TRUSTED)
    open_ones = and_(FAILURE.c.job == job, FAILURE.c.blame == Blame.OPEN)
    mine = or_(FAILURE.c.attempt == attempt, FAILURE.c.node.not_in(doubted))
    return db.execute(update(FAILURE).where(open_ones, mine).values(blame=Blame.JOB)).rowcount


def record_success(db: Connection, job: int, attempt: int, *, now_s: float) -> None:
    """Record that the attempt was saved or its workload succeeded. Judge anew the nodes on which the job failed."""
    row = db.execute(_RAN_WELL, {"job_": job, "attempt_": attempt}).one()
    if row.clears:
        db.execute(delete(DOUBT).where(DOUBT.c.node == row.node))
    if row.has_failed:
        for node in sorted(nodes_failed_on(db, job).keys() - {row.node}):
            _judge(db, node, now_s=now_s, is_new=False)


def judge_at_claim(db: Connection, node: str, now_s: float) -> int | None:
    """Judge the node anew, and return how many jobs the node may take now; None: as many as fit."""
    if _judge(db, node, now_s=now_s, is_new=False) is Verdict.TRUSTED:
        return None
    return int(db.execute(select(DOUBT.c.probe_s).where(DOUBT.c.node == node)).scalar_one() <= now_s)


def record_probe(db: Connection, node: str, now_s: float) -> None:
    """Record that the node has taken the one job that it was allowed: the next job has to wait."""
    probes = select(DOUBT.c.probes).where(DOUBT.c.node == node)
    pause_s = blame.probe_pause_s(int(db.execute(probes).scalar_one()) + 1)
    db.execute(update(DOUBT).where(DOUBT.c.node == node).values(probe_s=now_s + pause_s))


def doubted(db: Connection, now_s: float) -> dict[str, Doubted]:
    """Return the nodes that are not trusted now, by name, and why."""
    rows = db.execute(select(DOUBT).where(DOUBT.c.verdict != Verdict.TRUSTED).order_by(DOUBT.c.node))
    return {
        row.node: Doubted(
            avoided_until_s=row.avoided_until_s,
            reason=f"{row.jobs} different jobs in a row failed within {blame.QUICK_S:g} s of their start"
            + (", and run elsewhere" if row.verdict is Verdict.BAD else ""),
        )
        for row in rows
        if row.verdict is Verdict.BAD or row.last_s > now_s - blame.FORGET_S
    }


def limit(db: Connection, now_s: float) -> None:
    """Let no node be avoided or doubted longer than any may, as it would be where the clock has been set back."""
    for column, most_s in (
        (DOUBT.c.last_s, 0.0),
        (DOUBT.c.probe_s, blame.LONGEST_AVOID_S),
        (DOUBT.c.avoided_until_s, blame.LONGEST_AVOID_S),
    ):
        db.execute(update(DOUBT).where(column > now_s + most_s).values({column: now_s}))


def forget(db: Connection, node: str) -> bool:
    """Trust the node again. Return True if it was doubted."""
    return bool(db.execute(delete(DOUBT).where(DOUBT.c.node == node)).rowcount)


def _continue_row(db: Connection, job: int, made: Any, now_s: float) -> None:
    """Add one more quick failure to this node's row, of a job that may have failed there before."""
    first = {
        "node": made.node,
        "jobs": 1,
        "probes": 0,
        "since_s": made.claimed_s,
        "last_s": now_s,
        "verdict": Verdict.TRUSTED,
        "doubted_s": None,
        "probe_s": now_s,
        "times_bad": 0,
        "avoided_until_s": None,
    }
    mine = DOUBT.c.node == made.node
    if db.execute(insert_unless_there(db, DOUBT).returning(DOUBT.c.node), first).one_or_none() is not None:
        return
    row: Any = db.execute(select(DOUBT).where(mine).with_for_update()).one_or_none()
    if row is None:  # a good run has removed it just now
        db.execute(insert_unless_there(db, DOUBT), first)
        return
    if _is_forgotten(row, now_s):
        db.execute(update(DOUBT).where(mine).values(first))
        return
    before = exists().where(
        FAILURE.c.job == job,
        FAILURE.c.attempt != made.attempt,
        FAILURE.c.node == made.node,
        FAILURE.c.is_quick,
        FAILURE.c.at_s >= row.since_s,
    )
    is_new = not db.execute(select(before)).scalar_one()
    is_probe = row.doubted_s is not None and made.claimed_s > row.doubted_s
    values = {"jobs": row.jobs + is_new, "probes": row.probes + is_probe, "last_s": now_s}
    db.execute(update(DOUBT).where(mine).values(values | {"since_s": min(row.since_s, made.claimed_s)}))


def _is_forgotten(row: Any, now_s: float) -> bool:
    return row.verdict is not Verdict.BAD and row.last_s <= now_s - blame.FORGET_S


def _judge(db: Connection, node: str, *, now_s: float, is_new: bool) -> Verdict:
    """Return what the node is now. `is_new`: a job has just failed there."""
    mine = DOUBT.c.node == node
    row: Any = db.execute(select(DOUBT).where(mine).with_for_update()).one_or_none()
    if row is None:
        return Verdict.TRUSTED
    if _is_forgotten(row, now_s) or _runs_one_well(db, row, now_s):
        db.execute(delete(DOUBT).where(mine))
        return Verdict.TRUSTED
    found = blame.verdict(_seen(db, row, now_s))
    values: dict[str, object] = {"verdict": found}
    if found is Verdict.TRUSTED:
        values |= {"doubted_s": None, "probes": 0, "times_bad": 0, "avoided_until_s": None}
    elif row.doubted_s is None:
        values |= {"doubted_s": now_s, "probe_s": now_s + blame.probe_pause_s(0)}
    elif is_new:
        values["probe_s"] = now_s + blame.probe_pause_s(row.probes)
    if found is Verdict.BAD and (is_new or row.verdict is not Verdict.BAD):
        until_s = now_s + blame.avoid_s(row.times_bad + 1)
        values |= {"times_bad": row.times_bad + 1, "avoided_until_s": until_s, "probe_s": until_s}
    db.execute(update(DOUBT).where(mine).values(values))
    if found is Verdict.BAD:
        _forgive(db, row, now_s)
    return found


def _runs_one_well(db: Connection, row: Any, now_s: float) -> bool:
    """Return True if a job that was claimed there since the first failure has begun well."""
    well = (
        select(JOB.c.id)
        .join_from(AGENT, JOB, JOB.c.agent == AGENT.c.name)
        .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == JOB.c.attempt))
        .where(_HERE, AGENT.c.node == row.node)
        .where(ATTEMPT.c.claimed_s >= row.since_s, ATTEMPT.c.claimed_s <= now_s - blame.STEADY_S)
    )
    return db.execute(well.limit(1)).one_or_none() is not None


def _has_row(now_s: float) -> ColumnElement[bool]:
    """Return the condition, on a node that is joined with its doubt, that jobs in a row have failed there."""
    is_long = and_(DOUBT.c.jobs >= blame.JOBS_UNTIL_DOUBTED, DOUBT.c.last_s > now_s - blame.FORGET_S)
    return func.coalesce(or_(is_long, DOUBT.c.verdict == Verdict.BAD), false())


def _seen(db: Connection, row: Any, now_s: float) -> Seen:
    here = select(func.count(AGENT.c.node.distinct())).join_from(AGENT, DOUBT, DOUBT.c.node == AGENT.c.node)
    alike = here.where(_HERE, AGENT.c.node != row.node, _has_row(now_s))
    ran, failed_too = _elsewhere(db, row, now_s)
    return Seen(
        jobs=row.jobs,
        probes=row.probes,
        ran_elsewhere=ran,
        failed_elsewhere=failed_too,
        others=_others(db, {row.node}, now_s),
        others_alike=int(db.execute(alike).scalar_one()),
        was_bad=row.verdict is Verdict.BAD,
    )


def _others(db: Connection, nodes: set[str], now_s: float, *, lane: int | None = None) -> int:
    """Return how many other nodes have a live agent and no row of failures; those large enough for the lane's jobs."""
    found = (
        select(func.count(AGENT.c.node.distinct()))
        .join_from(AGENT, DOUBT, DOUBT.c.node == AGENT.c.node, isouter=True)
        .where(_HERE, AGENT.c.node.not_in(sorted(nodes)), ~_has_row(now_s))
    )
    if lane is not None:
        found = found.join(LANE, LANE.c.id == lane).where(
            AGENT.c.facts["cpus"].as_integer() >= LANE.c.cpus,
            AGENT.c.facts["memory_mib"].as_integer() >= LANE.c.memory_mib,
        )
    return int(db.execute(found).scalar_one())


def _elsewhere(db: Connection, row: Any, now_s: float) -> tuple[int, int]:
    """Return how many of the jobs that have failed on this node ran well elsewhere, and how many failed there too."""
    here = (
        select(FAILURE.c.job)
        .where(FAILURE.c.node == row.node, FAILURE.c.at_s >= row.since_s, FAILURE.c.is_quick)
        .group_by(FAILURE.c.job)
        .order_by(func.max(FAILURE.c.at_s).desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    lives_well = and_(
        ATTEMPT.c.ending.is_(None),
        ATTEMPT.c.claimed_s <= now_s - blame.STEADY_S,
        exists().where(AGENT.c.name == ATTEMPT.c.agent, AGENT.c.phase == Phase.LIVE),
    )
    well = or_(ATTEMPT.c.ending.in_(_WELL), FAILURE.c.is_quick == false(), lives_well)
    told = (
        select(ATTEMPT.c.job, well.label("well"), and_(FAILURE.c.is_quick, ~_has_row(now_s)).label("badly"))
        .join_from(here, ATTEMPT, ATTEMPT.c.job == here.c.job)
        .outerjoin(FAILURE, and_(FAILURE.c.job == ATTEMPT.c.job, FAILURE.c.attempt == ATTEMPT.c.attempt))
        .outerjoin(DOUBT, DOUBT.c.node == ATTEMPT.c.node)
        .where(ATTEMPT.c.node != row.node)
    )
    ran: set[int] = set()
    failed_too: set[int] = set()
    for each in db.execute(told):
        if each.badly:
            failed_too.add(each.job)
        elif each.well:
            ran.add(each.job)
    return len(ran - failed_too), len(failed_too)


def _forgive(db: Connection, row: Any, now_s: float) -> None:
    """Refund the retries that failures on a bad node have cost. A job that another transaction holds comes later."""
    there = and_(FAILURE.c.node == row.node, FAILURE.c.at_s >= row.since_s)
    owed = (
        select(JOB.c.id)
        .where(JOB.c.state != State.COMPLETE)
        .where(JOB.c.id.in_(select(FAILURE.c.job).where(there, FAILURE.c.blame != Blame.NODE)))
        .order_by(JOB.c.id)
        .with_for_update(skip_locked=True)
    )
    for job in db.execute(owed).scalars().all():
        mine = and_(FAILURE.c.job == job, there)
        forgiven = select(func.count()).where(FAILURE.c.job == job, FAILURE.c.blame == Blame.NODE)
        if db.execute(forgiven).scalar_one() >= blame.FORGIVEN_AT_MOST:
            continue
        counted = select(func.count()).where(mine, FAILURE.c.blame == Blame.JOB)
        retries = int(db.execute(counted).scalar_one())
        db.execute(update(FAILURE).where(mine).values(blame=Blame.NODE))
        if retries:
            db.execute(update(JOB).where(JOB.c.id == job).values(failures=JOB.c.failures - retries))
            detail = f"{retries} refunded: {row.node} fails the jobs that it is given"
            record(db, job, "retries refunded", now_s=now_s, detail=detail)
