"""Report a user job to Slurm, which starts the job again, and to its owner."""

import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import Clock
from gleaner.agent.job.lifecycle import JobLimit
from gleaner.agent.job.limits import memory_limit_reached
from gleaner.agent.job.reporter import Reporter, Results
from gleaner.agent.messages import Assignment, Checkpoint, ReturnReason, SaveMeasurement, Slice
from gleaner.agent.privileged.common.slurm_job import JobHandle, NotRequeued
from gleaner.agent.reporting.job_log import NO_OUTPUT, Mark
from gleaner.agent.runtime.interface import ContainerId, Runtime, RuntimeFault
from gleaner.agent.system.atomic import sync_folder, sync_tree
from gleaner.agent.user_job.catalog import Catalog
from gleaner.agent.user_job.when_to_save import SaveWish, is_started_by_gleaner

FAILED = 1
TERMINATED = 128 + signal.SIGTERM
_QUIET_S = 0.3
_QUIET_WITHIN_S = 3.0
_OUTPUT_END_S = 5.0
_REQUEUE_WITHIN_S = 10.0
_STREAMS = {1: sys.stdout, 2: sys.stderr}


def say(line: str) -> None:
    """Write one line for the job's owner."""
    sys.stderr.write(f"glean run: {line}\n")
    sys.stderr.flush()


class OutputRelay:
    """The relay that passes the container's output on to our own standard streams as it arrives."""

    def __init__(self, chunks: Iterator[tuple[int, bytes]], say: Callable[[str], None], clock: Clock) -> None:
        self._chunks = chunks
        self._say = say
        self._clock = clock
        self._last_output_s = self._clock.monotonic_s()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for stream, content in self._chunks:
                sink = _STREAMS[stream].buffer
                sink.write(content)
                sink.flush()
                if content:
                    self._last_output_s = self._clock.monotonic_s()
        except (RuntimeFault, OSError, ValueError) as error:
            self._say(f"its output can no longer be passed on: {error}")

    def drain(self) -> None:
        """Wait until all output of a paused container has arrived."""
        give_up_s = self._clock.monotonic_s() + _QUIET_WITHIN_S
        since_s = self._clock.monotonic_s()
        while (now_s := self._clock.monotonic_s()) < give_up_s and now_s < max(self._last_output_s, since_s) + _QUIET_S:
            self._clock.pause(0.05)

    def finish(self) -> None:
        """Wait until the rest of an ended container's output is written."""
        self._thread.join(_OUTPUT_END_S)


