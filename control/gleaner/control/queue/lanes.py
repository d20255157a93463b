"""Lanes: a job waits in the lane of its group, size, least time and mounts, and of the nodes where it can go on.

Where users are limited, the lane is the submitter's as well: else a claim would step over all jobs that one user waits
for in vain.

A lane names the nodes where its jobs may not go on, with blanks between. After a `*` it is the other way round: its
jobs may go on nowhere but on the nodes named there.

A job that pauses must go nowhere for a while, and then not to the nodes where it has failed. It waits in a lane that is
open to nobody, so that a claim steps over all of them at once. The next claim after its time puts the job back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
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
    update,
)
from sqlalchemy.sql import ColumnElement

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.node_health import LONGEST_ELSEWHERE_S
from gleaner.control.policy.retries import LONGEST_PAUSE_S
from gleaner.control.queue import attempts
from gleaner.control.queue.tables import (
    AGENT,
    ANY_KIND,
    ATTEMPT,
    CHECKPOINT,
    FIT,
    JOB,
    LANE,
    LANE_MOUNT,
    MIGRATION,
    NODE,
    NODE_MOUNT,
    PAUSE,
    SAVING,
    SPEC,
)
from gleaner.control.queue.transitions import LANE_OF_NEW, insert_unless_there
from gleaner.control.states import State

WOKEN_AT_ONCE = 100
"""So many jobs at most are put back by one claim, so that no claim takes long."""
_ONLY = "*"
NOWHERE = _ONLY
"""The mark of a lane whose jobs may go nowhere for a while."""


def only_on(node: str) -> str:
    """Return what a lane says whose jobs may go on only on that node."""
    return f"{_ONLY} {node}"


def is_kept_off(not_on: str, node: str) -> bool:
    """Return True if the lane's jobs may not go on on that node.

    >>> is_kept_off("n1 n2", "n2"), is_kept_off(only_on("n1"), "n2"), is_kept_off("", "n2")
    (True, True, False)
    """
    words = not_on.split()
    return (node in words) != (words[:1] == [_ONLY])


def kept_off(not_on: str, nodes: Iterable[str]) -> frozenset[str]:
    """Return those of these nodes where the lane's jobs may not go on."""
    return frozenset(node for node in nodes if is_kept_off(not_on, node))


def _with_one_more(not_on: str, node: str) -> tuple[str, ...]:
    """Return the nodes that the lane's jobs are kept off then. Jobs that were to go to one node only may go anywhere
    else."""
    words = not_on.split()
    return tuple(sorted({*(words if words[:1] != [_ONLY] else ()), node}))


_FETCH = "fetch:"


def fetch_of(scheme: str) -> str:
    """Return what stands among the mounts of jobs with an input that an agent fetches from a URL of this scheme.

    >>> fetch_of("https"), mount_in_words(fetch_of("s3")), mount_in_words("/data")
    ('fetch:https', 'what fetches s3:// inputs', 'the folder /data')
    """
    return f"{_FETCH}{scheme}"


def mount_in_words(mount: str) -> str:
    """Return one of a lane's mounts in words."""
    scheme = mount.removeprefix(_FETCH)
    return f"the folder {mount}" if scheme == mount else f"what fetches {scheme}:// inputs"


