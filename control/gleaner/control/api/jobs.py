"""The routes that submit, list, show, hold, release, cancel and migrate users' jobs, and a few other routes.

A user sees the jobs of the user's group, and can change the jobs that the user has submitted. A manager can change all
jobs of the group. An admin can change all jobs.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from gleaner.agent.checkpoints.interface import FOLDER_PART, ArchiveBroken, output_key
from gleaner.agent.common.quantities import in_words, memory_in_words
from gleaner.agent.job_spec import MAX_ID
from gleaner.agent.messages import ReturnReason
from gleaner.agent.privileged.shim.head_room import HEAD_ROOM_MIB
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, User
from gleaner.control.api.examples import JobPath
from gleaner.control.api.problems import documented
from gleaner.control.api.storage_threads import READS_STORAGE, read_on
from gleaner.control.control_state import ControlState
from gleaner.control.models.jobs import (
    JobDetail,
    JobList,
    JobRow,
    LogPage,
    MigrateRequest,
    Priority,
    Rerun,
    Submission,
    Submitted,
)
from gleaner.control.models.outputs import ResultRow
from gleaner.control.models.searches import JobFilter
from gleaner.control.policy.why_waiting import (
    MOST_BEFORE,
    JobNeeds,
    NodeOutlook,
    Surroundings,
    fits_somewhere,
    too_large,
    waits_because,
)
from gleaner.control.queue import (
    agents,
    campaign_rules,
    compatibility,
    deliveries,
    images,
    jobs,
    lanes,
    logs,
    node_health,
    queries,
    quota_checks,
    relocation,
    reruns,
    retention,
    searches,
    tokens,
)
from gleaner.control.queue.errors import Invalid
from gleaner.control.slurm.agents_view import kill_switch, waits_for
from gleaner.control.states import WAITING

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

KEY = '^"?[A-Za-z0-9._-]{16,128}"?$'
_ABOUT_KEY = "For a day, the same submission of the same user with the same key gets the same answer"
SubmissionKey = Annotated[str, Header(alias="Idempotency-Key", pattern=KEY, description=_ABOUT_KEY)]


def user_job(caller: Caller, db: Connection, job: int) -> JobRow:
    """Return the job if the caller is allowed to see it.

    Raises 403 for another group's job, and `NotFound` if the job does not exist.
    """
    row = queries.job_row(db, job, keep_s=caller.state.settings.outputs.keep_s)
    if caller.group is not None and row.group != caller.group:
        raise HTTPException(403, f"job {job} belongs to another group")
    return row


def _named_groups(caller: Caller) -> frozenset[str]:
    """Return the groups that the settings name, because they have a part, a multiplier, or users whom munge
    authenticates.

    If Slurm's accounts define the parts, the accounts with a part replace the groups with a part in the settings.
    """
    rules = caller.state.share_rules
    vouched = (rule.group for rule in caller.state.settings.munge.allow if rule.group is not None)
    return frozenset((*rules.entitled, *rules.multiplier, *vouched))


def _changed(caller: Caller, job: int, act: Callable[[Connection], object]) -> JobRow:
    """Change a job if the caller is its submitter, a manager of its group, or an admin (else 403). Return the job."""
    with caller.writing() as db:
        row = user_job(caller, db, job)
        caller.may_change(f"job {job}", group=row.group, submitter=row.submitter)
        act(db)
        return queries.job_row(db, job, keep_s=caller.state.settings.outputs.keep_s)


def _nodes_memory(db: Connection, known: Iterable[NodeOutlook]) -> frozenset[int]:
    """Return the memory sizes that agents and nodes have for jobs. No request is rounded up beyond the next larger of
    these sizes."""
    return queries.memory_offered(db) | {place.memory_mib for place in known}


def places(state: ControlState, *, excluded: frozenset[str] = frozenset()) -> tuple[NodeOutlook, ...] | None:
    """Return the nodes of the last snapshot with their memory for jobs, or None before the first snapshot."""
    if state.cluster is None:
        return None
    nodes = state.cluster.nodes.values()
    idle = {node.name for node in nodes if node.is_idle}
    return tuple(
        NodeOutlook(
            node.cpus,
            max(1, node.memory_mib - HEAD_ROOM_MIB),
            is_free=node.name in idle - excluded,
            is_excluded=node.name in idle & excluded,
            name=node.name,
        )
        for node in nodes
    )


def surroundings(db: Connection, state: ControlState) -> Surroundings:
    """Return the facts for `waits_because`, with times in the time zone of control's machine."""
    now_s = state.clock()
    phases = queries.agent_phases(db, now_s=now_s)
    rounds = state.settings.rounds
    return Surroundings(
        now_s=now_s,
        nodes=places(state, excluded=frozenset(node_health.excluded_nodes(db, now_s))),
        problem=state.problem,
        closed=agents.why_stopped(db)
        or (kill_switch(state.cluster, state.settings.cluster.partition) if state.cluster else ""),
        slurm_says=waits_for(state.cluster) if state.cluster else "",
        agents_live=phases.get("live", 0),
        agents_pending=phases.get("submitted", 0),
        agents_at_most=rounds.agents_at_most,
        boundary_s=state.boundary_s,
        shortest_slice_s=rounds.least_slice_s,
        agent_needs_s=rounds.agent_needs_s,
        shares=state.usage_cache.shares(db, state.share_rules),
        zone=datetime.fromtimestamp(now_s).astimezone().tzinfo or UTC,
    )


