"""Agents' reports of their attempts. A report of an attempt that is not current is refused (409), and changes nothing.

Repeating a report word for word is no error: the answer to the first may have been lost.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, HTTPException
from sqlalchemy import Connection

from gleaner.agent.messages import Checkpointed, Completed, LogLines, Returned, Saved
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, SomeAgent
from gleaner.control.api.problems import documented
from gleaner.control.models.base import MAX_ID
from gleaner.control.queue import attempt_reports, logs, node_rates, queries
from gleaner.control.queue.errors import Refused

router = APIRouter(prefix="/v1/jobs/{job}/attempts/{attempt}", tags=["attempts"])

JobPath = Annotated[int, examples.an_id("The job's id", most=MAX_ID)]
AttemptPath = Annotated[int, examples.an_id("The attempt's number", most=2**31 - 1)]

Report = Checkpointed | Saved | Completed | Returned

_ANSWERS = documented(404, 409, 413, 422)


@contextmanager
def _own_attempt(caller: Caller, job: int, attempt: int, report: str) -> Generator[Connection]:
    """Yield a transaction on an attempt of the calling agent. Raise 403 for another agent's attempt."""
    try:
        with caller.writing() as db:
            if queries.attempt_agent(db, job, attempt) != caller.identity.name:
                raise HTTPException(403, f"attempt {attempt} of job {job} belongs to another agent")
            yield db
    except Refused:
        caller.meters.refused.labels(report).inc()
        raise


def _take(caller: Caller, job: int, attempt: int, report: Report, move: Callable[..., bool], *, verb: str) -> None:
    """Bring the report into the queue. If it is news, learn what it measured."""
    with _own_attempt(caller, job, attempt, verb) as db:
        if move(db, job, attempt, report, now_s=caller.now_s):
            node_rates.record_report(db, job, attempt, report, now_s=caller.now_s)
            caller.meters.reported(report)
    if not isinstance(report, Checkpointed):
        caller.state.usage_cache.record_end(job)


@router.post("/saved", status_code=204, responses=_ANSWERS)
def saved(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Saved, examples.A_SAVE]) -> None:
    """Record that the attempt ended with a whole, published checkpoint."""
    _take(caller, job, attempt, report, attempt_reports.record_save, verb="saved")


@router.post("/checkpointed", status_code=204, responses=_ANSWERS)
def checkpointed(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Checkpointed, examples.A_CHECKPOINT]
) -> None:
    """Record that the attempt published a whole checkpoint and goes on computing."""
    _take(caller, job, attempt, report, attempt_reports.record_checkpoint, verb="checkpointed")


@router.post("/completed", status_code=204, responses=_ANSWERS)
def completed(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Completed, examples.A_COMPLETION]
) -> None:
    """Record that the workload exited by itself."""
    _take(caller, job, attempt, report, attempt_reports.record_completion, verb="completed")


@router.post("/return", status_code=204, responses=_ANSWERS)
def returned(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Returned, examples.A_RETURN]
) -> None:
    """Record that the attempt ended without a new checkpoint and without an exit of the workload."""
    _take(caller, job, attempt, report, attempt_reports.record_return, verb="return")


@router.post("/log", status_code=204, responses=_ANSWERS)
def log(caller: SomeAgent, job: JobPath, attempt: AttemptPath, lines: Annotated[LogLines, examples.SOME_LINES]) -> None:
    """Store lines of the job's output. Lines that are there already change nothing."""
    with _own_attempt(caller, job, attempt, "log") as db:
        logs.append(db, job, attempt, lines, most_bytes=caller.state.settings.queue.log_bytes_per_job)
