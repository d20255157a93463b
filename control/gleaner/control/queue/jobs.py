"""Jobs as users submit and change them: submission, hold, release, a new priority, cancellation.

A user who repeats a submission with its key within a day receives the first answer again. The key and its answer are
stored in the transaction of the submission, so neither a crash nor a second program can submit the jobs twice.

A change applies to one job, or to all jobs of a campaign. Each function works in the caller's transaction and raises
`NotFound`, `Conflict` or `Invalid`. An exception rolls back the transaction, so nothing changes. The event of each
change names the person who made it, if the caller knows who that is.
"""

import math
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Integer, and_, cast, delete, func, insert, literal, null, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from gleaner.agent.common import allowed_urls, placeholders
from gleaner.agent.job_spec import JobSpec, UrlInputSpec
from gleaner.control.models.jobs import Ending, Submission, Submitted
from gleaner.control.models.outputs import for_group
from gleaner.control.policy.quotas import QuotaRules, Whose
from gleaner.control.policy.resources import memory_step, time_step_s
from gleaner.control.queue import attempts, campaign_rules, images, inputs, lanes
from gleaner.control.queue.database import allow_whole_campaign
from gleaner.control.queue.errors import Conflict, Invalid
from gleaner.control.queue.quota_checks import check_submission
from gleaner.control.queue.tables import CAMPAIGN, JOB, LANE, SPEC, SUBMISSION_KEY, LaneWish
from gleaner.control.queue.transitions import (
    insert_unless_there,
    lock,
    make_for_all,
    make_transition,
    put_on_hold,
    record,
    record_all,
)
from gleaner.control.states import Outcome, State, Transition

HELD_AT_SUBMISSION = "submitted so"
KEEP_KEYS_S = 24 * 3600.0
NO_QUOTAS = QuotaRules()


@dataclass(frozen=True, slots=True)
class SubmissionRules:
    """The site's rules for a submission."""

    default_retries: int
    nodes_memory: Collection[int] = ()
    """The memory that the nodes offer, in MiB. A job's memory is never rounded up beyond that of the smallest node on
    which the job fits."""
    longest_s: float = math.inf
    """The longest time that a job can have on one agent. A job's least time is never rounded up beyond it."""
    quotas: QuotaRules = NO_QUOTAS
    mounts: Sequence[str] = ()
    """The folders of the nodes that jobs can mount."""
    urls: Sequence[str] = ()
    """The URLs that inputs can have, in the form of `allowed_urls`."""
    targets: Sequence[str] = ()
    """The URLs to which results can be delivered, in the form of `for_group`."""
    stored_bytes: Callable[[Connection], Mapping[Whose, int]] | None = None
    """A function that returns the stored bytes of each group and user. It is called only if a quota limits them."""


def check_places(spec: JobSpec, group: str, *, rules: SubmissionRules) -> None:
    """Check the folders and URLs that a job reads, and its target.

    Raises `Invalid` for a folder, and `Conflict` for a URL, that the site does not allow.
    """
    for folder in spec.mounts:
        if folder not in rules.mounts:
            allowed = ", ".join(rules.mounts) or "none, until an admin allows some in [inputs] mounts"
            raise Invalid(f"job.mounts: {folder} is not among the folders that jobs may mount here: {allowed}")
    for one in spec.inputs:
        if isinstance(one, UrlInputSpec) and (why := allowed_urls.refusal(one.url, rules.urls)):
            raise Conflict(f"the input {one.name}: {why}")
    if spec.outputs is not None and spec.outputs.to is not None:
        filled = "".join(text + ("1" if name else "") for text, name, _ in placeholders.parts(spec.outputs.to))
        if why := allowed_urls.refusal(filled, for_group(rules.targets, group), allowed_urls.DELIVER):
            raise Conflict(f"outputs: {why}")


