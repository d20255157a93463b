"""The steps by which each door finds out whether its database takes what it writes, and whether its storage answers.

`/health` reads from memory what they found, and so answers at once whatever hangs. Both programs have them, also one
that does not lead.
"""

from gleaner.agent.checkpoints.storage_root import storage_number
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import Loop
from gleaner.control.queue import leader
from gleaner.control.queue.database import transaction

CHECK_S = 5.0


def own_checks(state: ControlState) -> tuple[Loop, Loop]:
    """Return the two loops."""

    def write(_now_s: float) -> None:
        with transaction(state.engine) as db:
            leader.try_write(db)

    def look(_now_s: float) -> None:
        storage_number(state.settings.storage.folder)

    return (
        Loop(state.own_step("database"), CHECK_S, write, "the database takes nothing", leader_only=False),
        Loop(state.own_step("storage"), CHECK_S, look, "the storage does not answer", leader_only=False),
    )
