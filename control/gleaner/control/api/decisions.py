"""Stored decisions and their inputs. A user sees decisions about jobs of the user's group, and an admin sees all."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import Connection

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api.access import Caller, User
from gleaner.control.api.examples import an_id
from gleaner.control.api.problems import documented
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.queue import decisions, queries
from gleaner.control.queue.decisions import StoredDecision
from gleaner.control.queue.errors import NotFound

router = APIRouter(prefix="/v1/decisions", tags=["decisions"])

Subject = Annotated[
    str,
    Query(
        pattern=r"^(job [1-9][0-9]{0,14}|slurm [1-9][0-9_+.]{0,39})$",
        description="`job 7` of the queue, or `slurm 4711` of the scheduler",
    ),
]


@router.get("", responses=documented(422))
def about(caller: User, subject: Subject, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> list[DecisionRow]:
    """Return the latest decisions about a job, the newest first, or none if the caller is not allowed to see it."""
    with caller.reading() as db:
        found = decisions.latest(db, subject, limit)
        return [each for each in found if _may_see(caller, db, each)]


@router.get("/{decision}", responses=documented(404, 422))
def show(caller: User, decision: Annotated[int, an_id("The decision's number", most=MAX_ID)]) -> DecisionRow:
    """Return one decision with its whole input."""
    with caller.reading() as db:
        found = decisions.one(db, decision)
        if not _may_see(caller, db, found):
            raise HTTPException(403, f"decision {decision} is about jobs of other groups")
        return found


def _may_see(caller: Caller, db: Connection, found: StoredDecision) -> bool:
    return caller.group is None or any(_group(db, *each) == caller.group for each in found.groups.items())


def _group(db: Connection, subject: str, recorded: str | None) -> str | None:
    kind, _, number = subject.partition(" ")
    if recorded is not None or kind != "job":
        return recorded
    try:
        return queries.job_row(db, int(number)).group
    except NotFound:
        return None
