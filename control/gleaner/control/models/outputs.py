"""The results of jobs, the targets to which they are delivered, and the deliveries."""

from collections.abc import Iterable
from enum import StrEnum

from gleaner.control.models.base import Reply
from gleaner.control.states import Outcome, State


class ResultRow(Reply):
    """The identity of a job's result, and its place. `digest` is None if the job has left no result."""

    job: int
    name: str
    index: int | None
    state: State
    outcome: Outcome | None
    attempt: int
    digest: str | None
    storage: str
    """The storage folder of control, for callers on a machine that sees it."""


class DeliveryPhase(StrEnum):
    """The phases of a delivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """The delivery was given up. The result is still in the storage."""


class DeliveryRow(Reply):
    """The delivery of a job's result."""

    to: str
    phase: DeliveryPhase
    tries: int
    """The number of tries that agents have begun. Only a report of the latest try is accepted."""
    agent: str | None
    """The agent that is delivering the result."""
    problem: str
    """The reason why the latest try failed, or "" if it did not."""
    files: int | None
    size_bytes: int | None
    ended_s: float | None
    """The time at which the delivery was complete or was given up."""

    @property
    def trouble(self) -> str:
        """Return, in words, the problem of a delivery that has not ended, or "" if it has none."""
        return f"the last try failed: {self.problem}" if self.problem else ""


def for_group(targets: Iterable[str], group: str) -> tuple[str, ...]:
    """Return the allowed targets for one group, with `{group}` replaced by its name.

    >>> for_group(["file:///data/{group}/"], "atlas")
    ('file:///data/atlas/',)
    """
    return tuple(entry.replace("{group}", group) for entry in targets)
