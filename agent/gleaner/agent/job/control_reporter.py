"""Executors that report to control, for the jobs that an agent has claimed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.common.clock import Clock
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job.launch import launch_job, settle_inputs, way_to_restore
from gleaner.agent.job.limits import check_compute_limit, memory_limit_reached
from gleaner.agent.job.reporter import Reporter, Results
from gleaner.agent.messages import (
    Assignment,
    Checkpoint,
    Checkpointed,
    Completed,
    Message,
    RestoreMeasurement,
    Returned,
    ReturnReason,
    Saved,
    SaveMeasurement,
    Slice,
)
from gleaner.agent.reporting.client import Outbox
from gleaner.agent.reporting.job_log import JobLog, Mark
from gleaner.agent.runtime.interface import ContainerId, Runtime, RuntimeFault
from gleaner.agent.timing.stopwatch import Activity, Stopwatch

log = structlog.get_logger()


def make_executor(context: AgentContext, assignment: Assignment) -> Executor:
    """Return the executor of a job that control has assigned to this agent."""
    place = context.work / context.agent / f"{assignment.job}-{assignment.attempt}"
    checkpoints = JobCheckpoints(context.storage, assignment, context.facts, place, clock=context.clock)
    reporter = ControlReporter(context.runtime, context.outbox, context.reports, checkpoints, context.clock)
    times = Stopwatch(context.clock)
    whole = assignment  # later replaced by an assignment with all inputs in the storage

    async def launch() -> lifecycle.Started | lifecycle.NotStarted | lifecycle.LimitPassed:
        if (limit := check_compute_limit(assignment, 0.0)) is not None:
            return limit
        nonlocal whole
        settled = await asyncio.to_thread(settle_inputs, context, assignment, checkpoints)
        if isinstance(settled, lifecycle.NotStarted):
            return settled
        whole = settled
        async with context.begins.slot() as slot:
            restoring = partial(times.switch_to, Activity.RESTORING)
            event = await asyncio.to_thread(launch_job, context, whole, checkpoints, restoring)
        way = way_to_restore(context, assignment)
        if isinstance(event, lifecycle.Started) and assignment.checkpoint is not None and way is not None:
            times.restore_cost = RestoreMeasurement(
                stored_bytes=assignment.checkpoint.size_bytes,
                took_s=times.slice().restore_s,
                at_once=slot.at_once,
                way=way,
            )
        return event

    def clean() -> None:
        try:
            workdir_tar.clear(place)
            place.rmdir()
        except OSError as error:
            reporter.warn("cannot remove the job's folder; the next agent will", error)
        try:
            context.inputs.release(whole)
        except OSError as error:
            reporter.warn("cannot remove the job's inputs; the next agent will", error)

    return Executor(context, checkpoints, reporter, launch, clean, times)


@dataclass(slots=True)
class ControlReporter:
    """The `Reporter` of one attempt, which sends every report through the agent's outbox."""

    runtime: Runtime
    outbox: Outbox
    reports: Path
    """The agent's folder on the storage, in which control finds the reports that did not reach it."""
    checkpoints: JobCheckpoints
    clock: Clock
    _log: JobLog = field(init=False)

    def __post_init__(self) -> None:
        self._log = JobLog.from_checkpoint(self.checkpoints.assignment.checkpoint, self.clock)

    @property
    def is_heard(self) -> bool:
        """True if control has accepted every report of the attempt."""
        return not self.outbox.waits_for(self._path)

    def note(self, what: str, **facts: object) -> None:
        log.info(what, job=self.checkpoints.assignment.job, attempt=self.checkpoints.assignment.attempt, **facts)

    def warn(self, what: str, error: Exception) -> None:
        self.note(what, error=str(error))

    # ── its output ──

    def follow(self, container: ContainerId, *, may_wait: Callable[[], bool]) -> None:
        self.clock.start(self._follow_log, container, may_wait)
        self.clock.start(self._follow_live_output, container)

    def _follow_log(self, container: ContainerId, may_wait: Callable[[], bool]) -> None:
        try:
            self._log.follow(self.runtime.logs(container), may_wait=may_wait)
        except RuntimeFault as error:
            self.warn("cannot read the log", error)

    def _follow_live_output(self, container: ContainerId) -> None:
        try:
            if (output := self.runtime.live_output(container)) is not None:
                self._log.listen(output)
        except (RuntimeFault, OSError) as error:
            self.warn("cannot read its live output", error)

    def mark(self, *, paused_s: float) -> Mark:
        return self._log.mark(paused_s=paused_s)

    def await_output(self) -> None:
        self._log.wait()

    def flush_output(self) -> None:
        """Put the lines read so far into the outbox, as far as it has room."""
        self._flush(lambda: self.outbox.room_bytes(self._path + "log"))

    def end_output(self) -> Mark:
        self._log.end_lines()
        self._flush(None)
        return Mark(self._log.line_count, self._log.open_lines())

    def _flush(self, room_bytes: Callable[[], int] | None) -> None:
        for batch in self._log.take_batches(room_bytes):
            self.outbox.put(self._path + "log", batch.lines, log_bytes=batch.size_bytes)

    # ── what becomes of it ──

    def record_save(self, checkpoint: Checkpoint) -> None:
        """Do nothing, because control keeps the record."""

    async def confirm_save(self, took_s: float) -> bool:
        """Return True, because control gives the job to another agent when it learns of the checkpoint."""
        return True

    def report_saved(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        self._flush(None)
        self._report("saved", Saved(checkpoint=checkpoint, slice=spent, measured=measured))

    def report_checkpointed(self, checkpoint: Checkpoint, spent: Slice, measured: SaveMeasurement | None) -> None:
        self.flush_output()
        self._report("checkpointed", Checkpointed(checkpoint=checkpoint, slice=spent, measured=measured))

    def keep_reports(self) -> None:
        self.outbox.keep(self._path, self.reports)

    def store_results(self, exit_code: int) -> Results:
        return Results(self.checkpoints.publish_output(exit_code))

    def report_exit(self, exit_code: int, reason: str, results: Results, spent: Slice, *, out_of_memory: bool) -> None:
        self._report(
            "completed",
            Completed(
                exit_code=exit_code,
                output=results.output,
                log_lines=self._log.line_count,
                reason=memory_limit_reached(self.checkpoints.assignment) if out_of_memory else reason,
                slice=spent,
                out_of_memory=out_of_memory,
            ),
        )

    def report_stopped(self, reason: str, limit: lifecycle.JobLimit, spent: Slice) -> None:
        self.flush_output()
        self._report(
            "completed",
            Completed(
                exit_code=limit.value,
                reason=reason,
                log_lines=self._log.line_count,
                slice=spent,
                may_retry=limit is not lifecycle.JobLimit.COMPUTING,
                at_limit=True,
            ),
        )

    def report_return(self, why: ReturnReason, detail: str, spent: Slice, measured: SaveMeasurement | None) -> None:
        self._report("return", Returned(why=why, detail=detail, slice=spent, measured=measured))

    def _report(self, verb: str, message: Message) -> None:
        self.outbox.put(self._path + verb, message)

    @property
    def _path(self) -> str:
        return f"/jobs/{self.checkpoints.assignment.job}/attempts/{self.checkpoints.assignment.attempt}/"


if TYPE_CHECKING:
    _: type[Reporter] = ControlReporter
