"""The interface of whoever hears what becomes of a job; an executor reports to one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gleaner.agent.job.lifecycle import Limit
from gleaner.agent.messages import Checkpoint, Output, ReturnReason, SaveMeasurement, Slice
from gleaner.agent.reporting.job_log import Mark
from gleaner.agent.runtime.interface import ContainerId


@dataclass(frozen=True, slots=True)
class Results:
    """A job's results where they were stored; no `output` where they went to the job's owner."""

    output: Output | None = None


class Reporter(Protocol):
    """Hears what becomes of a job, and takes its output and its results.

    A method that blocks is called in a worker thread, all others on the event loop. `spent` is how the attempt has
    spent its time so far.
    """

    @property
    def is_heard(self) -> bool:
        """True if nothing that was reported of the job is still on its way."""
        ...

    def note(self, what: str, **facts: object) -> None:
        """Write down what happens, for whoever looks for a fault later."""
        ...

    def warn(self, what: str, error: Exception) -> None:
        """Say what did not work, and why."""
        ...

    def follow(self, container: ContainerId, *, may_wait: Callable[[], bool]) -> None:
        """Pass on the container's output from now on, in threads of its own.

        While `may_wait`, output that cannot be passed on yet may wait in the runtime.
        """
        ...

    def mark(self, *, paused_s: float) -> Mark:
        """Return how far the output of a container has come that is paused since then (monotonic clock). Blocks."""
        ...

    def await_output(self) -> None:
        """Wait for the rest of an ended container's output, for a bounded time. Blocks."""
        ...

    def flush_output(self) -> None:
        """Pass on the output that has come so far, as far as there is room for it."""
        ...

    def end_output(self) -> Mark:
        """Pass on all of the output of a process that has ended for good, an open line too; return how far it came."""
        ...

    def record_save(self, checkpoint: Checkpoint) -> None:
        """Record that a published checkpoint counts. Raises `StorageError`: then the save has failed. Blocks."""
        ...

    async def confirm_save(self, took_s: float) -> bool:
        """See that a job goes on later from its published checkpoint; return False if it must go on here.

        The container is ended only after this returned True.
        """
        ...

    def report_saved(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report the published checkpoint with which the attempt ends.

        The container stands still since before the checkpoint's log was marked: it has written nothing more.
        """
        ...

    def report_checkpointed(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report the published checkpoint of an attempt that goes on."""
        ...

    def keep_reports(self) -> None:
        """See that what was reported of the job outlives this process. Raises `OSError`. Blocks.

        The container stands still meanwhile.
        """
        ...

    def store_results(self, exit_code: int) -> Results:
        """Store what the job has left in its folder. Raises `StorageError` or `OSError`: it is tried again. Blocks."""
        ...

    def report_exit(self, exit_code: int, results: Results, spent: Slice) -> None:
        """Report that the process has exited by itself, and that its results are stored."""
        ...

    def report_unstartable(self, exit_code: int, reason: str, spent: Slice) -> None:
        """Report that the command cannot start."""
        ...

    def report_stopped(self, reason: str, limit: Limit, spent: Slice) -> None:
        """Report that the job was ended since it has passed this limit."""
        ...

    def report_return(self, why: ReturnReason, detail: str, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Report that nothing came of this attempt. `measured`: what a save that comes too late has taken by now."""
        ...
