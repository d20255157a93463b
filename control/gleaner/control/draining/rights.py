"""What draining needs rights for, beyond those of an ordinary account: the steward's requests."""

from collections.abc import Sequence
from typing import Protocol


class NodeRights(Protocol):
    """Every method may raise `GatewayUnavailable` (ask again later) or `GatewayRefused` (a no, in one line).

    `submitted_s`: when the job was submitted, as it was seen; one of the same number that was not is left alone.
    """

    def awake(self) -> None:
        """We are there: nodes stay drained for us only as long as this is said again and again."""
        ...

    def drain(self, nodes: Sequence[str], *, by: str) -> None:
        """Let nothing new start on these nodes, all or none, and mark them as ours."""
        ...

    def resume(self, nodes: Sequence[str]) -> None:
        """Set nodes back that carry our mark, all or none."""
        ...

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        """End a preemptible job and put it back into the queue, held."""
        ...

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        """Tell a checkpointable job to save itself, and to put itself back into the queue."""
        ...

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        """Let a job that is held for us start; `top`: before all others."""
        ...
