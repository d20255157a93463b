"""Jobs as their owners see them: submit, list, show, hold, release, cancel, migrate, priority, log, output.

A user sees the jobs of the own group, and changes those that it has submitted; a manager of the group changes all of
them, an admin all that there are.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from gleaner.agent.storage.protocol import ParcelBroken, output_key
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, User
from gleaner.control.api.drain_shapes import MigrateRequest
from gleaner.control.api.problems import documented
from gleaner.control.api.shapes import (
    MAX_ID,
    Change,
    JobDetail,
    JobFilter,
    JobList,
    JobRow,
    LogPage,
    Submission,
    Submitted,
)
from gleaner.control.api.surroundings import places, surroundings
from gleaner.control.life import WAITING
from gleaner.control.policy.waiting import Place, Wish, fits_somewhere, too_large, waits_because
from gleaner.control.queue import groups, kinds, logs, migrating, moves, pauses, quotas, reads, rooms

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobPath = Annotated[int, examples.an_id("The job's id", most=MAX_ID)]
OUTPUT_PART = "folder.tar"


def own_job(caller: Caller, db: Connection, job: int) -> JobRow:
    """The job, if the caller may see it: another group's is not allowed (403), an unknown one not found (404)."""
    row = reads.job_row(db, job)
    if caller.group is not None and row.group != caller.group:
        raise HTTPException(403, f"job {job} belongs to another group")
    return row


def _named_groups(caller: Caller) -> frozenset[str]:
    """Those that the settings give a part, a multiplier, or users whom munge vouches for.

    Where Slurm's accounts give the parts, those of them.
    """
    rules = caller.site.share_rules
    vouched = (rule.group for rule in caller.site.settings.munge.allow if rule.group is not None)
    return frozenset((*rules.entitled, *rules.multiplier, *vouched))


def job_to_change(caller: Caller, db: Connection, job: int) -> JobRow:
    """The job, if the caller may change it: its submitter, a manager of its group, or an admin (else 403)."""
    row = own_job(caller, db, job)
    caller.may_change(f"job {job}", group=row.group, submitter=row.submitter)
    return row


def _nodes_memory(db: Connection, known: Iterable[Place]) -> frozenset[int]:
    """What nodes have, and what their agents leave of it for jobs: rounding must take no job beyond either."""
    return rooms.memory_offered(db) | {place.memory_mib for place in known}


@router.post("", status_code=201, responses=documented(409, 413, 422))
def submit(caller: User, submission: Annotated[Submission, examples.A_SUBMISSION]) -> Submitted:
    """Queue one job, or a campaign of one job an index."""
    group = submission.group or caller.identity.group
    if group is None:
        raise HTTPException(422, "group: an admin's token has no group, so name the one that the job is for")
    if caller.group is not None and group != caller.group:
        raise HTTPException(403, f"this token submits for group {caller.group} only, not for {group}")
    site = caller.site
    wish = Wish(submission.job.cpus, submission.job.memory_mib)
    known = places(site)
    if known and not fits_somewhere(wish, known):
        raise HTTPException(422, too_large(wish, known))
    with caller.writing() as db:
        if caller.group is None:  # a user's group is that of a token, so it is there
            groups.must_exist(db, group, named=_named_groups(caller))
        made = moves.submit(
            db,
            submission,
            group=group,
            default_retries=site.settings.queue.retries,
            now_s=caller.now_s,
            submitter=caller.identity.name,
            nodes_memory=_nodes_memory(db, known) if known else {wish.memory_mib},  # unknown: as it is, it may just fit
            quotas=site.quotas,
            stored_bytes=site.stored.bytes_by_owner,
        )
    first, last = made.jobs[0], made.jobs[-1]
    caller.about.append(
        f"group {group}, jobs {first} to {last}" if len(made.jobs) > 1 else f"group {group}, job {first}"
    )
    return made


@router.get("", responses=documented(422))
def list_jobs(caller: User, wanted: Annotated[JobFilter, Query()]) -> JobList:
    """A page of jobs by ascending id; `after` the last id of a page gives the next."""
    if caller.group is not None:
        if wanted.group is not None and wanted.group != caller.group:
            raise HTTPException(403, f"this token sees the jobs of group {caller.group} only")
        wanted = wanted.model_copy(update={"group": caller.group})
    with caller.reading() as db:
        found = reads.job_list(db, wanted)
        if not found.total and wanted.group is not None and caller.group is None:
            groups.must_exist(db, wanted.group, named=_named_groups(caller))
    return found


