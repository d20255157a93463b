"""The targets to which the results of jobs are delivered, and the deliveries."""

from collections.abc import Iterable
from enum import StrEnum

from gleaner.control.models.base import Reply


class DeliveryPhase(StrEnum):
    """The phases of a delivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up. The result is in the storage all the same."""


class DeliveryRow(Reply):
    """The delivery of a job's result."""

    to: str
    phase: DeliveryPhase
    tries: int
    """The number of times that an agent has begun with it. It guards the agents' reports."""
    agent: str | None
    """The agent that is at it."""
    problem: str
    """Why the latest try failed; empty if it has not."""
    files: int | None
    size_bytes: int | None
    ended_s: float | None
    """The time at which all was there, or at which it was given up."""

    @property
    def trouble(self) -> str:
        """Return the problem of a delivery that has not ended, in words; "" if it has none."""
        return f"the last try failed: {self.problem}" if self.problem else ""


def for_group(targets: Iterable[str], group: str) -> tuple[str, ...]:
    """Return the allowed targets for one group: `{group}` in them is its name.

    >>> for_group(["file:///data/{group}/"], "atlas")
    ('file:///data/atlas/',)
    """
    return tuple(entry.replace("{group}", group) for entry in targets)