def submit(
    db: Connection,
    submission: Submission,
    *,
    group: str,
    rules: SubmissionRules,
    now_s: float,
    submitter: str = "",
) -> Submitted:
    """Queue one job, or one job for each index. The memory of each is rounded up to a step (`policy.resources`).

    A dry run ends after the checks. Raises `OverQuota`, and `Conflict` for an input that the group has not stored or
    whose URL is not allowed.
    """
    spec = accepted(submission.job, rules)
    check_places(spec, group, rules=rules)
    size = (spec.cpus, spec.memory_mib)
    check_submission(db, rules.quotas, rules.stored_bytes, (group, submitter), jobs=submission.count, size=size)
    taken = inputs.take_for_spec(db, group, spec.inputs, now_s=now_s)
    if submission.dry_run:
        return Submitted(campaign=None, jobs=())
    campaign = None
    if submission.is_campaign:
        allow_whole_campaign(db)
        made = {"name": spec.name, "group": group, "submitted_s": now_s, "submitter": submitter}
        campaign = db.execute(insert(CAMPAIGN).values(made).returning(CAMPAIGN.c.id)).scalar_one()
    wish = LaneWish(
        group=group,
        submitter=submitter,
        cpus=spec.cpus,
        memory_mib=spec.memory_mib,
        needs_s=spec.needs_at_least_s or 0,
        mounts=spec.mounts,
        fetches=tuple(inputs.schemes_to_fetch(taken)),
    )
    lane = lanes.ensure_for_new(db, wish, saves_itself=spec.saves_itself is not None)
    if campaign is not None:
        lane = campaign_rules.add(db, campaign, submission, wish, jobs=submission.count) or lane
    common: dict[str, Any] = {
        "group": group,
        "campaign": campaign,
        "spec": add_spec(db, spec, taken, image_id=images.pushed_id(db, group, spec.image)),
        "lane": lane,
        "state": State.NEW,
        "held": submission.hold,
        "hold_reason": HELD_AT_SUBMISSION if submission.hold else None,
        "priority": spec.priority,
        "retries": spec.retries,
        "submitted_s": now_s,
        "submitter": submitter,
    }
    if campaign is None:
        jobs: Sequence[int] = [db.execute(insert(JOB).returning(JOB.c.id), common | {"index": None}).scalar_one()]
        record(db, jobs[0], "submit", now_s=now_s, detail=_signed(submitter))
    else:
        _add_runs(db, common, submission)
        mine = select(JOB.c.id).where(JOB.c.campaign == campaign).order_by(JOB.c.id)
        jobs = list(db.execute(mine).scalars().all())  # `all` reads all rows at once
        record_all(db, JOB.c.campaign == campaign, "submit", now_s=now_s, detail=_signed(submitter))
        campaign_rules.open_jobs(db, campaign)
    return Submitted(campaign=campaign, jobs=tuple(jobs))


def accepted(spec: JobSpec, rules: SubmissionRules) -> JobSpec:
    """Return the specification with defaults for missing numbers, and its memory and least time rounded up to a
    step."""
    most_mib = spec.most_memory_mib
    numbers = {
        "memory_mib": memory_step(spec.memory_mib, rules.nodes_memory),
        "most_memory_mib": None if most_mib is None else memory_step(most_mib, rules.nodes_memory),
        "needs_at_least_s": time_step_s(spec.needs_at_least_s or 0, rules.longest_s) or None,
        "retries": rules.default_retries if spec.retries is None else spec.retries,
    }
    return spec.model_copy(update=numbers)


def add_spec(db: Connection, spec: JobSpec, taken: Sequence[Mapping[str, Any]] | None, *, image_id: str | None) -> int:
    """Store an accepted specification with the inputs and the image that its jobs keep. Return its number."""
    stored = insert(SPEC).values(
        document=spec,
        name=spec.name,
        saves_itself=spec.saves_itself is not None,
        image_id=image_id,
        inputs=taken,
    )
    return int(db.execute(stored.returning(SPEC.c.id)).scalar_one())