@dataclass(slots=True)
class SlurmReporter:
    """The `Reporter` of one start of a user job."""

    slurm_job: JobHandle
    runtime: Runtime
    catalog: Catalog
    assignment: Assignment
    node: str
    folder: Path
    """The job's folder on this node."""
    results: Path
    """The folder to which the owner wants the job's files copied."""
    clock: Clock
    obey_signals: Callable[[], Awaitable[None]]
    """Obeys signals, which might show that the job has been requeued by someone else."""
    say: Callable[[str], None] = say
    wish: SaveWish | None = None
    """The reason why the job is saved."""
    exit_code: int = FAILED
    is_requeued: bool = False
    _output: OutputRelay | None = None

    @property
    def is_heard(self) -> bool:
        return True

    def note(self, what: str, **facts: object) -> None:
        """Do nothing, because standard output and standard error belong to the job."""

    def warn(self, what: str, error: Exception) -> None:
        self.say(f"{what}: {error}")

    # ── its output ──

    def follow(self, container: ContainerId, *, may_wait: Callable[[], bool]) -> None:
        self._output = OutputRelay(iter(self.runtime.logs(container)), self.say, self.clock)

    def mark(self, *, paused_s: float) -> Mark:
        if self._output is not None:
            self._output.drain()
        return NO_OUTPUT

    def await_output(self) -> None:
        if self._output is not None:
            self._output.finish()

    def flush_output(self) -> None:
        """Do nothing, because no output waits here."""

    def end_output(self) -> Mark:
        return NO_OUTPUT

    # ── what becomes of it ──

    def record_save(self, checkpoint: Checkpoint) -> None:
        self.catalog.record_checkpoint(checkpoint)

    async def confirm_save(self, took_s: float) -> bool:
        await self.obey_signals()
        try:
            self._requeue(f"saved in {took_s:.1f} s")
        except NotRequeued as error:
            self.say(f"saved, but it continues here: {error}")
            return False
        return True

    def report_saved(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Do nothing, because Slurm has already requeued the job."""

    def report_checkpointed(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        took = f" in {measured.took_s:.1f} s" if measured is not None else ""
        self.say(f"saved{took}; it continues")

    def keep_reports(self) -> None:
        """Do nothing, because `record_save` has put the checkpoint into the catalog."""

    def store_results(self, exit_code: int) -> Results:
        """Try once to deliver the job's folder. If that succeeds, the job's checkpoints are no longer needed."""
        self.exit_code = exit_code
        try:
            deliver(self.folder, self.results)
        except OSError as error:
            self.exit_code = exit_code or FAILED
            self.say(f"its files cannot be copied to {self.results}: {error}")
            number = self.slurm_job.number
            self.say(f"the last save stays: scontrol requeue {number} lets it continue from that")
            return Results()
        self.forget()
        return Results()

    def report_exit(self, exit_code: int, reason: str, results: Results, spent: Slice, *, out_of_memory: bool) -> None:
        """Tell the owner why the job ended, if our own exit code alone does not show it."""
        if line := memory_limit_reached(self.assignment) if out_of_memory else reason:
            self.say(line)

    def report_stopped(self, reason: str, limit: JobLimit, spent: Slice) -> None:
        self.say(reason)

    def report_return(self, why: ReturnReason, detail: str, spent: Slice, measured: SaveMeasurement | None) -> None:
        """Tell the owner why this start ends without a new checkpoint. Older checkpoints stay."""
        number = self.slurm_job.number
        try:
            if why is ReturnReason.UNSTARTED:
                self._requeue("it was not started")
                return
            self.say(detail)
            if why is ReturnReason.INCOMPATIBLE:
                self._requeue(
                    f"choose other nodes (scontrol update JobId={number} ExcNodeList={self.node}), then "
                    f"scontrol release {number}",
                    held=True,
                )
                return
        except NotRequeued as error:
            self.say(str(error))
        if self.assignment.checkpoint is not None:
            self.say(f"the last save is still there: scontrol requeue {number} lets it continue from that")

    def forget(self) -> None:
        """Remove the checkpoints of a job that has ended."""
        try:
            self.catalog.clear()
        except StorageError as error:
            self.say(f"the saves cannot be removed: {error}")

    def _requeue(self, what: str, *, held: bool = False) -> None:
        """Have Slurm start the job again, unless it has already been requeued. Raises `NotRequeued`."""
        if self.wish is SaveWish.VACATE_REQUEUED:
            self.say(f"{what}; the job has been requeued")
        else:
            held = held or is_started_by_gleaner(self.slurm_job.look())
            self.slurm_job.requeue(held=held, within_s=_REQUEUE_WITHIN_S)
            self.say(f"{what}; the job is requeued" + (", held" if held else ""))
        self.is_requeued = True


def deliver(place: Path, results: Path) -> None:
    """Copy a job's folder to its owner's folder, where it becomes visible as a whole. Skip an empty folder."""
    if not any(place.iterdir()):
        return
    draft = results.with_name(f".{results.name}.new")
    draft.mkdir(exist_ok=True)
    workdir_tar.unpack(workdir_tar.pack(place), draft)
    sync_tree(draft)  # the checkpoints are removed next, so these files are then all that is left
    draft.rename(results)
    with suppress(PermissionError):  # its owner might be able to write in this folder but not to list it
        sync_folder(results.parent)


if TYPE_CHECKING:
    _: type[Reporter] = SlurmReporter
