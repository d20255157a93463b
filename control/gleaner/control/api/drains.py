"""The routes that drain nodes for maintenance and resume them. Only admins can use these routes.

A drain lasts until all its jobs are saved. Therefore a request only starts the drain, and its answer contains a number
by which the progress can be followed.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api import examples
from gleaner.control.api.access import Admin, Caller
from gleaner.control.api.problems import documented
from gleaner.control.hostlist import chosen
from gleaner.control.models.drains import DrainRequest, DrainRow, DrainTask, ResumeRequest
from gleaner.control.queue import drains
from gleaner.control.queue.errors import Invalid
from gleaner.control.slurm_admin.request import MOST_NODES

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.post("/nodes/drain", status_code=202, responses=documented(409, 413, 422))
def drain(caller: Admin, asked: Annotated[DrainRequest, examples.A_DRAIN]) -> DrainRow:
    """Drain these nodes, so that nothing new starts there, and the jobs there are saved and requeued.

    If a job there cannot be saved, the nodes are resumed.
    """
    task = DrainTask.DRY_RUN if asked.dry_run else DrainTask.DRAIN
    return _ask(caller, task, asked)


@router.post("/nodes/resume", status_code=202, responses=documented(409, 413, 422))
def resume(caller: Admin, asked: Annotated[ResumeRequest, examples.A_RESUME]) -> DrainRow:
    """Resume nodes that Gleaner has drained. A node that was drained by other means is left alone.

    A drain that has not marked its nodes yet is withdrawn.
    """
    return _ask(caller, DrainTask.RESUME, DrainRequest(nodes=asked.nodes))


@router.get("/drains", responses=documented(422))
def list_drains(caller: Admin, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> list[DrainRow]:
    """Return the latest requests, the newest first."""
    with caller.reading() as db:
        return list(drains.latest(db, limit))


@router.get("/drains/{drain}", responses=documented(404, 422))
def show(caller: Admin, drain: Annotated[int, examples.an_id("Its number", most=MAX_ID)]) -> DrainRow:
    """Return the state of one drain."""
    with caller.reading() as db:
        return drains.one(db, drain)


def _ask(caller: Caller, task: DrainTask, asked: DrainRequest) -> DrainRow:
    try:
        nodes = chosen(asked.nodes, at_most=MOST_NODES)
    except ValueError as error:
        raise Invalid(f"nodes: {error}") from error
    with caller.writing() as db:
        number = drains.ask(
            db,
            task=task,
            nodes=nodes,
            by=caller.name,
            now_s=caller.now_s,
            spanning=asked.spanning,
            leaves_others=asked.leave_others,
        )
        return drains.one(db, number)
