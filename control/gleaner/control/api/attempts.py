"""Agents' reports about their attempts. A report about an attempt that is not current is refused (409) and changes
nothing.

Repeating exactly the same report is not an error, because the answer to the first one might have been lost.
"""

from typing import Annotated

from fastapi import APIRouter

from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.job.inputs import input_key
from gleaner.agent.messages import (
    Checkpointed,
    Completed,
    InputFetched,
    InputFixed,
    LogLines,
    Returned,
    Saved,
)
from gleaner.control.api.access import Caller, SomeAgent
from gleaner.control.api.examples import JobPath, an_id
from gleaner.control.api.problems import documented
from gleaner.control.api.storage_threads import READS_STORAGE
from gleaner.control.queue import attempt_reports, attempts, inputs, queries
from gleaner.control.queue.attempt_reports import AttemptReport
from gleaner.control.queue.errors import Conflict

router = APIRouter(prefix="/v1/jobs/{job}/attempts/{attempt}", tags=["attempts"])

AttemptPath = Annotated[int, an_id("The attempt's number", most=2**31 - 1)]

_ANSWERS = documented(404, 409, 413, 422)


def _take(caller: Caller, job: int, attempt: int, report: AttemptReport, *, verb: str) -> None:
    most_bytes = caller.state.settings.queue.log_bytes_per_job
    try:
        with caller.writing() as db:
            is_news = attempt_reports.record_report(
                db, job, attempt, report, agent=caller.name, most_log_bytes=most_bytes, now_s=caller.now_s
            )
    except Conflict:
        caller.meters.refused.labels(verb).inc()
        raise
    if is_news and not isinstance(report, LogLines):
        caller.meters.reported(report)


@router.post("/saved", status_code=204, responses=_ANSWERS)
def saved(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Saved) -> None:
    """Record that the attempt ended with a complete, published checkpoint."""
    _take(caller, job, attempt, report, verb="saved")


@router.post("/checkpointed", status_code=204, responses=_ANSWERS)
def checkpointed(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Checkpointed) -> None:
    """Record that the attempt published a complete checkpoint and continues to compute."""
    _take(caller, job, attempt, report, verb="checkpointed")


@router.post("/completed", status_code=204, responses=_ANSWERS)
def completed(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Completed) -> None:
    """Record that the workload exited on its own."""
    _take(caller, job, attempt, report, verb="completed")


@router.post("/return", status_code=204, responses=_ANSWERS)
def returned(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Returned) -> None:
    """Record that the attempt ended with neither a new checkpoint nor an exit of the workload."""
    _take(caller, job, attempt, report, verb="return")


@router.post("/input", responses=documented(404, 409, 413, 422, 502))
@READS_STORAGE
def fix_input(caller: SomeAgent, job: JobPath, attempt: AttemptPath, fetched: InputFetched) -> InputFixed:
    """Fix the content of an input from a URL.

    Return the content that was fixed first, or null if no content is stored yet. The agent then stores its own content
    and asks again.

    All later slices and all jobs of the same submission read this content.
    """
    state = caller.state
    if fetched.digest is not None:
        with caller.reading() as db:
            group = queries.job_row(db, job).group
        try:
            state.storage.open(input_key(group, fetched.content), fetched.digest)
        except ArchiveBroken:  # it might not be visible yet
            fetched = fetched.model_copy(update={"digest": None})
    with caller.writing() as db:
        row = attempts.running_job(db, job, attempt, caller.name)
        group_bytes = state.settings.inputs.group_bytes
        fixed = inputs.record_fetched(db, row, fetched, group_bytes=group_bytes, now_s=caller.now_s)
    return InputFixed(input=fixed)


@router.post("/log", status_code=204, responses=_ANSWERS)
def log(caller: SomeAgent, job: JobPath, attempt: AttemptPath, lines: LogLines) -> None:
    """Store lines of the job's output. Lines that are already stored do not change."""
    _take(caller, job, attempt, lines, verb="log")
