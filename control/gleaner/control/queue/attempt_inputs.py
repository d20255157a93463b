"""The inputs of a running attempt: what its agent has fetched, asks for, or found broken.

All functions raise `Unknown`, `NotYours` or `NotCurrent` if the attempt is not the agent's, or does not run any more.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from gleaner.agent.messages import InputFetched, StoredInput
from gleaner.control.queue import attempts, inputs


def record_fetched(
    db: Connection, job: int, attempt: int, fetched: InputFetched, *, agent: str, group_bytes: int, now_s: float
) -> StoredInput | None:
    """Let the job read what this attempt has fetched from a URL, unless other bytes were fixed before.

    Return what counts, or None if it is to be stored first. Raises as `inputs.record_fetched` does, too.
    """
    row = attempts.running_job(db, job, attempt, agent)
    return inputs.record_fetched(db, job, fetched, group=row.group, group_bytes=group_bytes, now_s=now_s)


def find(db: Connection, job: int, attempt: int, name: str, *, agent: str) -> tuple[str, Mapping[str, Any]]:
    """Return the group of the attempt's job, and one of its inputs as its spec keeps it."""
    row = attempts.running_job(db, job, attempt, agent)
    return row.group, inputs.find(db, job, name)


def record_broken(db: Connection, job: int, attempt: int, broken: InputFetched, *, agent: str) -> None:
    """Record that one of the attempt's inputs is not whole in the storage."""
    row = attempts.running_job(db, job, attempt, agent)
    inputs.record_broken(db, job, broken, group=row.group)
