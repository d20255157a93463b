"""The acts of entitlements and draining that need rights beyond those of an ordinary account.

They are requests to the Slurm admin service. Every method may raise `ClusterUnavailable` (ask again later) or
`ClusterRefused` (a refusal, in one line). `submitted_s` is the time when the job was submitted, as it was seen; another
job of the same number is left alone.
"""

from collections.abc import Collection, Sequence
from typing import Protocol


class JobRights(Protocol):
    """The acts on owners' jobs that both entitlements and draining need."""

    def awake(self) -> None:
        """Say that control is there, so that drained nodes stay drained. No job is held because of it.

        Nodes stay drained for us only as long as this is said again and again.
        """
        ...

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        """Release a job that is held for us; with `top`, it goes before all others."""
        ...

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        """End a preemptible job and put it back into the queue, held."""
        ...

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        """Tell a checkpointable job to save itself and to put itself back into the queue."""
        ...


class EntitlementRights(JobRights, Protocol):
    """The further acts that entitlements need."""

    def alive(self, partitions: Collection[str]) -> None:
        """Say that control is there and enforces entitlements in these partitions.

        Jobs are held for us only as long as this is said again and again. Raises `ClusterRefused` if jobs of other
        partitions would be held, or if jobs of one of these would not be.
        """
        ...

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        """Hold a released job again; possible only before the job has started."""
        ...

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        """Write on the job why it is held."""
        ...


class DrainRights(JobRights, Protocol):
    """The further acts that draining needs."""

    def drain(self, nodes: Sequence[str], *, by: str) -> None:
        """Let nothing new start on these nodes, and mark them as ours: all of them or none."""
        ...

    def resume(self, nodes: Sequence[str]) -> None:
        """Set nodes back that carry our mark: all of them or none."""
        ...