_MINE, _WANTED = LANE.alias("mine"), LANE.alias("wanted")
_ALIKE = and_(
    _WANTED.c.group == _MINE.c.group,
    _WANTED.c.submitter == _MINE.c.submitter,
    _WANTED.c.cpus == _MINE.c.cpus,
    _WANTED.c.memory_mib == _MINE.c.memory_mib,
    _WANTED.c.needs_s == _MINE.c.needs_s,
    _WANTED.c.mounts == _MINE.c.mounts,
)
_LANE = select(LANE.c.id).where(
    LANE.c.group == bindparam("group_"),
    LANE.c.cpus == bindparam("cpus_"),
    LANE.c.memory_mib == bindparam("memory_mib_"),
    LANE.c.kind == bindparam("kind_"),
    LANE.c.not_on == bindparam("not_on_"),
    LANE.c.submitter == bindparam("submitter_"),
    LANE.c.needs_s == bindparam("needs_s_"),
    LANE.c.mounts == bindparam("mounts_"),
)
_OF_JOB = (
    select(
        LANE.c.group,
        LANE.c.cpus,
        LANE.c.memory_mib,
        LANE.c.kind,
        LANE.c.not_on,
        LANE.c.submitter,
        LANE.c.needs_s,
        LANE.c.mounts,
    )
    .join(JOB, JOB.c.lane == LANE.c.id)
    .where(JOB.c.id == bindparam("job_"))
)
_CLOSED = select(LANE.c.id).where(LANE.c.not_on == NOWHERE)
"""The lanes whose jobs are offered to no agent."""
_KIND = case((bindparam("has_memory_", type_=Boolean), func.coalesce(AGENT.c.kind, SAVING)), else_=ANY_KIND)
_NOT_ON = func.coalesce(MIGRATION.c.not_on, literal_column("''"))
_AFTER_SAVE = (
    select(
        _MINE.c.group,
        _MINE.c.cpus,
        _MINE.c.memory_mib,
        _MINE.c.submitter,
        _MINE.c.needs_s,
        _MINE.c.mounts,
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


def ensure_for_new(
    db: Connection,
    group: str,
    cpus: int,
    memory_mib: int,
    *,
    saves_itself: bool,
    submitter: str = "",
    needs_s: int = 0,
    mounts: Sequence[str] = (),
) -> int:
    """Ensure that this group's new jobs of this size have a lane. Return the lane.

    It is this user's lane, if one is named, and that of jobs for which an agent must have so much time left, and that
    mount these folders, or have inputs to fetch (`fetch_of`).
    """
    kind = ANY_KIND if saves_itself else SAVING
    folders = "\n".join(sorted(mounts))
    return _ensure(db, _Key(group, cpus, memory_mib, kind, submitter=submitter, needs_s=needs_s, mounts=folders))


@dataclass(frozen=True, slots=True)
class _Key:
    """The columns of a lane that no two lanes have in common."""

    group: str
    cpus: int
    memory_mib: int
    kind: int
    not_on: str = ""
    submitter: str = ""
    needs_s: int = 0
    mounts: str = ""


def _key(row: Any) -> _Key:
    return _Key(*(getattr(row, column.name) for column in fields(_Key)))


def _ensure(db: Connection, key: _Key) -> int:
    """Ensure that there is such a lane, and return it."""
    wanted = {f"{name}_": value for name, value in asdict(key).items()}
    found = db.execute(_LANE, wanted).scalar_one_or_none()
    if found is None:
        # Another transaction may be adding the same lane: then this waits for it and adds nothing.
        db.execute(insert_unless_there(db, LANE), asdict(key))
        found = db.execute(_LANE, wanted).scalar_one()
        for folder in key.mounts.split():
            db.execute(insert_unless_there(db, LANE_MOUNT), {"lane": found, "folder": folder})
    return int(found)


def _ensure_like(db: Connection, mine: Any, *, kind: int, not_on: str = "") -> int:
    """Ensure that jobs like those of this lane, but for their nodes, have a lane. Return the lane."""
    return _ensure(db, replace(_key(mine), kind=kind, not_on=not_on))


def ensure_after_save(db: Connection, job: int, attempt: int, *, has_memory: bool) -> tuple[int, int | None]:
    """Ensure that a job that this attempt has saved has a lane.

    Return the lane, and the kind of the attempt's node, if that is known.
    """
    asked = {"job_": job, "attempt_": attempt, "has_memory_": has_memory}
    row = db.execute(_AFTER_SAVE, asked).one_or_none()
    if row is None:
        return 0, None  # there is no such attempt: the transition will say so
    if row.id is not None:
        return row.id, row.kind
    return _ensure_like(db, row, kind=row.needed, not_on=row.not_on), row.kind


def ensure_for_checkpoint(db: Connection, job: int, attempt: int, number: int) -> int:
    """Ensure that a job that goes on from this checkpoint of its own has a lane. Return the lane."""
    made: Any = db.execute(
        select(CHECKPOINT.c.kind, CHECKPOINT.c.has_memory).where(
            CHECKPOINT.c.job == job, CHECKPOINT.c.attempt == attempt, CHECKPOINT.c.number == number
        )
    ).one()
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    kind = (made.kind or SAVING) if made.has_memory else ANY_KIND
    return _ensure_like(db, mine, kind=kind)


def give_memory(db: Connection, job: int, memory_mib: int) -> None:
    """Give a waiting job so much memory, wherever it goes on from."""
    mine: Any = db.execute(_OF_JOB, {"job_": job}).one()
    saves_itself = select(SPEC.c.saves_itself).join(JOB, JOB.c.spec == SPEC.c.id).where(JOB.c.id == job)
    kind_of_new = ANY_KIND if db.execute(saves_itself).scalar_one() else SAVING
    larger = replace(_key(mine), memory_mib=memory_mib)
    _ensure(db, replace(larger, kind=kind_of_new, not_on=""))  # there it waits if it starts over
    lane = _ensure(db, larger)
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))


def refusing(db: Connection, job: int, checkpoint: tuple[int | None, int | None]) -> Sequence[str]:
    """Return the nodes that called this checkpoint of the job incompatible. No node refuses a beginning."""
    attempt, number = checkpoint
    if attempt is None or number is None:
        return ()
    return attempts.unrestored(db, job, (attempt, number), (ReturnReason.INCOMPATIBLE,))


