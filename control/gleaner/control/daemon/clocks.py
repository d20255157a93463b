"""A guard against wrong clocks. It decides whether anything can be removed now because of its age."""

import os
from pathlib import Path

import structlog

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.checkpoints.storage_root import DRAFTS
from gleaner.control.control_state import ControlState
from gleaner.control.queue import leader, queries
from gleaner.control.queue.database import snapshot
from gleaner.control.settings import DAY_S

AFTER_START_S = 3600.0
"""The time after control's start during which nothing is removed because of its age. A machine might set its clock only
some time after it starts."""

_log = structlog.get_logger(__name__)


def may_remove_by_age(state: ControlState, now_s: float) -> bool:
    """Return False shortly after the start, and while another clock differs from this machine's by more than a day.

    The other clocks are those of the database, of the storage, and of the program that recorded the newest heartbeat.
    Raises `QueueError` or `StorageError`.
    """
    if state.steady_clock() < state.began_s + AFTER_START_S:
        return False
    with snapshot(state.engine) as db:
        of_database_s = leader.read_clock(db, state.database_clock())
        lease_until_s = queries.last_lease_s(db)
    heartbeat_s = now_s if lease_until_s is None else lease_until_s - state.settings.queue.lease_s
    times_s = {"database": of_database_s, "storage": _storage_now_s(state), "heartbeat": heartbeat_s}
    wrong = {name: round(at_s - now_s) for name, at_s in times_s.items() if abs(at_s - now_s) > DAY_S}
    if wrong:
        _log.warning("nothing is removed for its age: clocks differ by more than a day", seconds=wrong)
    return not wrong


def _storage_now_s(state: ControlState) -> float:
    drafts = Path(state.settings.storage.folder, DRAFTS)
    try:
        os.utime(drafts)  # without explicit times, the file server's clock is used
        return drafts.stat().st_mtime
    except OSError as error:
        raise StorageError(f"{drafts}: {error.strerror}") from error
