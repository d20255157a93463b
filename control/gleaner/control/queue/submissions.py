"""New jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, func, insert, literal, select
from sqlalchemy.dialects import postgresql

from gleaner.control.api.shapes import Submission, Submitted
from gleaner.control.life import State
from gleaner.control.queue import lanes
from gleaner.control.queue.arrows import record, record_all
from gleaner.control.queue.errors import Invalid
from gleaner.control.queue.tables import CAMPAIGN, JOB, SPEC

HELD_AT_SUBMISSION = "submitted so"


def submit(db: Connection, submission: Submission, *, group: str, default_retries: int, now_s: float) -> Submitted:
    """Queue one job, or one job an index. Raises `Invalid` for a job wider than one node, or an index given twice."""
    spec, indices = submission.job, submission.indices
    if spec.nodes != 1:
        raise Invalid(f"{spec.nodes} nodes: a job runs on one node or less; wider jobs are only simulated")
    if indices is not None and len(set(indices)) < len(indices):
        raise Invalid("indices: an index stands there twice")
    campaign = None
    if indices is not None:
        campaign_row = insert(CAMPAIGN).values(name=spec.name, group=group, submitted_s=now_s).returning(CAMPAIGN.c.id)
        campaign = db.execute(campaign_row).scalar_one()
    stored = insert(SPEC).values(
        name=spec.name,
        image=spec.image,
        command=list(spec.command),
        environment=spec.environment,
        saves_itself=None if spec.saves_itself is None else spec.saves_itself.model_dump(),
    )
    common: dict[str, Any] = {
        "group": group,
        "campaign": campaign,
        "spec": db.execute(stored.returning(SPEC.c.id)).scalar_one(),
        "lane": lanes.of_new(db, group, spec.cpus, spec.memory_mib, saves_itself=spec.saves_itself is not None),
        "state": State.NEW,
        "held": submission.hold,
        "hold_reason": HELD_AT_SUBMISSION if submission.hold else None,
        "priority": spec.priority,
        "retries": default_retries if spec.retries is None else spec.retries,
        "failures": 0,
        "attempt": 0,
        "lost": False,
        "sound_attempt": 0,
        "submitted_s": now_s,
    }
    if indices is None:
        jobs = [db.execute(insert(JOB).returning(JOB.c.id), common | {"index": None}).scalar_one()]
        record(db, jobs[0], "submit", now_s=now_s)
    else:
        _add_runs(db, common, indices)
        made = db.execute(select(JOB.c.index.label("run"), JOB.c.id).where(JOB.c.campaign == campaign))
        by_index = {row.run: row.id for row in made}
        jobs = [by_index[index] for index in indices]
        record_all(db, JOB.c.campaign == campaign, "submit", now_s=now_s)
    return Submitted(campaign=campaign, jobs=tuple(jobs))


def _add_runs(db: Connection, common: Mapping[str, Any], indices: Sequence[int]) -> None:
    if db.dialect.name != "postgresql":
        db.execute(insert(JOB).inline(), [{**common, "index": index} for index in indices])
        return
    # One statement for all: with one a row, a hundred thousand runs take a quarter of a minute.
    run = func.unnest(literal(list(indices), postgresql.ARRAY(Integer))).column_valued("run")
    same = [literal(value, JOB.c[name].type) for name, value in common.items()]
    db.execute(insert(JOB).from_select([*common, "index"], select(*same, run)).inline())