@router.post("", status_code=201, responses=documented(409, 413, 422))
def submit(
    caller: User, submission: Annotated[Submission, examples.A_SUBMISSION], key: SubmissionKey = ""
) -> Submitted:
    """Submit one job, or a campaign of one job for each index. A request with a key can safely be repeated."""
    group = caller.acts_for(submission.group)
    submission = submission.model_copy(update={"group": group})
    user = f"{caller.identity.role} {caller.name}"
    if submission.dry_run:
        key = ""
    with caller.writing() as db:
        answer = jobs.take_key(db, user, key, submission, now_s=caller.now_s) if key else None
        if answer is None:
            answer = _submit(caller, db, submission, group)
            if key:
                jobs.keep_answer(db, user, key, answer)
    if submission.dry_run:
        return answer
    first, last = answer.jobs[0], answer.jobs[-1]
    which = f"jobs {first} to {last}" if len(answer.jobs) > 1 else f"job {first}"
    caller.about.append(f"group {group}, {which}")
    return answer


def submission_rules(caller: Caller, db: Connection, *, cpus: int, memory: Collection[int]) -> jobs.SubmissionRules:
    """Return the site's rules for jobs of this size. Raises `Invalid` if no node is large enough."""
    state = caller.state
    known = places(state)
    wish = JobNeeds(cpus, max(memory, default=0))
    if known and not fits_somewhere(wish, known):
        raise Invalid(too_large(wish, known))
    return jobs.SubmissionRules(
        default_retries=state.settings.queue.retries,
        nodes_memory=_nodes_memory(db, known) if known else memory,  # unknown, so the job might fit
        longest_s=state.settings.rounds.longest_s,
        quotas=state.quotas,
        mounts=state.settings.inputs.mounts,
        urls=state.settings.inputs.urls,
        targets=state.settings.outputs.urls,
        stored_bytes=state.stored.bytes_by_owner,
    )


def _submit(caller: Caller, db: Connection, submission: Submission, group: str) -> Submitted:
    memory = {submission.job.memory_mib, submission.job.most_memory_mib or submission.job.memory_mib}
    rules = submission_rules(caller, db, cpus=submission.job.cpus, memory=memory)
    longest_s = rules.longest_s
    needs_s = submission.job.needs_at_least_s or 0
    if needs_s > longest_s:
        raise Invalid(
            f"job.needs_at_least_s: no agent here has {in_words(needs_s)} for a job, the most is {in_words(longest_s)}"
        )
    warning = images.check_exists(db, group, submission.job.image)
    disk_mib = submission.job.disk_mib
    if disk_mib is not None and disk_mib > (most_mib := queries.disk_offered(db) or disk_mib):
        most = f"{memory_in_words(most_mib)} at most (disk_mib_per_job)"
        raise Invalid(f"disk: a job may write {most} on the nodes here, found {memory_in_words(disk_mib)}")
    if caller.group is None:  # a user's group comes from a token or a rule, so it exists
        tokens.check_group(db, group, named=_named_groups(caller))
    made = jobs.submit(
        db,
        submission,
        group=group,
        rules=rules,
        now_s=caller.now_s,
        submitter=caller.name,
    )
    return made.model_copy(update={"warning": warning})


