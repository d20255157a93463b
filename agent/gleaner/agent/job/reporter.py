"""The interface to which an executor reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gleaner.agent.job.lifecycle import JobLimit
from gleaner.agent.messages import Checkpoint, Output, ReturnReason, SaveMeasurement, Slice
from gleaner.agent.reporting.job_log import Mark
from gleaner.agent.runtime.interface import ContainerId


@dataclass(frozen=True, slots=True)
class Results:
    """A job's stored results, without `output` if they went to the job's owner."""

    output: Output | None = None


class Reporter(Protocol):
    """The receiver of one job's reports, output and results.

    Methods that block are called in a worker thread, all others on the event loop. `spent` is the time that the attempt
    has spent so far on each activity.
    """

    @property
    def is_heard(self) -> bool:
        """True if every report of the job has arrived."""
        ...

    def note(self, what: str, **facts: object) -> None:
        """Log an event, for troubleshooting."""
        ...

    def warn(self, what: str, error: Exception) -> None:
        """Log a failure and its reason."""
        ...

    def follow(self, container: ContainerId, *, may_wait: Callable[[], bool]) -> None:
        """Pass on the container's output from now on, using separate threads.

        While `may_wait` returns True, output that cannot be passed on yet can wait in the runtime.
        """
        ...

    def mark(self, *, paused_s: float) -> Mark:
        """Return the position of the output of a container paused since `paused_s` (monotonic clock). Blocks."""
        ...

    def await_output(self) -> None:
        """Wait for the rest of an ended container's output, for a bounded time. Blocks."""
        ...

    def flush_output(self) -> None:
        """Pass on the output that has arrived, as far as there is room for it."""
        ...

    def end_output(self) -> Mark:
        """Pass on all output, including open lines, of a process that will not be restored. Return the final
        position."""
        ...

    def record_save(self, checkpoint: Checkpoint) -> None:
        """Record that a published checkpoint counts. After a `StorageError`, the save counts as failed. Blocks."""
        ...

    async def confirm_save(self, took_s: float) -> bool:
        """Make sure that the job will be restored from its published checkpoint. Return False if it must continue here.

        The container is ended only after this method has returned True.
        """
        ...

    def report_saved(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report the published checkpoint with which the attempt ends.

        The container was paused before its output was marked, so it has written nothing since then.
        """
        ...

    def report_checkpointed(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report the published checkpoint of an attempt that continues."""
        ...

    def keep_reports(self) -> None:
        """Make sure that the job's reports outlive this process. Raises `OSError`. Blocks.

        The container is paused during the call.
        """
        ...

    def store_results(self, exit_code: int) -> Results:
        """Store the job's folder. After a `StorageError` or `OSError` the caller tries again. Blocks."""
        ...

    def report_exit(self, exit_code: int, reason: str, results: Results, spent: Slice, *, out_of_memory: bool) -> None:
        """Report that the process has exited, on its own or at its memory limit, and that its results are stored.

        `reason` is a line for a person, used where the exit code alone does not explain the end.
        """
        ...

    def report_stopped(self, reason: str, limit: JobLimit, spent: Slice) -> None:
        """Report that the job was ended because it passed this limit."""
        ...

    def report_return(self, why: ReturnReason, detail: str, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report that this attempt ends without a checkpoint. `measured` is the cost of a late save up to now."""
        ...
