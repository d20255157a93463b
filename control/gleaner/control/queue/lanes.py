"""Which lane a job waits in: that of its group and size, and of where it can start or go on.

Where users are limited, it is its submitter's as well: else a claim would step over all that one waits for in vain.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Boolean, Connection, and_, bindparam, case, func, literal_column, select, update

from gleaner.agent.protocol import Why
from gleaner.control.queue import attempts, places
from gleaner.control.queue.arrows import LANE_OF_NEW, insert_unless_there
from gleaner.control.queue.migration_tables import MIGRATION
from gleaner.control.queue.site_tables import ANY_KIND, SAVING
from gleaner.control.queue.tables import AGENT, ATTEMPT, GENERATION, JOB, LANE

_MINE, _WANTED = LANE.alias("mine"), LANE.alias("wanted")
_ALIKE = and_(
    _WANTED.c.group == _MINE.c.group,
    _WANTED.c.submitter == _MINE.c.submitter,
    _WANTED.c.cpus == _MINE.c.cpus,
    _WANTED.c.memory_mib == _MINE.c.memory_mib,
)
_LANE = select(LANE.c.id).where(
    LANE.c.group == bindparam("group_"),
    LANE.c.cpus == bindparam("cpus_"),
    LANE.c.memory_mib == bindparam("memory_mib_"),
    LANE.c.kind == bindparam("kind_"),
    LANE.c.not_on == bindparam("not_on_"),
    LANE.c.submitter == bindparam("submitter_"),
)
_OF_JOB = (
    select(LANE.c.group, LANE.c.cpus, LANE.c.memory_mib, LANE.c.kind, LANE.c.not_on, LANE.c.submitter)
    .join(JOB, JOB.c.lane == LANE.c.id)
    .where(JOB.c.id == bindparam("job_"))
)
CLOSED = select(LANE.c.id).where(LANE.c.not_on == places.NOWHERE)
"""The lanes whose jobs are offered to nobody."""
_KIND = case((bindparam("has_memory_", type_=Boolean), func.coalesce(AGENT.c.kind, SAVING)), else_=ANY_KIND)
_NOT_ON = func.coalesce(MIGRATION.c.not_on, literal_column("''"))
_AFTER_SAVE = (
    select(
        _MINE.c.group,
        _MINE.c.cpus,
        _MINE.c.memory_mib,
        _MINE.c.submitter,
        AGENT.c.kind,
        _KIND.label("needed"),
        _NOT_ON.label("not_on"),
        _WANTED.c.id,
    )
    .join_from(JOB, _MINE, _MINE.c.id == JOB.c.lane)
    .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == bindparam("attempt_")))
    .join(AGENT, AGENT.c.name == ATTEMPT.c.agent)
    .outerjoin(MIGRATION, and_(MIGRATION.c.job == JOB.c.id, MIGRATION.c.attempt == ATTEMPT.c.attempt))
    .outerjoin(_WANTED, and_(_ALIKE, _WANTED.c.kind == _KIND, _WANTED.c.not_on == _NOT_ON))
    .where(JOB.c.id == bindparam("job_"))
)


def of_new(db: Connection, group: str, cpus: int, memory_mib: int, *, saves_itself: bool, submitter: str = "") -> int:
    """The lane of this group's new jobs of this size; of this user's, if one is named."""
    kind = ANY_KIND if saves_itself else SAVING
    return of_size(db, group, cpus, memory_mib, kind=kind, submitter=submitter)


def of_size(
    db: Connection, group: str, cpus: int, memory_mib: int, *, kind: int, not_on: str = "", submitter: str = ""
) -> int:
    """The lane of this group's jobs of this size saved on nodes of that kind; this user's, if one is named."""
    wishes = {"group_": group, "cpus_": cpus, "memory_mib_": memory_mib, "kind_": kind, "not_on_": not_on}
    wishes["submitter_"] = submitter
    found = db.execute(_LANE, wishes).scalar_one_or_none()
    if found is None:
        # Another transaction may be adding the same lane: then this waits for it and adds nothing.
        row = {name.removesuffix("_"): value for name, value in wishes.items()}
        db.execute(insert_unless_there(db, LANE), row)
        found = db.execute(_LANE, wishes).scalar_one()
    return int(found)


def after_save(db: Connection, job: int, attempt: int, *, has_memory: bool) -> tuple[int, int | None]:
    """The lane for a job that this attempt has saved, and the kind of node that it ran on, if that is known."""
    asked = {"job_": job, "attempt_": attempt, "has_memory_": has_memory}
    row = db.execute(_AFTER_SAVE, asked).one_or_none()
    if row is None:
        return 0, None  # there is no such attempt: the move will say so
    if row.id is not None:
        return row.id, row.kind
    return of_size(
        db, row.group, row.cpus, row.memory_mib, kind=row.needed, not_on=row.not_on, submitter=row.submitter
    ), row.kind


def of_generation(db: Connection, job: int, attempt: int, number: int) -> int:
    """The lane for a job that goes on from this generation of its own."""
    made: Any = db.execute(
        select(GENERATION.c.kind, GENERATION.c.has_memory).where(
            GENERATION.c.job == job, GENERATION.c.attempt == attempt, GENERATION.c.number == number
        )
    ).one()
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    kind = (made.kind or SAVING) if made.has_memory else ANY_KIND
    return of_size(db, mine.group, mine.cpus, mine.memory_mib, kind=kind, submitter=mine.submitter)


def refusing(db: Connection, job: int, generation: tuple[int | None, int | None]) -> Sequence[str]:
    """The nodes that called this generation of the job incompatible; none refuses a beginning."""
    attempt, number = generation
    if attempt is None or number is None:
        return ()
    return attempts.unrestored(db, job, (attempt, number), (Why.INCOMPATIBLE,))


def close(db: Connection, job: int) -> None:
    """Offer the job to no node, until it is opened."""
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    lane = of_size(
        db, mine.group, mine.cpus, mine.memory_mib, kind=mine.kind, not_on=places.NOWHERE, submitter=mine.submitter
    )
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))


def open_to(db: Connection, job: int, *, not_on: Iterable[str] = ()) -> None:
    """Offer a waiting job to all nodes but these, and those that called its generation incompatible."""
    row = db.execute(select(JOB.c.from_attempt, JOB.c.from_number).where(JOB.c.id == job)).one()
    refused = refusing(db, job, (row.from_attempt, row.from_number))
    if row.from_attempt is None:
        db.execute(update(JOB).where(JOB.c.id == job).values(lane=LANE_OF_NEW))
    else:
        lane = of_generation(db, job, row.from_attempt, row.from_number)
        db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))
    for node in {*not_on, *refused}:
        keep_off(db, job, node)


def keep_off(db: Connection, job: int, node: str) -> tuple[str, ...]:
    """Offer the job to that node no more until it is saved again; all nodes that it is kept off so."""
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    nodes = places.with_one_more(mine.not_on, node)
    lane = of_size(
        db, mine.group, mine.cpus, mine.memory_mib, kind=mine.kind, not_on=" ".join(nodes), submitter=mine.submitter
    )
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))
    return nodes
