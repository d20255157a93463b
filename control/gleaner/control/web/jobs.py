"""Jobs: the list, the page of one job, and its log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api import decisions, jobs
from gleaner.control.api.access import Caller, User
from gleaner.control.api.examples import JobPath
from gleaner.control.input_errors import one_line
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.models.jobs import AttemptRow, CheckpointRow, Ending, JobDetail, LogPage
from gleaner.control.models.searches import JobSearch, Search
from gleaner.control.queue import logs, node_history
from gleaner.control.web.gate import ROOT
from gleaner.control.web.rendering import page
from gleaner.control.web.slice_chart import slice_chart

router = APIRouter(prefix=f"{ROOT}/jobs")

LINES_A_PAGE = 500
LINES_AT_ONCE = 10_000
LAST_LINES = 20
DECISIONS = 20
REASONS: Mapping[str, str] = {
    Ending.LOST: "its agent was no longer heard from",
    Ending.FORGOTTEN: "the answer to its claim never reached its agent",
    Ending.RETURNED: "no reason known",
}


@router.get("")
def job_list(request: Request, caller: User, wanted: Annotated[JobSearch, Query()]) -> Response:
    """Return the jobs that the caller is allowed to see."""
    wanted = wanted.model_copy(update={"group": caller.group or wanted.group})
    return page(request, "jobs.html", found=jobs.list_jobs(caller, wanted), wanted=wanted)


@router.get("/{job}")
def show_job(request: Request, caller: User, job: JobPath) -> Response:
    """Return all known facts about one job."""
    detail = jobs.show(caller, job)
    about = decisions.about(caller, f"job {job}", DECISIONS)
    return page(
        request,
        "job.html",
        detail=detail,
        row=detail.job,
        chart=slice_chart(detail, now_s=caller.now_s),
        decisions=about,
        last_lines=jobs.log(caller, job, _begin_of_last(caller, job, LAST_LINES), LAST_LINES),
        because=_because(about, f"job {job}"),
        saved=last_save(detail),
        lost_s=_lost_s(caller, job),
        reasons={each.attempt: ending_reason(each) for each in detail.attempts},
    )


@dataclass(frozen=True, slots=True)
class LastSave:
    """The latest checkpoint of a job, and the slice that wrote it."""

    checkpoint: CheckpointRow
    writer: AttemptRow


def last_save(detail: JobDetail) -> LastSave | None:
    """Return the latest save that is kept, or None if there is none."""
    if not detail.checkpoints:
        return None
    last = detail.checkpoints[-1]
    writer = next((each for each in detail.attempts if each.attempt == last.attempt), None)
    return None if writer is None else LastSave(last, writer)


def ending_reason(slice_: AttemptRow) -> str:
    """Return the reason for the end of a slice. If the slice has no detail, the reason follows from the kind of its
    ending, where possible."""
    return slice_.detail or REASONS.get(slice_.ending or "", "")


def _lost_s(caller: Caller, job: int) -> Mapping[int, float]:
    with caller.reading() as db:
        return node_history.lost_by_attempt(db, job)


def _begin_of_last(caller: Caller, job: int, lines: int) -> int:
    """Return the number of the first of the last `lines` lines of a log."""
    with caller.reading() as db:
        last = logs.last_number(db, job)
    return 0 if last is None else max(0, last + 1 - lines)


def _because(about: list[DecisionRow], subject: str) -> dict[int, str]:
    """Return the sentence of each decision about this job."""
    found: dict[int, str] = {}
    for decision in about:
        reasons: object = decision.answer.get("because")
        if isinstance(reasons, dict):
            said = cast("Mapping[str, object]", reasons).get(subject, "")
            found[decision.id] = one_line(str(said))
    return found


class LogSearch(Search):
    """The requested part of a log. Without `first`, the end of the log is shown and kept up to date."""

    first: int | None = Field(default=None, ge=0, le=MAX_ID)
    everything: bool = Field(default=False, alias="all")


@router.get("/{job}/log")
def job_log(request: Request, caller: User, job: JobPath, wanted: Annotated[LogSearch, Query()]) -> Response:
    """Return a page of the lines that a job has written, or only those that contain a text."""
    first = wanted.first
    if first is None:
        first = 0 if wanted.everything else _begin_of_last(caller, job, LINES_A_PAGE)
    lines = jobs.log(caller, job, first, LINES_A_PAGE, wanted.everything)
    with caller.reading() as db:
        found = logs.find(db, job, wanted.text, LINES_A_PAGE) if wanted.text else []
    return page(
        request, "log.html", job=job, lines=lines, first=first, wanted=wanted, found=found, lines_a_page=LINES_A_PAGE
    )


@router.get("/{job}/log.txt")
def log_file(caller: User, job: JobPath, wanted: Annotated[LogSearch, Query()]) -> StreamingResponse:
    """Return the log as a text file."""
    part = jobs.log(caller, job, 0, LINES_AT_ONCE, wanted.everything)

    def parts(part: LogPage) -> Iterator[str]:
        yield "".join(f"{line}\n" for line in part.lines)
        while part.next is not None:
            part = jobs.log(caller, job, part.next, LINES_AT_ONCE, wanted.everything)
            yield "".join(f"{line}\n" for line in part.lines)

    name = f'attachment; filename="job-{job}.log"'
    return StreamingResponse(parts(part), media_type="text/plain", headers={"Content-Disposition": name})


router.get("/{job}/results.tar")(jobs.output)
