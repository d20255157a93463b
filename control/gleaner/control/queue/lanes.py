"""Lanes. Jobs with the same submitter, size, least time, needs and possible nodes wait in the same lane.

Saved jobs and new jobs wait in different lanes. Each submitter has separate lanes, because the jobs of one submitter
are ordered differently from those of several, and because a claim then does not have to skip each job of a user who has
reached a limit.

A job that pauses is offered to no node for a while, and afterwards not to the nodes where it has failed. It waits in a
closed lane, so that a claim skips all pausing jobs in one step. The first claim after the pause moves the job to an
open lane.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    String,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    type_coerce,
    update,
)

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.retries import LONGEST_ELSEWHERE_S
from gleaner.control.queue import attempts
from gleaner.control.queue.tables import (
    AGENT,
    ANY_KIND,
    ATTEMPT,
    CHECKPOINT,
    FIT,
    JOB,
    LANE,
    LANE_NEED,
    MIGRATION,
    NODE,
    NODE_HAS,
    PAUSE,
    SAVING,
    SPEC,
    LaneKey,
    LaneWish,
    NeedKind,
)
from gleaner.control.queue.transitions import LANE_OF_NEW, insert_unless_there
from gleaner.control.states import State

WOKEN_AT_ONCE = 100
"""The largest number of jobs that one claim moves to open lanes, so that the claim stays short."""


def barred_nodes(lane: Any, nodes: Iterable[str]) -> frozenset[str]:
    """Return those of these nodes to which the lane's jobs are not offered, whatever folders and schemes the nodes
    have."""
    here = frozenset(nodes)
    if lane.is_closed:
        return here
    return here - {lane.only_on} if lane.only_on else here.intersection(lane.not_on)


def needs(lane: LaneWish | Any) -> frozenset[tuple[NeedKind, str]]:
    """Return the needs of the lane's jobs: the folders that they mount, and the schemes by which their inputs are
    fetched."""
    return frozenset((NeedKind.MOUNT, name) for name in lane.mounts) | frozenset(
        (NeedKind.FETCH, name) for name in lane.fetches
    )


def need_in_words(need: tuple[NeedKind, str]) -> str:
    """Return, in words, the property that a node lacks.

    >>> need_in_words((NeedKind.FETCH, "s3")), need_in_words((NeedKind.MOUNT, "/data"))
    ('support for s3:// inputs', 'the folder /data')
    """
    what, name = need
    return f"the folder {name}" if what is NeedKind.MOUNT else f"support for {name}:// inputs"


_WISH, _KEY = tuple(LaneWish.model_fields), tuple(LaneKey.model_fields)
_MINE, _WANTED = LANE.alias("mine"), LANE.alias("wanted")
_LANE = select(LANE.c.id).where(*(LANE.c[name] == bindparam(f"{name}_") for name in _KEY))
_OF_JOB = (
    select(*(LANE.c[name] for name in _KEY)).join(JOB, JOB.c.lane == LANE.c.id).where(JOB.c.id == bindparam("job_"))
)
_KIND = case((bindparam("has_memory_", type_=Boolean), func.coalesce(AGENT.c.kind, SAVING)), else_=ANY_KIND)
_NONE = literal_column("''", String)
_AWAY_FROM = func.coalesce(case((MIGRATION.c.to_node.is_(None), MIGRATION.c.from_node)), _NONE)
_NOT_ON, _ONLY_ON = type_coerce(_AWAY_FROM, LANE.c.not_on.type), func.coalesce(MIGRATION.c.to_node, _NONE)
_AFTER_SAVE = (
    select(
        *(_MINE.c[name] for name in _WISH),
        AGENT.c.kind.label("made_on"),
        _KIND.label("kind"),
        _NOT_ON.label("not_on"),
        _ONLY_ON.label("only_on"),
        literal(value=False).label("is_closed"),
        literal(value=True).label("is_saved"),
        literal(0).label("campaign"),
        _WANTED.c.id,
    )
    .join_from(JOB, _MINE, _MINE.c.id == JOB.c.lane)
    .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == bindparam("attempt_")))
    .join(AGENT, AGENT.c.name == ATTEMPT.c.agent)
    .outerjoin(MIGRATION, and_(MIGRATION.c.job == JOB.c.id, MIGRATION.c.attempt == ATTEMPT.c.attempt))
    .outerjoin(
        _WANTED,
        and_(
            *(_WANTED.c[name] == _MINE.c[name] for name in _WISH),
            _WANTED.c.kind == _KIND,
            _WANTED.c.not_on == _NOT_ON,
            _WANTED.c.only_on == _ONLY_ON,
            ~_WANTED.c.is_closed,
            _WANTED.c.is_saved,
        ),
    )
    .where(JOB.c.id == bindparam("job_"))
)


def ensure_for_new(db: Connection, wish: LaneWish, *, saves_itself: bool) -> int:
    """Return the lane for new jobs with these wishes. It is created if it does not exist."""
    return _ensure(db, LaneKey(**wish.model_dump(), kind=ANY_KIND if saves_itself else SAVING))


def ensure_of_campaign(db: Connection, wish: LaneWish, campaign: int, *, is_new: bool = False) -> int:
    """Return the lane for the jobs of a campaign whose turn has not come. It is created if it does not exist.

    Claims never examine the lane of a new campaign, and skip the lanes for wishes that a rerun has added.
    """
    key = LaneKey(**wish.model_dump(), is_closed=True, campaign=campaign)
    return _ensure(db, key, id_=-campaign if is_new else None)


def _key(row: Any) -> LaneKey:
    return LaneKey(**{name: getattr(row, name) for name in _KEY})


def _of_job(db: Connection, job: int) -> LaneKey:
    return _key(db.execute(_OF_JOB, {"job_": job}).one())


def _ensure(db: Connection, key: LaneKey, *, id_: int | None = None) -> int:
    """Return the lane with this key. It is created if it does not exist."""
    values = key.model_dump()
    wanted = {f"{name}_": value for name, value in values.items()}
    found = db.execute(_LANE, wanted).scalar_one_or_none()
    if found is None:
        # Another transaction might be adding the same lane. Then this statement waits for it and adds nothing.
        db.execute(insert_unless_there(db, LANE), values if id_ is None else {"id": id_, **values})
        found = db.execute(_LANE, wanted).scalar_one()
        for need, name in needs(key):
            db.execute(insert_unless_there(db, LANE_NEED), {"lane": found, "need": need, "name": name})
    return int(found)


def _move_to(db: Connection, job: int, key: LaneKey) -> None:
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=_ensure(db, key)))


def ensure_after_save(db: Connection, job: int, attempt: int, *, has_memory: bool) -> tuple[int, int | None]:
    """Ensure that a job that was saved by this attempt has a lane.

    Return the lane, and the kind of the attempt's node if it is known.
    """
    asked = {"job_": job, "attempt_": attempt, "has_memory_": has_memory}
    row = db.execute(_AFTER_SAVE, asked).one_or_none()
    if row is None:
        return 0, None  # this attempt does not exist, which the transition will report
    return (_ensure(db, _key(row)) if row.id is None else row.id), row.made_on


def ensure_for_checkpoint(db: Connection, job: int, attempt: int, number: int) -> int:
    """Return the lane for a job that continues from this checkpoint. It is created if it does not exist."""
    made: Any = db.execute(
        select(CHECKPOINT.c.kind, CHECKPOINT.c.has_memory).where(
            CHECKPOINT.c.job == job, CHECKPOINT.c.attempt == attempt, CHECKPOINT.c.number == number
        )
    ).one()
    kind = (made.kind or SAVING) if made.has_memory else ANY_KIND
    return _ensure(db, _of_job(db, job).at(kind=kind, is_saved=True))


def give_memory(db: Connection, job: int, memory_mib: int) -> None:
    """Set the memory of a waiting job for its next start, whether from a checkpoint or from the beginning."""
    saves_itself = select(SPEC.c.saves_itself).join(JOB, JOB.c.spec == SPEC.c.id).where(JOB.c.id == job)
    kind_of_new = ANY_KIND if db.execute(saves_itself).scalar_one() else SAVING
    larger = _of_job(db, job).model_copy(update={"memory_mib": memory_mib})
    _ensure(
        db, larger.at(kind=kind_of_new, is_saved=False)
    )  # the job waits there if it starts from the beginning again
    _move_to(db, job, larger)


def refusing(db: Connection, job: int, checkpoint: tuple[int | None, int | None]) -> Sequence[str]:
    """Return the nodes that reported this checkpoint of the job as incompatible.

    A start from the beginning is possible on all nodes.
    """
    attempt, number = checkpoint
    if attempt is None or number is None:
        return ()
    return attempts.failing_nodes(db, job, (attempt, number), (ReturnReason.INCOMPATIBLE,))


def open_to(db: Connection, job: int, *, not_on: Iterable[str] = ()) -> None:
    """Offer a waiting job to all nodes except these and those that reported its checkpoint as incompatible."""
    row = db.execute(select(JOB.c.from_attempt, JOB.c.from_number).where(JOB.c.id == job)).one()
    refused = refusing(db, job, (row.from_attempt, row.from_number))
    if row.from_attempt is None:
        db.execute(update(JOB).where(JOB.c.id == job).values(lane=LANE_OF_NEW))
    else:
        lane = ensure_for_checkpoint(db, job, row.from_attempt, row.from_number)
        db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))
    for node in {*not_on, *refused}:
        keep_off(db, job, node)


def keep_off(db: Connection, job: int, node: str) -> tuple[str, ...]:
    """Stop offering the job to that node until the job is saved again. Return all nodes that are excluded in this way.

    If the job was restricted to one node, it can now run on any other.
    """
    mine = _of_job(db, job)
    nodes = tuple(sorted({*mine.not_on, node}))
    _move_to(db, job, mine.at(not_on=nodes))
    return nodes


def pause(db: Connection, job: int, attempt: int, *, until_s: float, not_on: Sequence[str]) -> None:
    """Offer the job to no node until that time, and then, for a while, to all nodes except these."""
    _move_to(db, job, _of_job(db, job).at(is_closed=True))
    _note(db, job, attempt, wakes_s=until_s, not_on=not_on)


def keep_off_for_now(db: Connection, job: int, attempt: int, nodes: Sequence[str], *, now_s: float) -> None:
    """Stop offering the job to these nodes for a while.

    The exclusion is temporary, because there might be no other nodes.
    """
    for node in nodes:
        keep_off(db, job, node)
    _note(db, job, attempt, wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=())


def unless_nowhere_else(db: Connection, job: int, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return these nodes if an agent has ever run on another node that fits the job, otherwise no nodes.

    If no other node exists, the job must be able to continue on these.
    """
    mine: Any = db.execute(
        select(JOB.c.from_attempt, JOB.c.from_number, LANE.c.kind, LANE.c.id)
        .join(LANE, LANE.c.id == JOB.c.lane)
        .where(JOB.c.id == job)
    ).one()
    wanted = tuple(sorted(set(nodes)))
    refused = refusing(db, job, (mine.from_attempt, mine.from_number))
    fits = or_(literal(mine.kind == ANY_KIND), exists().where(FIT.c.saved_on == mine.kind, FIT.c.node == NODE.c.kind))
    other = select(NODE.c.name).where(NODE.c.kind.is_not(None), NODE.c.name.not_in({*wanted, *refused}), fits)
    alike = and_(NODE_HAS.c.need == LANE_NEED.c.need, NODE_HAS.c.name == LANE_NEED.c.name)
    has = exists().where(NODE_HAS.c.node == NODE.c.name, alike)
    other = other.where(~exists().where(LANE_NEED.c.lane == mine.id, ~has))
    return wanted if db.execute(other.limit(1)).one_or_none() else ()


