"""Whether control works: the only answer that needs no token."""

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from gleaner.control.api.shapes import Health
from gleaner.control.queue import leader
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.site import Site

router = APIRouter(tags=["health"])

_DISTRIBUTION = "gleaner-hpc"


def installed_version() -> str:
    """The installed distribution's version; `unknown` when run from files that were never installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


@router.get("/health", responses={503: {"model": Health, "description": "The queue's database does not work"}})
def health(request: Request, response: Response) -> Health:
    """Whether control answers, leads, and reaches its database."""
    site: Site = request.app.state.site
    queue = "ok"
    try:
        with snapshot(site.engine) as db:
            leader.leader(db, now=site.database_clock())
    except QueueError as error:
        queue = str(error)
    except SQLAlchemyError:
        queue = "the database failed; control's log says how"
    if queue != "ok":
        response.status_code = 503
    return Health(
        status="ok" if queue == "ok" else "failing", leader=site.is_leader, version=installed_version(), queue=queue
    )