def _add_runs(db: Connection, common: Mapping[str, Any], submission: Submission) -> None:
    """Add a job for each run in one statement with one text, because a hundred thousand values would take seconds to
    send.

    The jobs' ids increase in the order of the runs.
    """
    run = func.json_each(literal(dict(submission.runs()), JOB.c.parameters.type)).table_valued("key", "value")
    same = [literal(value, JOB.c[name].type) for name, value in common.items()]
    each = [cast(run.c.key, Integer), null() if submission.parameters is None else run.c.value]
    db.execute(insert(JOB).from_select([*common, "index", "parameters"], select(*same, *each)).inline())


def hold(db: Connection, job: int, *, reason: str, now_s: float) -> None:
    """Keep agents from claiming the job until it is released. A running job is saved. A second hold changes nothing."""
    put_on_hold(db, _incomplete(db, job, "held"), reason=reason, now_s=now_s)


def _signed(by: str) -> str:
    return f"by {by}" if by else ""


def release(db: Connection, job: int, *, now_s: float, by: str = "") -> None:
    """Let agents claim the job again and reset its count of losses. A job that is not held stays unchanged."""
    row = _incomplete(db, job, "released")
    if row.held:
        _let_go(db, JOB.c.id == job)
        record(db, job, "release", now_s=now_s, detail=_signed(by))
        if row.campaign is not None:
            campaign_rules.open_jobs(db, row.campaign)


def _let_go(db: Connection, which: ColumnElement[bool]) -> bool:
    """Release the held jobs among these. Return True if there were any."""
    freed = {"held": False, "hold_reason": None, "sound_attempt": JOB.c.attempt}
    return db.execute(update(JOB).where(which, JOB.c.held).values(freed)).rowcount > 0


def set_priority(db: Connection, job: int, priority: int, *, now_s: float, by: str = "") -> None:
    """Set the job's priority. Jobs with a higher priority are claimed earlier."""
    row = _incomplete(db, job, "given another priority")
    if row.priority == priority:
        return
    db.execute(update(JOB).where(JOB.c.id == job).values(priority=priority))
    detail = f"from {row.priority} to {priority}" + (f", by {by}" if by else "")
    record(db, job, "priority", now_s=now_s, detail=detail)
    if row.campaign is not None:
        campaign_rules.open_jobs(db, row.campaign)


def set_campaign_priority(db: Connection, campaign: int, priority: int, *, now_s: float, by: str = "") -> None:
    """Set the priority of all jobs of the campaign that are not Complete."""
    others = _locked_ones(db, campaign) & (JOB.c.priority != priority)
    record_all(db, others, "priority", now_s=now_s, detail=f"to {priority}" + (f", by {by}" if by else ""))
    db.execute(update(JOB).where(others).values(priority=priority))
    campaign_rules.open_jobs(db, campaign)


def cancel(db: Connection, job: int, *, now_s: float, by: str = "") -> None:
    """End the job permanently. Its agent is told to drop the job. A second cancellation changes nothing."""
    row = lock(db, job)
    if row.outcome is not Outcome.CANCELLED:
        _cancel(db, row, now_s, _signed(by))


def _cancel(db: Connection, row: Any, now_s: float, detail: str) -> None:
    told: dict[str, Any] = {"now_s": now_s, "detail": detail, "outcome": Outcome.CANCELLED}
    if row.state is State.RUNNING:
        end = attempts.end_columns(Ending.CANCELLED, ended_s=now_s)
        counts = make_transition(db, row.id, Transition.CANCEL, attempt=row.attempt, end=end, **told)
    else:
        counts = make_transition(db, row.id, Transition.CANCEL, **told)
    if counts:
        campaign_rules.record_end(db, row.id, Outcome.CANCELLED, now_s=now_s)


def hold_campaign(db: Connection, campaign: int, *, reason: str, now_s: float) -> None:
    """Hold all jobs of the campaign that are not Complete."""
    free = _locked_ones(db, campaign) & ~JOB.c.held
    record_all(db, free, "hold", now_s=now_s, detail=reason)
    db.execute(update(JOB).where(free).values(held=True, hold_reason=reason))


def release_campaign(db: Connection, campaign: int, *, now_s: float, by: str = "") -> None:
    """Release all held jobs of the campaign."""
    held = _locked_ones(db, campaign) & JOB.c.held
    record_all(db, held, "release", now_s=now_s, detail=_signed(by))
    campaign_rules.release(db, campaign, any_held=_let_go(db, held))