@router.get("", responses=documented(422))
def list_jobs(caller: User, wanted: Annotated[JobFilter, Query()]) -> JobList:
    """Return a page of jobs, the oldest first. To get the next page, send the last id of this page as `after`."""
    wanted = caller.visible(wanted)
    with caller.reading() as db:
        found = searches.job_page(db, wanted, mine=caller.name, keep_s=caller.state.settings.outputs.keep_s)
        if not found.total and wanted.group is not None and caller.group is None:
            tokens.check_group(db, wanted.group, named=_named_groups(caller))
    return found


@router.get("/{job}", responses=documented(404, 422))
def show(caller: User, job: JobPath) -> JobDetail:
    """Return all known facts about one job, and the reason why it waits, if it does."""
    with caller.reading() as db:
        user_job(caller, db, job)
        detail = queries.job_detail(db, job, keep_s=caller.state.settings.outputs.keep_s)
        if detail.job.state not in WAITING:
            return detail
        around = surroundings(db, caller.state)
        reason = queries.hold_reason(db, job) if detail.job.held else ""
        found = compatibility.obstacles(db, job)
        moves_now = relocation.relocation_of(db, job)
        paused_until_s = lanes.paused_until(db, job)
        turn = campaign_rules.turn(db, job)
        before = queries.waiting_before(db, job, at_most=MOST_BEFORE)
        quota = quota_checks.obstacle(db, caller.state.quotas, job, lambda: caller.state.stored.bytes_by_owner(db))
    last = detail.attempts[-1] if detail.attempts else None
    wish = JobNeeds(
        detail.job.cpus,
        detail.job.memory_mib,
        held=detail.job.held,
        hold_reason=reason,
        turn=turn,
        group=detail.job.group,
        saved_on=found.saved_on if found else "",
        paused_until_s=paused_until_s,
        unreachable=last.detail if last and last.why is ReturnReason.INPUT_UNREACHABLE else "",
        quota=quota,
        moved=moves_now.way if moves_now else "",
        needs_s=detail.spec.needs_at_least_s or 0,
        before=before,
        lacking=found.lacking if found else {},
    )
    return detail.model_copy(update={"waits_because": waits_because(wish, around)})


@router.post("/{job}/hold", responses=documented(404, 409, 422))
def hold(caller: User, job: JobPath) -> JobRow:
    """Hold the job, so that no agent can claim it until it is released. A running job is saved at once."""
    return _changed(caller, job, lambda db: jobs.hold(db, job, reason=f"by {caller.name}", now_s=caller.now_s))


@router.post("/{job}/release", responses=documented(404, 409, 422))
def release(caller: User, job: JobPath) -> JobRow:
    """Let agents claim the job again."""
    return _changed(caller, job, lambda db: jobs.release(db, job, by=caller.name, now_s=caller.now_s))


@router.post("/{job}/cancel", responses=documented(404, 409, 422))
def cancel(caller: User, job: JobPath) -> JobRow:
    """End the job permanently. A running job is killed at its agent's next heartbeat."""
    return _changed(caller, job, lambda db: jobs.cancel(db, job, by=caller.name, now_s=caller.now_s))


@router.post("/{job}/rerun", responses=documented(404, 409, 413, 422))
def rerun(caller: User, job: JobPath, change: Annotated[Rerun | None, examples.A_RERUN] = None) -> JobRow:
    """Run a failed or cancelled job again from its beginning, with a different memory size or image if one is given."""
    wanted, by, now_s = change or Rerun(), caller.name, caller.now_s
    rules = partial(rerun_rules, caller, wanted)
    return _changed(caller, job, lambda db: reruns.rerun(db, job, wanted, rules=rules(db, job), by=by, now_s=now_s))