def wake(db: Connection, now_s: float) -> None:
    """Move the jobs whose pause is over to open lanes. Jobs that another claim is moving are skipped."""
    due = (
        select(PAUSE, JOB.c.state, JOB.c.attempt.label("latest"), MIGRATION.c.job.is_not(None).label("is_moved"))
        .join_from(PAUSE, JOB, JOB.c.id == PAUSE.c.job)
        .outerjoin(MIGRATION, and_(MIGRATION.c.job == JOB.c.id, PAUSE.c.attempt < JOB.c.attempt))
        .where(PAUSE.c.wakes_s <= now_s)
        .order_by(PAUSE.c.wakes_s, PAUSE.c.job)
        .limit(WOKEN_AT_ONCE)
        .with_for_update(of=[PAUSE, JOB], skip_locked=True)
    )
    for row in db.execute(due).all():
        _wake(db, row, now_s)


def is_pause_over(db: Connection, now_s: float) -> bool:
    """Return True if the pause of any job is over."""
    return db.execute(select(PAUSE.c.job).where(PAUSE.c.wakes_s <= now_s).limit(1)).one_or_none() is not None


def paused_until(db: Connection, job: int) -> float | None:
    """Return the time until which the job pauses, or None if it does not pause."""
    found = select(PAUSE.c.wakes_s).join(JOB, JOB.c.id == PAUSE.c.job).join(LANE, LANE.c.id == JOB.c.lane)
    found = found.where(PAUSE.c.job == job, JOB.c.attempt == PAUSE.c.attempt, LANE.c.is_closed)
    return db.execute(found).scalar_one_or_none()


def _wake(db: Connection, row: Any, now_s: float) -> None:
    mine = PAUSE.c.job == row.job
    if row.state is State.COMPLETE or row.is_moved:
        db.execute(delete(PAUSE).where(mine))
        return
    # Include a job that was claimed since. If it is lost before its next save, it would otherwise wait for other nodes
    # forever.
    is_later = row.latest != row.attempt
    open_to(db, row.job, not_on=() if is_later else row.not_on)
    if row.not_on and not is_later:
        db.execute(update(PAUSE).where(mine).values(wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=()))
    else:
        db.execute(delete(PAUSE).where(mine))


def _note(db: Connection, job: int, attempt: int, *, wakes_s: float, not_on: Sequence[str]) -> None:
    db.execute(delete(PAUSE).where(PAUSE.c.job == job))
    db.execute(insert(PAUSE), {"job": job, "attempt": attempt, "wakes_s": wakes_s, "not_on": not_on})
