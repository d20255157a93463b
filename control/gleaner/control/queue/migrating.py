"""Moving a running job: its agent is told to save it, and it goes on elsewhere.

That is all there is to a move: a job that was saved waits like any other, but for where it may go on. The row of a
migration is there from the asking until the job runs again, or until nobody could take it for too long.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, false, func, insert, select

from gleaner.control.life import State
from gleaner.control.policy.waiting import cores
from gleaner.control.queue import attempts, lanes, pauses, places, savable
from gleaner.control.queue.arrows import lock, record
from gleaner.control.queue.errors import Refused
from gleaner.control.queue.migration_tables import MIGRATION
from gleaner.control.queue.site_tables import FIT
from gleaner.control.queue.tables import AGENT, ATTEMPT, JOB, LANE, SPEC, Phase

NOT_MIGRATED = "not migrated"
"""The event of a move that came to nothing."""


@dataclass(frozen=True, slots=True)
class Migrating:
    """A job that is being moved. `by`: a person, or the policy that chose it."""

    job: int
    from_node: str
    to_node: str | None
    by: str

    @property
    def way(self) -> str:
        """For people."""
        return f"from {self.from_node}" + (f" to {self.to_node}" if self.to_node else "")


def ask(db: Connection, job: int, *, to: str | None, by: str, now_s: float) -> None:
    """Move a running job to that node, or to any other than its own. Raises `Refused`; nothing has changed then."""
    row = lock(db, job)
    if row.state is not State.RUNNING:
        raise Refused(f"job {job} cannot be migrated: it does not run, it is {row.state}")
    mine: Any = db.execute(
        select(ATTEMPT.c.node, LANE.c.cpus, LANE.c.memory_mib, AGENT.c.kind, SPEC.c.saves_itself)
        .join_from(JOB, LANE, LANE.c.id == JOB.c.lane)
        .join(SPEC, SPEC.c.id == JOB.c.spec)
        .join(AGENT, AGENT.c.name == JOB.c.agent)
        .join(ATTEMPT, and_(ATTEMPT.c.job == JOB.c.id, ATTEMPT.c.attempt == JOB.c.attempt))
        .where(JOB.c.id == job)
    ).one()
    if why := savable.unsavable(db, row.agent).get(job):
        raise Refused(f"job {job} cannot be migrated: it cannot be saved ({why})")
    if to == mine.node:
        raise Refused(f"job {job} runs on {to} already")
    if to is not None:
        _check_room(db, job, to, mine)
    not_on = mine.node if to is None else places.only_on(to)
    values = {"attempt": row.attempt, "from_node": mine.node, "to_node": to, "not_on": not_on, "by": by}
    db.execute(delete(MIGRATION).where(MIGRATION.c.job == job))
    db.execute(insert(MIGRATION), {"job": job, "asked_s": now_s} | values)
    way = Migrating(job, mine.node, to, by).way
    record(db, job, "migrate", now_s=now_s, attempt=row.attempt, detail=f"{way}, by {by}")


def _check_room(db: Connection, job: int, to: str, mine: Any) -> None:
    """Raise `Refused` unless a live agent on that node could go on with the job."""
    found = db.execute(
        select(AGENT.c.name, AGENT.c.facts, AGENT.c.kind).where(
            AGENT.c.node == to, AGENT.c.phase == Phase.LIVE, AGENT.c.vacate == false()
        )
    ).all()
    used = func.sum(LANE.c.cpus).label("cpus"), func.sum(LANE.c.memory_mib).label("memory_mib")
    for agent in found:
        here = select(*used).join_from(JOB, LANE, LANE.c.id == JOB.c.lane).where(JOB.c.agent == agent.name)
        taken = db.execute(here).one()
        coming = (
            select(*used).join_from(MIGRATION, JOB, JOB.c.id == MIGRATION.c.job).join(LANE, LANE.c.id == JOB.c.lane)
        )
        promised = db.execute(coming.where(MIGRATION.c.to_node == to, MIGRATION.c.job != job)).one()
        free_cpus = agent.facts["cpus"] - (taken.cpus or 0) - (promised.cpus or 0)
        free_mib = agent.facts["memory_mib"] - (taken.memory_mib or 0) - (promised.memory_mib or 0)
        if free_cpus >= mine.cpus and free_mib >= mine.memory_mib:
            if mine.saves_itself is None and not _fits(db, mine.kind, agent.kind):
                raise Refused(f"what is saved on {mine.node} cannot be restored on {to}; see `glean why {job}`")
            return
    raise Refused(
        f"job {job} cannot be migrated to {to}: "
        f"no live agent there has {cores(mine.cpus)} and {mine.memory_mib} MiB free"
    )


def _fits(db: Connection, saved_on: int | None, node: int | None) -> bool:
    fit = exists().where(FIT.c.saved_on == saved_on, FIT.c.node == node)
    return bool(db.execute(select(fit)).scalar_one())


def one(db: Connection, job: int) -> Migrating | None:
    """How the job is being moved; None if it is not."""
    row = db.execute(select(MIGRATION).where(MIGRATION.c.job == job)).one_or_none()
    return None if row is None else Migrating(row.job, row.from_node, row.to_node, row.by)


def all_of_them(db: Connection) -> tuple[Migrating, ...]:
    """All jobs that are being moved."""
    rows = db.execute(select(MIGRATION).order_by(MIGRATION.c.job))
    return tuple(Migrating(row.job, row.from_node, row.to_node, row.by) for row in rows)


def tend(db: Connection, *, patience_s: float, now_s: float) -> tuple[int, ...]:
    """End the migrations that are over, and those that have come to nothing; the jobs that have moved.

    A job that could not be saved in time stays. One that was to go on at one node, and that nobody there has taken in
    time, may go on anywhere: it must not wait for ever.
    """
    moved: list[int] = []
    rows = db.execute(
        select(MIGRATION, JOB.c.state, JOB.c.attempt.label("latest"))
        .join_from(MIGRATION, JOB, JOB.c.id == MIGRATION.c.job)
        .order_by(MIGRATION.c.job)
    ).all()
    for row in rows:
        is_late = now_s > row.asked_s + patience_s
        what, detail = "", ""
        if row.latest > row.attempt:
            what, detail = "migrated", f"from {row.from_node} to {attempts.find(db, row.job, row.latest).node}"
            moved.append(row.job)
            _let_go(db, row.job)  # if it is lost there before it is saved again, it need not wait for that node
        elif row.state is not State.COMPLETE and not is_late:
            continue
        elif row.state is State.RUNNING:
            what, detail = NOT_MIGRATED, f"it was not saved within {patience_s:g} s, and stays on {row.from_node}"
            _let_go(db, row.job)
        elif row.state is not State.COMPLETE and row.to_node is None:
            what, detail = NOT_MIGRATED, f"no other node has taken it within {patience_s:g} s; it still waits for one"
        elif row.state is not State.COMPLETE:
            what = NOT_MIGRATED
            detail = f"nobody on {row.to_node} has taken it within {patience_s:g} s; it may go on anywhere"
            _let_go(db, row.job)
        if what:
            record(db, row.job, what, now_s=now_s, attempt=row.latest, detail=detail)
        db.execute(delete(MIGRATION).where(MIGRATION.c.job == row.job))
    return tuple(moved)


def _let_go(db: Connection, job: int) -> None:
    """It may go on wherever it can be restored, and has not been refused; one that pauses does so to its end."""
    if lock(db, job).state is not State.COMPLETE and pauses.until(db, job) is None:
        lanes.open_to(db, job)