def rerun_rules(caller: Caller, change: Rerun, db: Connection, job: int) -> jobs.SubmissionRules:
    """Return the site's rules for a rerun of jobs like this one. Raises `Invalid` as a submission does."""
    row = queries.job_row(db, job)
    if change.image is not None:
        images.check_exists(db, row.group, change.image)
    return submission_rules(caller, db, cpus=row.cpus, memory={change.memory_mib or row.memory_mib})


@router.delete("/{job}", responses=documented(404, 409, 422))
def remove(caller: User, job: JobPath) -> JobRow:
    """Remove an ended job from all lists, with its result and its log. Its node time still counts in reports."""
    return _changed(caller, job, lambda db: retention.remove_job(db, job))


@router.post("/{job}/deliver", responses=documented(404, 409, 422))
def deliver(caller: User, job: JobPath) -> JobRow:
    """Deliver the job's result to its target again, even if it was already delivered."""
    return _changed(caller, job, lambda db: deliveries.try_again(db, job, now_s=caller.now_s))


@router.post("/{job}/migrate", responses=documented(404, 409, 413, 422))
def migrate(caller: User, job: JobPath, wanted: Annotated[MigrateRequest, examples.A_MIGRATION]) -> JobRow:
    """Save the job now, and let it continue on the node `to`, or on any node but its current one."""
    return _changed(caller, job, lambda db: relocation.ask(db, job, to=wanted.to, by=caller.name, now_s=caller.now_s))


@router.patch("/{job}", responses=documented(404, 409, 413, 422))
def change(caller: User, job: JobPath, change: Annotated[Priority, examples.A_CHANGE]) -> JobRow:
    """Change the job's priority. A job with a higher priority is claimed earlier."""
    return _changed(
        caller, job, lambda db: jobs.set_priority(db, job, change.priority, by=caller.name, now_s=caller.now_s)
    )


@router.get("/{job}/log", responses=documented(404, 422))
def log(
    caller: User,
    job: JobPath,
    first: Annotated[int, Query(ge=0, le=MAX_ID, description="The first line wanted, counted from 0")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    everything: Annotated[bool, Query(alias="all", description="Also what attempts wrote that were lost")] = False,
) -> LogPage:
    """Return lines that the job wrote, over all its slices."""
    with caller.reading() as db:
        user_job(caller, db, job)
        return (logs.read_all if everything else logs.read)(db, job, first, limit)


@router.get("/{job}/result", responses=documented(404, 422))
def result(caller: User, job: JobPath) -> ResultRow:
    """Return a row that identifies the job's result, with its folder in the storage."""
    with caller.reading() as db:
        user_job(caller, db, job)
        (row,) = queries.results(db, caller.state.settings.storage.folder, job=job)
    if row.digest is None:
        raise HTTPException(404, f"job {job} has no output: it is {row.outcome or row.state}")
    return row


@router.get(
    "/{job}/output",
    response_class=StreamingResponse,
    responses=documented(404, 422, 502)
    | {
        200: {
            "description": "The job's folder as a tar stream",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
@READS_STORAGE
def output(caller: User, job: JobPath) -> StreamingResponse:
    """Return the job's output folder. The archive is complete only if all `Content-Length` bytes have arrived."""
    found = result(caller, job)
    archive = caller.state.storage.open(output_key(job, found.attempt), found.digest or "")
    part = archive.parts.get(FOLDER_PART)
    if part is None:
        raise ArchiveBroken(f"the output of job {job} has no part {FOLDER_PART}")
    return StreamingResponse(
        read_on(caller, _begun(archive.read(FOLDER_PART))),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(part.size_bytes),
            "Content-Disposition": f'attachment; filename="job-{job}.tar"',
        },
    )


def _begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the chunks with the first one already read, so that an early failure still leads to an error status.

    The storage verifies each chunk before it returns the chunk. Therefore a damaged output stops early and never
    appears complete.
    """
    return itertools.chain([next(chunks, b"")], chunks)
