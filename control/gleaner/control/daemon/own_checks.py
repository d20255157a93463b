"""The steps by which each program checks that its database accepts writes and that its storage answers.

`/health` reads the results from memory, so it answers at once even if the database or the storage hangs. The programs
of both ports run these steps, whether or not they lead.
"""

import shutil
from pathlib import Path

from gleaner.agent.checkpoints.storage_root import storage_number
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import Loop
from gleaner.control.queue import leader
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import QueueBusy

CHECK_S = 2.0
LEAST_FREE_BYTES = 16 * 2**20
"""With less free space, the disk counts as full. SQLite still has room for small changes in its file long after that,
while larger ones fail."""


def own_checks(state: ControlState) -> tuple[Loop, Loop]:
    """Return the two loops."""

    def write(_now_s: float) -> None:
        with transaction(state.engine) as db:
            leader.try_write(db)
            state.has_leader = leader.leader(db, now=state.database_clock()) is not None
        if state.engine.dialect.name == "sqlite":
            free_bytes = shutil.disk_usage(Path(str(state.engine.url.database)).parent).free
            if free_bytes < LEAST_FREE_BYTES:
                raise QueueBusy(f"the disk of the queue's database is full: {free_bytes // 2**20} MiB are left")

    def look(_now_s: float) -> None:
        storage_number(state.settings.storage.folder)

    return (
        Loop(state.own_step("database"), CHECK_S, write, leader_only=False),
        Loop(state.own_step("storage"), CHECK_S, look, leader_only=False),
    )