@router.get("/{job}", responses=documented(404, 422))
def show(caller: User, job: JobPath) -> JobDetail:
    """All that is known of one job, and why it waits if it does."""
    with caller.reading() as db:
        own_job(caller, db, job)
        detail = reads.job_detail(db, job)
        if detail.job.state not in WAITING:
            return detail
        around = surroundings(db, caller.site)
        reason = reads.hold_reason(db, job) if detail.job.held else ""
        found = kinds.obstacles(db, job)
        moves_now = migrating.one(db, job)
        paused_until_s = pauses.until(db, job)
        quota = quotas.in_the_way(db, caller.site.quotas, job, lambda: caller.site.stored.bytes_by_owner(db))
    wish = Wish(
        detail.job.cpus,
        detail.job.memory_mib,
        held=detail.job.held,
        hold_reason=reason,
        group=detail.job.group,
        saved_on=found.saved_on if found else "",
        paused_until_s=paused_until_s,
        quota=quota,
        moved=moves_now.way if moves_now else "",
        lacking=found.lacking if found else {},
    )
    return detail.model_copy(update={"waits_because": waits_because(wish, around)})


@router.post("/{job}/hold", responses=documented(404, 409, 422))
def hold(caller: User, job: JobPath) -> JobRow:
    """No agent may claim it until it is released. One that runs is saved at once."""
    with caller.writing() as db:
        job_to_change(caller, db, job)
        moves.hold(db, job, reason=f"by {caller.identity.name}", now_s=caller.now_s)
        return reads.job_row(db, job)


@router.post("/{job}/release", responses=documented(404, 409, 422))
def release(caller: User, job: JobPath) -> JobRow:
    """Let agents claim it again."""
    with caller.writing() as db:
        job_to_change(caller, db, job)
        moves.release(db, job, by=caller.identity.name, now_s=caller.now_s)
        return reads.job_row(db, job)


@router.post("/{job}/cancel", responses=documented(404, 409, 422))
def cancel(caller: User, job: JobPath) -> JobRow:
    """End it for good. What runs is killed at its agent's next heartbeat."""
    with caller.writing() as db:
        job_to_change(caller, db, job)
        moves.cancel(db, job, by=caller.identity.name, now_s=caller.now_s)
        return reads.job_row(db, job)


@router.post("/{job}/migrate", responses=documented(404, 409, 413, 422))
def migrate(caller: User, job: JobPath, wanted: Annotated[MigrateRequest, examples.A_MIGRATION]) -> JobRow:
    """Save it now, and let it go on at another node: at `to`, or anywhere but where it runs."""
    with caller.writing() as db:
        job_to_change(caller, db, job)
        migrating.ask(db, job, to=wanted.to, by=caller.identity.name, now_s=caller.now_s)
        return reads.job_row(db, job)


@router.patch("/{job}", responses=documented(404, 409, 413, 422))
def change(caller: User, job: JobPath, change: Annotated[Change, examples.A_CHANGE]) -> JobRow:
    """Change its priority: the higher, the sooner it is claimed."""
    with caller.writing() as db:
        job_to_change(caller, db, job)
        moves.set_priority(db, job, change.priority, by=caller.identity.name, now_s=caller.now_s)
        return reads.job_row(db, job)


@router.get("/{job}/log", responses=documented(404, 422))
def log(
    caller: User,
    job: JobPath,
    first: Annotated[int, Query(ge=0, le=MAX_ID, description="The first line wanted, counted from 0")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    everything: Annotated[bool, Query(alias="all", description="Also what attempts wrote that were lost")] = False,
) -> LogPage:
    """Lines that the job wrote, over all its slices."""
    with caller.reading() as db:
        own_job(caller, db, job)
        return (logs.read_all if everything else logs.read)(db, job, first, limit)


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
def output(caller: User, job: JobPath) -> StreamingResponse:
    """The folder that the job left. What arrives is whole only if all `Content-Length` bytes did."""
    with caller.reading() as db:
        row = own_job(caller, db, job)
        found = reads.output(db, job)
    if found is None:
        raise HTTPException(404, f"job {job} has no output: it is {row.outcome or row.state}")
    parcel = caller.site.storage.open(output_key(job, found.attempt), found.digest)
    part = parcel.parts.get(OUTPUT_PART)
    if part is None:
        raise ParcelBroken(f"the output of job {job} has no part {OUTPUT_PART}")
    return StreamingResponse(
        _begun(parcel.read(OUTPUT_PART)),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(part.size_bytes),
            "Content-Disposition": f'attachment; filename="job-{job}.tar"',
        },
    )


def _begun(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, the first of them already read, so that an early failure is still an answer with a status.

    Storage verifies each before it gives it out: a damaged output breaks off and can never look whole.
    """
    return itertools.chain([next(chunks, b"")], chunks)
