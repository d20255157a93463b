"""The part of a job's folder that is kept, and the target to which it is delivered."""

from enum import StrEnum

from gleaner.control.models.base import Reply


class DeliveryPhase(StrEnum):
    """The phases of a delivery."""

    WAITING = "waiting"
    TAKEN = "taken"
    """An agent is at it."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up. The result is in the storage all the same."""


class DeliveryRow(Reply):
    """The delivery of a job's result."""

    to: str
    phase: DeliveryPhase
    tries: int
    """The number of times that an agent has begun with it."""
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
