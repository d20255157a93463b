"""The rows of attempts and of the checkpoints that they published. The callers check the reports first."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.sql import ColumnElement

from gleaner.agent.checkpoints.interface import checkpoints_to_keep
from gleaner.agent.messages import Checkpoint, ReturnReason, Slice
from gleaner.control.models.jobs import Ending
from gleaner.control.policy.returns import Blame
from gleaner.control.queue.errors import Invalid, NotCurrent, NotFound, NotYours
from gleaner.control.queue.tables import ATTEMPT, CHECKPOINT, JOB, MIGRATION, PAUSE, Standing
from gleaner.control.queue.transitions import lock
from gleaner.control.states import State

SAVE_FAILURES = (ReturnReason.SAVE_FAILED, ReturnReason.UNSAVABLE)
"""The reasons for which an attempt is returned after a failed save."""

OF_THIS_RUN = and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt > JOB.c.earlier_attempts)
"""The condition that an attempt is later than the latest rerun of its job."""
_ONE = and_(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
_FIND = select(ATTEMPT).where(_ONE)
_END = update(ATTEMPT).where(_ONE)
_AGENT_OF = select(ATTEMPT.c.agent).where(_ONE)
_NAMED = (
    select(CHECKPOINT.c.attempt, CHECKPOINT.c.number, CHECKPOINT.c.chain)
    .where(CHECKPOINT.c.job == bindparam("job_"), CHECKPOINT.c.standing == Standing.NAMED)
    .order_by(CHECKPOINT.c.attempt.desc(), CHECKPOINT.c.number.desc())
)
_NEWEST = (
    select(CHECKPOINT.c.number, CHECKPOINT.c.digest)
    .where(CHECKPOINT.c.job == bindparam("job_"), CHECKPOINT.c.attempt == bindparam("attempt_"))
    .order_by(CHECKPOINT.c.number.desc())
    .limit(1)
)
_STAND = (
    update(CHECKPOINT)
    .where(
        CHECKPOINT.c.job == bindparam("job_"),
        CHECKPOINT.c.attempt == bindparam("attempt_"),
        CHECKPOINT.c.number == bindparam("number_"),
    )
    .values(standing=bindparam("standing_", type_=CHECKPOINT.c.standing.type))
)


def check_agent(db: Connection, job: int, attempt: int, agent: str) -> None:
    """Raise `NotFound` if this attempt does not exist, and `NotYours` if it belongs to another agent."""
    its_agent = db.execute(_AGENT_OF, {"job_": job, "attempt_": attempt}).scalar_one_or_none()
    if its_agent is None:
        raise NotFound(f"there is no attempt {attempt} of job {job}")
    if its_agent != agent:
        raise NotYours(f"attempt {attempt} of job {job} belongs to another agent")


def running_job(db: Connection, job: int, attempt: int, agent: str) -> Any:
    """Return the locked row of a job that runs in this attempt of the agent.

    Raises `NotFound`, `NotYours` or `NotCurrent`.
    """
    check_agent(db, job, attempt, agent)
    row = lock(db, job)
    if row.attempt != attempt or row.state is not State.RUNNING:
        raise NotCurrent(job, attempt, f"attempt {row.attempt} is the latest, and the job is {row.state}")
    return row


def end_columns(
    ending: Ending,
    *,
    ended_s: float,
    spent: Slice | None = None,
    exit_code: int | None = None,
    detail: str = "",
    why: ReturnReason | None = None,
) -> dict[str, object]:
    """Return the columns for an attempt's end, including its computing time if the agent reports it.

    Pass them to `transitions.make_transition` or `end`. The computing time of a returned attempt since its last
    checkpoint is lost, and does not count against the job's limit.
    """
    values: dict[str, object] = {"ended_s": ended_s, "ending": ending, "exit_code": exit_code, "detail": detail}
    values["why"] = why
    return values if spent is None else values | slice_columns(spent, counts=ending is not Ending.RETURNED)


def slice_columns(spent: Slice, *, counts: bool = True) -> dict[str, object]:
    """Return the columns for an attempt's computing time so far.

    Pass them to `transitions.make_transition` or `end`.
    """
    values: dict[str, object] = spent.model_dump(exclude={"restored"})
    return values | {"counted_s": spent.compute_s} if counts else values


def counted_s(db: Connection, jobs: Collection[int]) -> Mapping[int, float]:
    """Return, for each job, the computing time that counts against its limit. Jobs without an attempt are left out."""
    if not jobs:  # true for most claims
        return {}
    counted = select(ATTEMPT.c.job, func.sum(ATTEMPT.c.counted_s).label("counted_s")).join(JOB, OF_THIS_RUN)
    return {
        row.job: row.counted_s for row in db.execute(counted.where(ATTEMPT.c.job.in_(jobs)).group_by(ATTEMPT.c.job))
    }


def end(db: Connection, job: int, attempt: int, values: Mapping[str, object]) -> None:
    """Record the end of an attempt whose job makes no transition."""
    db.execute(_END, {**values, "job_": job, "attempt_": attempt})


def end_live_ones(db: Connection, campaign: int, values: Mapping[str, object]) -> None:
    """Record the end of all running attempts of a campaign."""
    mine = select(JOB.c.id).where(JOB.c.campaign == campaign, JOB.c.agent.is_not(None))
    live = update(ATTEMPT).where(ATTEMPT.c.job.in_(mine), ATTEMPT.c.ending.is_(None))
    db.execute(live.values(values))


def reopen(db: Connection, job: int, attempt: int) -> None:
    """Mark an attempt that was given up as running again, because it is alive."""
    end(db, job, attempt, {"ended_s": None, "ending": None, "why": None, "detail": "", "blame": None})


def find(db: Connection, job: int, attempt: int) -> Any:
    """Return the attempt's row, or None if it does not exist."""
    return db.execute(_FIND, {"job_": job, "attempt_": attempt}).one_or_none()


