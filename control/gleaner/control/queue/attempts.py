"""The rows of attempts and of the generations that they published. Called by the moves, which check first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, insert, null, or_, select, update

from gleaner.agent.protocol import Generation, Slice, Why
from gleaner.control.queue.arrows import run
from gleaner.control.queue.errors import Invalid
from gleaner.control.queue.tables import ATTEMPT, GENERATION, JOB, Ending, Standing

NEWEST_NAMED = 2
"""So many of a job's newest whole generations stay named, and one more if it shares no file with the newest."""
FUTILE = (Why.NODE_FAULT, Why.SAVE_FAILED)
"""Why attempts are given back that computed, or could have, and came to nothing, perhaps by the job's own doing.

Not so a fault of the storage, which all jobs share: it would put whatever is at the front of the queue on hold."""

_ONE = and_(ATTEMPT.c.job == bindparam("job_"), ATTEMPT.c.attempt == bindparam("attempt_"))
_FIND = select(ATTEMPT).where(_ONE)
_NAMED = (
    select(GENERATION.c.attempt, GENERATION.c.number, GENERATION.c.chain)
    .where(GENERATION.c.job == bindparam("job_"), GENERATION.c.standing == Standing.NAMED)
    .order_by(GENERATION.c.attempt.desc(), GENERATION.c.number.desc())
)
_NEWEST = (
    select(GENERATION.c.number, GENERATION.c.digest)
    .where(GENERATION.c.job == bindparam("job_"), GENERATION.c.attempt == bindparam("attempt_"))
    .order_by(GENERATION.c.number.desc())
    .limit(1)
)
_STAND = (
    update(GENERATION)
    .where(
        GENERATION.c.job == bindparam("job_"),
        GENERATION.c.attempt == bindparam("attempt_"),
        GENERATION.c.number == bindparam("number_"),
    )
    .values(standing=bindparam("standing_", type_=GENERATION.c.standing.type))
)


def ended(
    ending: Ending, *, ended_s: float, spent: Slice | None = None, exit_code: int | None = None, detail: str = ""
) -> dict[str, object]:
    """How an attempt ended, and how its time was spent if it says so; for `arrows.move` or `end`."""
    values: dict[str, object] = {"ended_s": ended_s, "ending": ending, "exit_code": exit_code, "detail": detail}
    return values if spent is None else values | spent_so_far(spent)


def spent_so_far(spent: Slice) -> dict[str, object]:
    """How an attempt has spent its time; for `arrows.move` or `end`."""
    return {
        "started_s": spent.started_s,
        "restore_s": spent.restore_s,
        "compute_s": spent.compute_s,
        "save_s": spent.save_s,
    }


def end(db: Connection, job: int, attempt: int, values: Mapping[str, object]) -> None:
    """Write down how an attempt ended whose job makes no move."""
    run(db, update(ATTEMPT).where(_ONE).values(values), {"job_": job, "attempt_": attempt})


def end_live_ones(db: Connection, campaign: int, values: Mapping[str, object]) -> None:
    """Write down how all attempts ended that a campaign has running."""
    mine = select(JOB.c.id).where(JOB.c.campaign == campaign, JOB.c.agent.is_not(None))
    live = update(ATTEMPT).where(ATTEMPT.c.job.in_(mine), ATTEMPT.c.ending.is_(None))
    db.execute(live.values(values))


def reopen(db: Connection, job: int, attempt: int) -> None:
    """The attempt lives after all."""
    again = update(ATTEMPT).where(_ONE).values(ended_s=null(), ending=null(), detail="")
    run(db, again, {"job_": job, "attempt_": attempt})


def find(db: Connection, job: int, attempt: int) -> Any:
    """The attempt's row, or None."""
    return db.execute(_FIND, {"job_": job, "attempt_": attempt}).one_or_none()


def lost_nodes(db: Connection, job: int, *, after: int) -> Sequence[str]:
    """The different nodes on which attempts later than `after` were lost together with their agents."""
    lost = (
        select(ATTEMPT.c.node, func.min(ATTEMPT.c.attempt))
        .where(ATTEMPT.c.job == job, ATTEMPT.c.attempt > after, ATTEMPT.c.ending == Ending.LOST)
        .group_by(ATTEMPT.c.node)
        .order_by(func.min(ATTEMPT.c.attempt))
    )
    return [row.node for row in db.execute(lost)]


def futile(db: Connection, job: int, *, after: int) -> Sequence[tuple[str, Why]]:
    """The node of each attempt later than `after` that came to nothing, and why."""
    given_back = (
        select(ATTEMPT.c.node, ATTEMPT.c.detail)
        .where(ATTEMPT.c.job == job, ATTEMPT.c.attempt > after, ATTEMPT.c.ending == Ending.GIVEN_BACK)
        .order_by(ATTEMPT.c.attempt)
    )
    rows = db.execute(given_back).all()
    return [(row.node, why) for row in rows for why in FUTILE if row.detail.startswith(why)]