def _close(db: Connection, job: int) -> None:
    """Offer the job to no node, until it is opened."""
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    lane = _ensure_like(db, mine, kind=mine.kind, not_on=NOWHERE)
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))


def open_to(db: Connection, job: int, *, not_on: Iterable[str] = ()) -> None:
    """Offer a waiting job to all nodes but these, and those that called its checkpoint incompatible."""
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
    """Offer the job to that node no more until it is saved again. Return all nodes that it is kept off so."""
    mine = db.execute(_OF_JOB, {"job_": job}).one()
    nodes = _with_one_more(mine.not_on, node)
    lane = _ensure_like(db, mine, kind=mine.kind, not_on=" ".join(nodes))
    db.execute(update(JOB).where(JOB.c.id == job).values(lane=lane))
    return nodes


def pause(db: Connection, job: int, attempt: int, *, until_s: float, not_on: Sequence[str]) -> None:
    """Offer the job to nobody until then, and after that for a while not to these nodes."""
    _close(db, job)
    _note(db, job, attempt, wakes_s=until_s, not_on=not_on)


def keep_off_for_now(db: Connection, job: int, attempt: int, nodes: Sequence[str], *, now_s: float) -> None:
    """Offer the job to these nodes no more for a while: there may be no others."""
    for node in nodes:
        keep_off(db, job, node)
    _note(db, job, attempt, wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=())


def unless_nowhere_else(db: Connection, job: int, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return these nodes, if an agent was ever on another one that fits the job; else none, for the job must go on
    somewhere."""
    mine: Any = db.execute(
        select(JOB.c.from_attempt, JOB.c.from_number, LANE.c.kind, LANE.c.id)
        .join(LANE, LANE.c.id == JOB.c.lane)
        .where(JOB.c.id == job)
    ).one()
    wanted = tuple(sorted(set(nodes)))
    refused = refusing(db, job, (mine.from_attempt, mine.from_number))
    fits = or_(literal(mine.kind == ANY_KIND), exists().where(FIT.c.saved_on == mine.kind, FIT.c.node == NODE.c.kind))
    other = select(NODE.c.name).where(NODE.c.kind.is_not(None), NODE.c.name.not_in({*wanted, *refused}), fits)
    other = other.where(~_lacks_mount(literal(mine.id), NODE.c.name))
    return wanted if db.execute(other.limit(1)).one_or_none() else ()


def _lacks_mount(lane: ColumnElement[int], node: ColumnElement[str]) -> ColumnElement[bool]:
    has = exists().where(NODE_MOUNT.c.node == node, NODE_MOUNT.c.folder == LANE_MOUNT.c.folder)
    return exists().where(LANE_MOUNT.c.lane == lane, ~has)


def wake(db: Connection, now_s: float) -> None:
    """Put back the jobs whose time is over. Jobs that another claim puts back at this moment are passed over."""
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
    """Return True if a job's time is over, so that it is to be put back."""
    return db.execute(select(PAUSE.c.job).where(PAUSE.c.wakes_s <= now_s).limit(1)).one_or_none() is not None


def limit_pauses(db: Connection, now_s: float) -> None:
    """Let no job pause longer than any may, as it would where the clock has been set back."""
    most_s = max(LONGEST_PAUSE_S, LONGEST_ELSEWHERE_S)
    db.execute(update(PAUSE).where(PAUSE.c.wakes_s > now_s + most_s).values(wakes_s=now_s))


def paused_until(db: Connection, job: int) -> float | None:
    """Return the time until which the job pauses; None if it does not."""
    found = select(PAUSE.c.wakes_s).join(JOB, JOB.c.id == PAUSE.c.job).where(PAUSE.c.job == job)
    found = found.where(JOB.c.attempt == PAUSE.c.attempt, JOB.c.lane.in_(_CLOSED))
    return db.execute(found).scalar_one_or_none()


def _wake(db: Connection, row: Any, now_s: float) -> None:
    mine = PAUSE.c.job == row.job
    if row.state is State.COMPLETE or row.is_moved:
        db.execute(delete(PAUSE).where(mine))
        return
    # Also a job that was claimed since: lost before it is saved again, it would wait for other nodes for ever.
    is_later = row.latest != row.attempt
    open_to(db, row.job, not_on=() if is_later else row.not_on.split())
    if row.not_on and not is_later:
        db.execute(update(PAUSE).where(mine).values(wakes_s=now_s + LONGEST_ELSEWHERE_S, not_on=""))
    else:
        db.execute(delete(PAUSE).where(mine))


def _note(db: Connection, job: int, attempt: int, *, wakes_s: float, not_on: Sequence[str]) -> None:
    db.execute(delete(PAUSE).where(PAUSE.c.job == job))
    db.execute(insert(PAUSE), {"job": job, "attempt": attempt, "wakes_s": wakes_s, "not_on": " ".join(not_on)})