def lost_nodes(db: Connection, job: int, *, after: int) -> Sequence[str]:
    """Return the different nodes on which attempts later than `after` were lost together with their agents."""
    lost = (
        select(ATTEMPT.c.node, func.min(ATTEMPT.c.attempt))
        .where(ATTEMPT.c.job == job, ATTEMPT.c.attempt > after, ATTEMPT.c.ending == Ending.LOST)
        .group_by(ATTEMPT.c.node)
        .order_by(func.min(ATTEMPT.c.attempt))
    )
    return [row.node for row in db.execute(lost)]


def futile_attempts(
    db: Connection, job: int, *, after: int, whys: Sequence[ReturnReason]
) -> Sequence[tuple[str, ReturnReason]]:
    """Return the node and the reason of each attempt later than `after` that was returned for one of these reasons."""
    returned = select(ATTEMPT.c.node, ATTEMPT.c.why).where(_returned(whys), ATTEMPT.c.job == job)
    later = returned.where(ATTEMPT.c.attempt > after).order_by(ATTEMPT.c.attempt)
    return [(row.node, row.why) for row in db.execute(later)]


def _returned(whys: Sequence[ReturnReason]) -> ColumnElement[bool]:
    """Return the condition that an attempt was returned for one of these reasons, and that its node was not to
    blame."""
    return and_(ATTEMPT.c.why.in_(whys), or_(ATTEMPT.c.blame.is_(None), ATTEMPT.c.blame != Blame.NODE))


def has_begun(db: Connection, campaign: int) -> bool:
    """Return True if any job of the campaign has started to compute."""
    begun = select(ATTEMPT.c.job).join(JOB, JOB.c.id == ATTEMPT.c.job)
    return db.execute(begun.where(JOB.c.campaign == campaign, ATTEMPT.c.compute_s > 0).limit(1)).first() is not None


def nodes_without_image(db: Connection, campaign: int, why: ReturnReason) -> Sequence[str]:
    """Return the node of each attempt that was returned because of the campaign's image since the campaign was
    released."""
    missed = select(ATTEMPT.c.node).join(JOB, JOB.c.id == ATTEMPT.c.job)
    missed = missed.where(JOB.c.campaign == campaign, ATTEMPT.c.attempt > JOB.c.sound_attempt, ATTEMPT.c.why == why)
    return db.execute(missed.order_by(ATTEMPT.c.job, ATTEMPT.c.attempt)).scalars().all()


def newest_computed_s(db: Connection, job: int, count: int) -> float:
    """Return the longest computing time among the job's `count` newest attempts.

    It is infinite if the job has had fewer attempts.
    """
    mine = select(ATTEMPT.c.compute_s).join(JOB, OF_THIS_RUN).where(ATTEMPT.c.job == job)
    computed_s = db.execute(mine.order_by(ATTEMPT.c.attempt.desc()).limit(count)).scalars().all()
    return max(computed_s) if len(computed_s) == count else math.inf