def newest_computed_s(db: Connection, job: int, count: int) -> float:
    """The most that any of the job's newest attempts has computed, of so many; infinite if there are fewer."""
    newest = select(ATTEMPT.c.compute_s).where(ATTEMPT.c.job == job).order_by(ATTEMPT.c.attempt.desc()).limit(count)
    computed_s = db.execute(newest).scalars().all()
    return max(computed_s) if len(computed_s) == count else math.inf


def starts_in_vain(db: Connection, job: int) -> int:
    """How many attempts have begun from nothing, and saved what could not be restored."""
    begun = (
        select(func.count(func.distinct(GENERATION.c.attempt)))
        .join(ATTEMPT, and_(ATTEMPT.c.job == GENERATION.c.job, ATTEMPT.c.attempt == GENERATION.c.attempt))
        .where(GENERATION.c.job == job, GENERATION.c.standing == Standing.BROKEN, ATTEMPT.c.from_attempt.is_(None))
    )
    return int(db.execute(begun).scalar_one())


UNRESTORED = (Why.CANNOT_RESTORE, Why.GENERATION_BROKEN)
"""What speaks against a generation, where several nodes say it."""


def unrestored(
    db: Connection, job: int, generation: tuple[int, int], whys: Sequence[Why] = UNRESTORED
) -> Sequence[str]:
    """The nodes on which attempts could not restore this generation for such a reason, one for each attempt."""
    tried = select(ATTEMPT.c.node).where(
        ATTEMPT.c.job == job,
        ATTEMPT.c.from_attempt == generation[0],
        ATTEMPT.c.from_number == generation[1],
        ATTEMPT.c.ending == Ending.GIVEN_BACK,
        or_(*(ATTEMPT.c.detail.startswith(str(why)) for why in whys)),
    )
    return db.execute(tried).scalars().all()


def publish(db: Connection, job: int, generation: Generation, *, kind: int | None, now_s: float) -> None:
    """Name a new generation, saved on a node of that kind; of the whole ones only a few stay named (`surplus`).

    An attempt's numbers must go up; its last generation may be said once more.
    """
    newest = db.execute(_NEWEST, {"job_": job, "attempt_": generation.attempt}).one_or_none()
    if newest is not None and generation.number <= newest.number:
        if (generation.number, generation.digest) == (newest.number, newest.digest):
            return
        name = f"{generation.attempt}/{generation.number}"
        raise Invalid(f"job {job}: generation {name} is not newer than the attempt's last, number {newest.number}")
    run(
        db,
        insert(GENERATION),
        {
            "job": job,
            "attempt": generation.attempt,
            "number": generation.number,
            "digest": generation.digest,
            "size_bytes": generation.size_bytes,
            "log_lines": generation.log_lines,
            "open_lines": generation.open_lines or None,
            "published_s": now_s,
            "standing": Standing.NAMED,
            "has_memory": generation.has_memory,
            "kind": kind,
            "chain": generation.chain,
        },
    )
    rows = db.execute(_NAMED, {"job_": job}).all()
    for row in surplus([Link(row.attempt, row.number, row.chain) for row in rows]):
        stand(db, job, row.attempt, row.number, Standing.DROPPED)


class Link(NamedTuple):
    """A named generation, and with which others it may share files: those of the same chain. None: nobody knows."""

    attempt: int
    number: int
    chain: str | None


def surplus(named: Sequence[Link]) -> Sequence[Link]:
    """Those that need not stay named. The newest comes first.

    Besides the newest two the newest that shares no file with the newest of all stays: where a file has rotted that
    the newest two share, the job goes on from that one.

    >>> [f"{gone.number}" for gone in surplus([Link(1, number, f"1/{number // 4 * 4}") for number in (9, 8, 7, 6, 3)])]
    ['6', '3']
    >>> surplus([Link(1, 2, None), Link(1, 1, "1/1")])
    []
    """
    newest, others = named[:NEWEST_NAMED], named[NEWEST_NAMED:]
    is_there = any(one.chain != newest[0].chain for one in newest)
    apart = None if is_there else next((one for one in others if one.chain != newest[0].chain), None)
    return [one for one in others if one is not apart]


def named(db: Connection, job: int) -> Sequence[tuple[int, int]]:
    """The generations that are named, as (attempt, number), the newest first."""
    return [(row.attempt, row.number) for row in db.execute(_NAMED, {"job_": job})]


def stand(db: Connection, job: int, attempt: int, number: int, standing: Standing) -> None:
    """Say what a generation counts for now."""
    run(db, _STAND, {"job_": job, "attempt_": attempt, "number_": number, "standing_": standing})


def drop_all(db: Connection, job: int) -> None:
    """The job starts over: none of its generations is needed any more."""
    for attempt, number in named(db, job):
        stand(db, job, attempt, number, Standing.DROPPED)


def is_published(db: Connection, job: int, generation: Generation) -> bool:
    """Whether exactly this generation was reported before."""
    found = select(GENERATION.c.digest).where(
        GENERATION.c.job == job,
        GENERATION.c.attempt == generation.attempt,
        GENERATION.c.number == generation.number,
    )
    return db.execute(found).scalar_one_or_none() == generation.digest
