"""The health of control: the only answer that needs no token.

The answer comes from memory, so that it never waits for a disk, database or program that hangs. One step of control
(`own_checks`) tests the database by writing to it, and another step reads the storage.
"""

from fastapi import APIRouter, Request, Response

from gleaner.agent.common.installed_version import installed_version
from gleaner.control.control_state import ControlState
from gleaner.control.models.health import Health

router = APIRouter(tags=["health"])


@router.get("/health", responses={503: {"model": Health, "description": "The database or the storage does not work"}})
async def health(request: Request, response: Response) -> Health:
    """Return the health of control: whether it leads, reaches its database, and runs its steps without failures."""
    state: ControlState = request.app.state.control_state
    queue, storage = state.trouble("database"), state.trouble("storage")
    works = queue == storage == "ok"
    if not works:
        response.status_code = 503
    failing = state.faults.now
    return Health(
        status="ok" if works and not failing else "failing",
        leader=state.is_leader or (state.follows and state.has_leader),
        has_leader=state.is_leader or state.has_leader,
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
        agent_program=state.settings.cluster.agent_command[0],
        agent_logs=str(state.settings.cluster.agent_logs),
        round_length_s=state.settings.rounds.length_s,
        least_slice_s=state.settings.rounds.least_slice_s,
    )