def starts_in_vain(db: Connection, job: int) -> int:
    """Return how many attempts started from the beginning and saved a checkpoint that could not be restored."""
    begun = (
        select(func.count(func.distinct(CHECKPOINT.c.attempt)))
        .join(ATTEMPT, and_(ATTEMPT.c.job == CHECKPOINT.c.job, ATTEMPT.c.attempt == CHECKPOINT.c.attempt))
        .where(CHECKPOINT.c.job == job, CHECKPOINT.c.standing == Standing.BROKEN, ATTEMPT.c.from_attempt.is_(None))
    )
    return int(db.execute(begun).scalar_one())


def failing_nodes(db: Connection, job: int, checkpoint: tuple[int, int], whys: Sequence[ReturnReason]) -> Sequence[str]:
    """Return the node of each attempt that could not restore this checkpoint for one of these reasons."""
    nodes = select(ATTEMPT.c.node).where(
        ATTEMPT.c.job == job,
        ATTEMPT.c.from_attempt == checkpoint[0],
        ATTEMPT.c.from_number == checkpoint[1],
        _returned(whys),
    )
    return db.execute(nodes.order_by(ATTEMPT.c.attempt)).scalars().all()


def publish(db: Connection, job: int, checkpoint: Checkpoint, *, kind: int | None, now_s: float) -> None:
    """Record a new checkpoint that was saved on a node of this kind.

    Only the checkpoints that `checkpoints_to_keep` selects stay recorded.

    The checkpoint numbers of an attempt must increase. Its last checkpoint can be reported again.
    """
    newest = db.execute(_NEWEST, {"job_": job, "attempt_": checkpoint.attempt}).one_or_none()
    if newest is not None and checkpoint.number <= newest.number:
        if (checkpoint.number, checkpoint.digest) == (newest.number, newest.digest):
            return
        name = f"{checkpoint.attempt}/{checkpoint.number}"
        raise Invalid(f"job {job}: checkpoint {name} is not newer than the attempt's last, number {newest.number}")
    db.execute(
        insert(CHECKPOINT),
        {
            **checkpoint.model_dump(),
            "job": job,
            "published_s": now_s,
            "standing": Standing.NAMED,
            "kind": kind,
        },
    )
    rows = db.execute(_NAMED, {"job_": job}).all()
    keep = checkpoints_to_keep([row.chain for row in rows])
    for at, row in enumerate(rows):
        if at not in keep:
            set_standing(db, job, row.attempt, row.number, Standing.DROPPED)


def named_checkpoints(db: Connection, job: int) -> Sequence[tuple[int, int]]:
    """Return the recorded checkpoints as (attempt, number), the newest first."""
    return [(row.attempt, row.number) for row in db.execute(_NAMED, {"job_": job})]


def log_lines(db: Connection, job: int, attempt: int, number: int) -> int:
    """Return how many lines the job had written when this checkpoint was saved."""
    one = (CHECKPOINT.c.job == job, CHECKPOINT.c.attempt == attempt, CHECKPOINT.c.number == number)
    return int(db.execute(select(CHECKPOINT.c.log_lines).where(*one)).scalar_one())


def set_standing(db: Connection, job: int, attempt: int, number: int, standing: Standing) -> None:
    """Set the standing of a checkpoint."""
    db.execute(_STAND, {"job_": job, "attempt_": attempt, "number_": number, "standing_": standing})


def drop_all(db: Connection, job: int) -> None:
    """Drop all checkpoints of a job that starts again from the beginning, because it needs none of them."""
    for attempt, number in named_checkpoints(db, job):
        set_standing(db, job, attempt, number, Standing.DROPPED)


def forget_paths(db: Connection, jobs: Collection[int]) -> None:
    """Drop all checkpoints of Complete jobs, including broken ones, and end the jobs' pauses and migrations."""
    kept = update(CHECKPOINT).where(CHECKPOINT.c.job.in_(jobs), CHECKPOINT.c.standing != Standing.DROPPED)
    db.execute(kept.values(standing=Standing.DROPPED))
    for table in (PAUSE, MIGRATION):
        db.execute(delete(table).where(table.c.job.in_(jobs)))


def is_published(db: Connection, job: int, checkpoint: Checkpoint) -> bool:
    """Return True if exactly this checkpoint was already reported."""
    found = select(CHECKPOINT.c.digest).where(
        CHECKPOINT.c.job == job,
        CHECKPOINT.c.attempt == checkpoint.attempt,
        CHECKPOINT.c.number == checkpoint.number,
    )
    return db.execute(found).scalar_one_or_none() == checkpoint.digest
