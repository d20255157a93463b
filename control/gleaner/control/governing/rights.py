"""What governing needs rights for, beyond those of an ordinary account: the steward's requests."""

from collections.abc import Collection
from typing import Protocol


class Rights(Protocol):
    """Every method may raise `GatewayUnavailable` (ask again later) or `GatewayRefused` (a no, in one line).

    `submitted_s`: when the job was submitted, as it was seen; one of the same number that was not is left alone.
    """

    def alive(self, partitions: Collection[str]) -> None:
        """We are there and govern these: jobs are held for us only as long as this is said again and again.

        A no if jobs of other partitions would be held, or not those of all of these.
        """
        ...

    def awake(self) -> None:
        """We are there, and no more: no job is held for that."""
        ...

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        """Let a job that is held for us start; `top`: before all others."""
        ...

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        """Take a release back; only before the job has started."""
        ...

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        """Say on the job why it is held."""
        ...

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        """End a preemptible job and put it back into the queue, held."""
        ...

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        """Tell a checkpointable job to save itself, and to put itself back into the queue."""
        ...