def cancel_campaign(db: Connection, campaign: int, *, now_s: float, by: str = "") -> None:
    """Cancel all jobs of the campaign that are not Complete."""
    incomplete = _locked_ones(db, campaign)
    attempts.end_live_ones(db, campaign, attempts.end_columns(Ending.CANCELLED, ended_s=now_s))
    make_for_all(db, incomplete, Transition.CANCEL, now_s=now_s, detail=_signed(by), outcome=Outcome.CANCELLED)
    campaign_rules.record_end_of_all(db, campaign)


def _incomplete(db: Connection, job: int, what: str) -> Any:
    row = lock(db, job)
    if row.state is State.COMPLETE:
        raise Conflict(f"job {job} cannot be {what}: it is Complete ({row.outcome})")
    return row


def _locked_ones(db: Connection, campaign: int) -> ColumnElement[bool]:
    """Lock the campaign's jobs that are not Complete, in the order of their ids.

    Return the condition that selects them.
    """
    campaign_rules.lock(db, campaign)
    allow_whole_campaign(db)
    incomplete = and_(JOB.c.campaign == campaign, JOB.c.state != State.COMPLETE)
    rows = select(JOB.c.id).where(incomplete).order_by(JOB.c.id).with_for_update().subquery()
    db.execute(select(func.count()).select_from(rows))
    return incomplete


def spec_of(db: Connection, job: int) -> JobSpec:
    """Return the specification with which the job was accepted. All jobs of a campaign share it."""
    wanted = select(SPEC.c.document).join(JOB, JOB.c.spec == SPEC.c.id).where(JOB.c.id == job)
    return typing.cast("JobSpec", db.execute(wanted).scalar_one())


def memory_range_mib(db: Connection, job: int) -> tuple[int, int | None]:
    """Return the job's memory, and the largest size to which it can grow. None means that its memory is fixed."""
    now = select(LANE.c.memory_mib).join(JOB, LANE.c.id == JOB.c.lane).where(JOB.c.id == job)
    return int(db.execute(now).scalar_one()), spec_of(db, job).most_memory_mib


def take_key(db: Connection, user: str, key: str, submission: Submission, *, now_s: float) -> Submitted | None:
    """Reserve the key for this submission, or return the stored answer if the submission has been made before.

    The function waits for another transaction that has reserved the key. Raises `Conflict` if the key belongs to
    another submission.
    """
    digest = sha256(submission.model_dump_json().encode()).hexdigest()
    mine = {"user": user, "key": key, "digest": digest, "at_s": now_s}
    taken = insert_unless_there(db, SUBMISSION_KEY).values(mine).returning(SUBMISSION_KEY.c.key)
    if db.execute(taken).one_or_none() is not None:
        return None
    wanted = SUBMISSION_KEY.c.user == user, SUBMISSION_KEY.c.key == key
    row = db.execute(select(SUBMISSION_KEY.c.digest, SUBMISSION_KEY.c.answer).where(*wanted)).one()
    if row.digest != digest:
        raise Conflict("this Idempotency-Key came with another submission: send a new key")
    return typing.cast("Submitted", row.answer)


def keep_answer(db: Connection, user: str, key: str, answer: Submitted) -> None:
    """Store the answer, in the transaction that has reserved the key."""
    mine = SUBMISSION_KEY.c.user == user, SUBMISSION_KEY.c.key == key
    db.execute(update(SUBMISSION_KEY).where(*mine).values(answer=answer))


def remove_old_keys(db: Connection, *, now_s: float, at_most: int) -> int:
    """Remove the keys that are older than a day. Return how many were removed."""
    some = tuple_(*SUBMISSION_KEY.primary_key)
    old = select(*SUBMISSION_KEY.primary_key).where(SUBMISSION_KEY.c.at_s < now_s - KEEP_KEYS_S).limit(at_most)
    return db.execute(delete(SUBMISSION_KEY).where(some.in_(old))).rowcount
