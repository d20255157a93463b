"""Whether control works: the only answer that needs no token.

It comes from memory. However many ask, one at a time makes control look at its database, in a thread of its own.
"""

import asyncio
from importlib.metadata import PackageNotFoundError, version

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from gleaner.control.api.shapes import Health
from gleaner.control.queue import leader
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.site import Site

FRESH_S = 1.0
"""What was seen of the database counts for so long."""
PATIENCE_S = 2.0
"""Nobody waits longer for it than this."""

router = APIRouter(tags=["health"])

_DISTRIBUTION = "gleaner-hpc"


def installed_version() -> str:
    """The installed distribution's version; `unknown` when run from files that were never installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


class Pulse:
    """How the database was when it was last looked at. Only the event loop's thread touches it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._limiter = CapacityLimiter(1)
        self._looking: asyncio.Task[str] | None = None
        self._found = ""
        self._found_s = float("-inf")

    async def queue(self) -> str:
        """`ok`, or what is wrong with the database."""
        loop = asyncio.get_running_loop()
        if 0 <= loop.time() - self._found_s < FRESH_S and self._found == "ok":
            return self._found
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look())
        done, _ = await asyncio.wait({self._looking}, timeout=PATIENCE_S)
        if not done:
            return f"the database has not answered for {PATIENCE_S:.0f} s"
        return self._found

    async def _look(self) -> str:
        self._found = await run_sync(self._ask, limiter=self._limiter)
        self._found_s = asyncio.get_running_loop().time()
        return self._found

    def _ask(self) -> str:
        try:
            with snapshot(self._site.engine) as db:
                leader.leader(db, now=self._site.database_clock())
        except QueueError as error:
            return str(error)
        except SQLAlchemyError:
            return "the database failed; control's log says how"
        return "ok"


@router.get("/health", responses={503: {"model": Health, "description": "The queue's database does not work"}})
async def health(request: Request, response: Response) -> Health:
    """Whether control answers, leads, and reaches its database."""
    site: Site = request.app.state.site
    pulse: Pulse = request.app.state.pulse
    queue = await pulse.queue()
    if queue != "ok":
        response.status_code = 503
    return Health(
        status="ok" if queue == "ok" else "failing", leader=site.is_leader, version=installed_version(), queue=queue
    )
