"""What agents report of their attempts. An attempt that is not the current one is refused (409), and nothing changes.

Repeating a report word for word is no error: the answer to the first may have been lost.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, HTTPException
from sqlalchemy import Connection

from gleaner.agent.protocol import Checkpointed, Completed, GivenBack, LogLines, Saved
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, SomeAgent
from gleaner.control.api.problems import documented
from gleaner.control.api.shapes import MAX_ID
from gleaner.control.queue import logs, moves, rates, reads
from gleaner.control.queue.errors import Refused

router = APIRouter(prefix="/v1/jobs/{job}/attempts/{attempt}", tags=["attempts"])

JobPath = Annotated[int, examples.an_id("The job's id", most=MAX_ID)]
AttemptPath = Annotated[int, examples.an_id("The attempt's number", most=2**31 - 1)]

Report = Checkpointed | Saved | Completed | GivenBack

_ANSWERS = documented(404, 409, 413, 422)


@contextmanager
def _own_attempt(caller: Caller, job: int, attempt: int, report: str) -> Generator[Connection]:
    """A transaction on an attempt of the calling agent; another agent's is not allowed (403)."""
    try:
        with caller.writing() as db:
            if reads.attempt_agent(db, job, attempt) != caller.identity.name:
                raise HTTPException(403, f"attempt {attempt} of job {job} belongs to another agent")
            yield db
    except Refused:
        caller.meters.refused.labels(report).inc()
        raise


def _take(caller: Caller, job: int, attempt: int, report: Report, move: Callable[..., bool], *, verb: str) -> None:
    """Have the report moved into the queue, and learn what it measured, unless it was said before."""
    with _own_attempt(caller, job, attempt, verb) as db:
        if move(db, job, attempt, report, now_s=caller.now_s):
            rates.learn(db, job, attempt, report, rules=caller.site.settings.rates.rules, now_s=caller.now_s)
            caller.meters.reported(report)
    if not isinstance(report, Checkpointed):
        caller.site.tally.ended(job)


@router.post("/saved", status_code=204, responses=_ANSWERS)
def saved(caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Saved, examples.A_SAVE]) -> None:
    """The attempt ended with a whole, published checkpoint generation."""
    _take(caller, job, attempt, report, moves.saved, verb="saved")


@router.post("/checkpointed", status_code=204, responses=_ANSWERS)
def checkpointed(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Checkpointed, examples.A_CHECKPOINT]
) -> None:
    """The attempt published a whole checkpoint generation and goes on computing."""
    _take(caller, job, attempt, report, moves.checkpointed, verb="checkpointed")


@router.post("/completed", status_code=204, responses=_ANSWERS)
def completed(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[Completed, examples.A_COMPLETION]
) -> None:
    """The workload exited by itself."""
    _take(caller, job, attempt, report, moves.completed, verb="completed")


@router.post("/given-back", status_code=204, responses=_ANSWERS)
def given_back(
    caller: SomeAgent, job: JobPath, attempt: AttemptPath, report: Annotated[GivenBack, examples.A_RETURN]
) -> None:
    """The attempt ended without a new generation and without an exit of the workload."""
    _take(caller, job, attempt, report, moves.given_back, verb="given-back")


@router.post("/log", status_code=204, responses=_ANSWERS)
def log(caller: SomeAgent, job: JobPath, attempt: AttemptPath, lines: Annotated[LogLines, examples.SOME_LINES]) -> None:
    """Lines of the job's output. Sending lines again that are already there changes nothing."""
    with _own_attempt(caller, job, attempt, "log") as db:
        logs.append(db, job, attempt, lines, most_bytes=caller.site.settings.queue.log_bytes_per_job)
