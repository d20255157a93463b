"""New jobs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, func, insert, literal, select
from sqlalchemy.dialects import postgresql

from gleaner.control.api.shapes import Submission, Submitted
from gleaner.control.life import State
from gleaner.control.policy.quotas import QuotaRules, Whose
from gleaner.control.policy.sizes import stepped
from gleaner.control.queue import lanes
from gleaner.control.queue.arrows import record, record_all
from gleaner.control.queue.errors import Invalid
from gleaner.control.queue.quotas import check_submission
from gleaner.control.queue.tables import CAMPAIGN, JOB, SPEC

HELD_AT_SUBMISSION = "submitted so"
NO_QUOTAS = QuotaRules()


def submit(
    db: Connection,
    submission: Submission,
    *,
    group: str,
    default_retries: int,
    now_s: float,
    submitter: str = "",
    nodes_memory: Collection[int] = (),
    quotas: QuotaRules = NO_QUOTAS,
    stored_bytes: Callable[[Connection], Mapping[Whose, int]] | None = None,
) -> Submitted:
    """Queue one job, or one job an index. The memory of each is rounded up to a step (`policy.sizes`).

    Raises `Invalid` for a job wider than one node, or an index given twice, and `OverQuota`.
    """
    spec, indices = submission.job, submission.indices
    if spec.nodes != 1:
        raise Invalid(f"{spec.nodes} nodes: a job runs on one node or less; wider jobs are only simulated")
    if indices is not None and len(set(indices)) < len(indices):
        raise Invalid("indices: an index stands there twice")
    memory_mib = stepped(spec.memory_mib, nodes_memory)
    check_submission(
        db,
        quotas,
        group=group,
        submitter=submitter,
        jobs=1 if indices is None else len(indices),
        size=(spec.cpus, memory_mib),
        has_bytes=stored_bytes(db) if stored_bytes is not None and quotas.any_stored else {},
    )
    campaign = None
    if indices is not None:
        made = {"name": spec.name, "group": group, "submitted_s": now_s, "submitter": submitter}
        campaign = db.execute(insert(CAMPAIGN).values(made).returning(CAMPAIGN.c.id)).scalar_one()
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
        "lane": lanes.of_new(
            db,
            group,
            spec.cpus,
            memory_mib,
            saves_itself=spec.saves_itself is not None,
            submitter=submitter if quotas.of(group).user.limits_running else "",
        ),
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
        "submitter": submitter,
    }
    by = f"by {submitter}" if submitter else ""
    if indices is None:
        jobs = [db.execute(insert(JOB).returning(JOB.c.id), common | {"index": None}).scalar_one()]
        record(db, jobs[0], "submit", now_s=now_s, detail=by)
    else:
        _add_runs(db, common, indices)
        rows = db.execute(select(JOB.c.index.label("run"), JOB.c.id).where(JOB.c.campaign == campaign))
        by_index = {row.run: row.id for row in rows}
        jobs = [by_index[index] for index in indices]
        record_all(db, JOB.c.campaign == campaign, "submit", now_s=now_s, detail=by)
    return Submitted(campaign=campaign, jobs=tuple(jobs))


def _add_runs(db: Connection, common: Mapping[str, Any], indices: Sequence[int]) -> None:
    if db.dialect.name != "postgresql":
        db.execute(insert(JOB).inline(), [{**common, "index": index} for index in indices])
        return
    # One statement for all: with one a row, a hundred thousand runs take a quarter of a minute.
    run = func.unnest(literal(list(indices), postgresql.ARRAY(Integer))).column_valued("run")
    same = [literal(value, JOB.c[name].type) for name, value in common.items()]
    db.execute(insert(JOB).from_select([*common, "index"], select(*same, run)).inline())
