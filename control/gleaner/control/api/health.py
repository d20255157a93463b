"""The health of control: the only answer that needs no token.

The answer comes from memory: what hangs does not make it wait. However many callers ask, control looks at its database
for one at a time, in a thread of its own. A step of control (`own_checks`) writes to it, and another reads the storage.
"""

import asyncio

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from gleaner.agent.common.installed_version import installed_version
from gleaner.control.control_state import ControlState
from gleaner.control.models.health import Health
from gleaner.control.queue import leader
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import QueueError

FRESH_S = 1.0
"""The time for which an observation of the database is valid."""
PATIENCE_S = 2.0
"""The longest time that a caller waits for an observation of the database."""

router = APIRouter(tags=["health"])


class Pulse:
    """The last observation of the database. Only the event loop's thread touches it, but for `has_leader`."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._limiter = CapacityLimiter(1)
        self._looking: asyncio.Task[str] | None = None
        self._found = ""
        self.has_leader = False
        """True if a control program led at the last look."""
        self._found_s = float("-inf")

    async def queue(self) -> str:
        """Return `ok`, or what is wrong with the database."""
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
            with snapshot(self._state.engine) as db:
                self.has_leader = leader.leader(db, now=self._state.database_clock()) is not None
        except QueueError as error:
            return str(error)
        except SQLAlchemyError:
            return "the database failed; control's log says how"
        return "ok"


@router.get("/health", responses={503: {"model": Health, "description": "The database or the storage does not work"}})
async def health(request: Request, response: Response) -> Health:
    """Return the health of control: it answers, leads, reaches its database, and its steps do not fail."""
    state: ControlState = request.app.state.control_state
    pulse: Pulse = request.app.state.pulse
    queue, storage = await pulse.queue(), state.trouble("storage")
    if queue == "ok":
        queue = state.trouble("database")
    works = queue == storage == "ok"
    if not works:
        response.status_code = 503
    failing = state.faults.now
    return Health(
        status="ok" if works and not failing else "failing",
        leader=state.is_leader or (state.follows and pulse.has_leader),
        has_leader=state.is_leader or pulse.has_leader,
        version=installed_version(),
        queue=queue,
        storage=storage,
        failing=failing,
        step_ages_s=state.loop_ages_s,
        step_every_s=dict(sorted(state.faults.every_s.copy().items())),
        now_s=state.clock(),
        started_s=state.started_s,
        last_poll_age_s=None if state.cluster is None else max(0.0, state.clock() - state.cluster.read_s),
        storage_id=state.storage_number.id,
        storage_inode=state.storage_number.inode,
        storage_changed_s=state.storage_number.changed_s,
        agent_program="" if state.settings.cluster.backend == "local" else state.settings.cluster.agent_command[0],
        agent_logs="" if state.settings.cluster.backend == "local" else str(state.settings.cluster.agent_logs),
        round_length_s=state.settings.rounds.length_s,
        least_slice_s=state.settings.rounds.least_slice_s,
    )
