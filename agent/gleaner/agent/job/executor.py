"""Carry out the steps of `job.lifecycle` for one job, one after the other, and feed the outcomes back to it.

This is the only executor of `lifecycle.step`. Agents use it with a reporter that informs control, and `glean run` with
one that has Slurm start the job again. Blocking work runs in separate threads. All decisions are made on the event
loop, without a lock.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.limiter import Slot
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import JobContext
from gleaner.agent.job.job_checkpoints import JobCheckpoints, NewCheckpoint
from gleaner.agent.job.reporter import Reporter
from gleaner.agent.job.silence import Silence
from gleaner.agent.messages import Assignment, ReturnReason, SaveMeasurement, Way
from gleaner.agent.runtime.interface import (
    CannotCheckpoint,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.timing.deadlines import AtStake
from gleaner.agent.timing.save_cost import Load, SaveCost
from gleaner.agent.timing.stopwatch import Activity, Stopwatch, elapsed_s

Result = TypeVar("Result")

TERMINATED = 143
"""The exit code after SIGTERM, which comes from the job itself or from an engine that shuts down."""
ENGINE_ENDS_S = 1.0
RUNTIME_BACK_S = 20.0
"""The longest time for which a runtime can be away before its containers count as lost."""
REPORTS_ON_DISK_WITHIN_S = 5.0
"""The longest time for which a container stays paused until the report of its periodic save is on the storage."""
SAVE_PAUSE_S = 10.0
"""The longest wait before a failed save is tried again. It is shorter if less time is left."""


@dataclass(frozen=True, slots=True)
class _SaveUnderWay:
    """A save that has begun. `cost` is the cost of saves as known at that time, and None without measurements."""

    began_s: float
    """The instant of its beginning by the monotonic clock, so that setting the node's clock does not change the
    measured cost."""
    slot: Slot
    cost: SaveCost | None

    def expected_s(self, load: Load) -> float | None:
        """Return the expected time of the save, given the saves that ran at the same time; None without
        measurements."""
        at_once = self.slot.at_once
        return None if self.cost is None else self.cost.all_s([load.mib] * at_once, at_once=at_once)


@dataclass(slots=True)
class Executor:
    """One job on one node, from its launch to its last report."""

    context: JobContext
    checkpoints: JobCheckpoints
    reporter: Reporter
    launch: Callable[[], Awaitable[lifecycle.Started | lifecycle.NotStarted | lifecycle.LimitPassed]]
    """Starts or restores the job, unless it has already passed a limit."""
    clean: Callable[[], None]
    """Removes what the job left on the node. Blocks."""
    times: Stopwatch
    silence: Silence = field(default_factory=Silence)
    forgets_failures: bool = False
    """True if earlier failures do not count for a new order to vacate, since the job has computed in between."""
    memory_bytes: int = 0
    """The memory in use at the last measurement."""
    since_s: float = 0.0
    """The instant of the last attempt to save the job, or else the instant at which it began to compute."""
    began_s: float = 0.0
    """The instant at which the job began to compute."""
    last_save_s: float = 0.0
    """The instant of the job's last save."""
    save_again_s: float = 0.0
    """The instant before which a failed save is not tried again, because its cause might pass by then."""
    node_fault: bool = False
    """True if the job was returned because the node is at fault."""
    storage_fault: str = ""
    """Why the storage failed when the job was last stored; empty if it did not fail."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    state: lifecycle.Task = field(init=False)
    _todos: asyncio.Queue[lifecycle.Todo] = field(default_factory=asyncio.Queue[lifecycle.Todo])
    _end_event: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the job has ended, so that only the report and the cleaning are left."""
    _container: ContainerId | None = None
    _failed_saves: int = 0
    """The number of saves that have failed since the last report of a checkpoint."""
    _save_under_way: "_SaveUnderWay | None" = None
    _had_to_vacate: bool = False
    """True if the order to vacate came before the job began. In that case the node is not to blame if the checkpoint is
    not found in time."""
    _signal_s: float = 0.0
    """The instant at which a signal asked the job to save itself (monotonic clock); 0 if none did."""
    _latest_cost: SaveMeasurement | None = None
    """The cost of the latest published checkpoint."""
    _pausing: AbstractContextManager[object] = field(init=False)
    _pause_error: str = ""
    """Why the last pause failed."""
    _pause_error_s: float = -math.inf
    """The instant at which the last pause failed, by the monotonic clock."""
    _save_task: asyncio.Task[None] | None = None
    """The task that saves the job, from the beginning of its wait for a slot."""

    def __post_init__(self) -> None:
        self.state = lifecycle.Preparing(self.assignment.spec.saves_itself)
        self._pausing = self.context.clock.lock()
        self.silence.before_s = self.assignment.checkpoint.silent_s if self.assignment.checkpoint else 0.0

    @property
    def assignment(self) -> Assignment:
        """The job as assigned."""
        return self.checkpoints.assignment

    @property
    def container(self) -> ContainerId | None:
        """The job's container, while there is one."""
        return None if isinstance(self.state, lifecycle.Preparing | lifecycle.Ended) else self.state.container

    @property
    def has_run(self) -> bool:
        """True if the job's container has ever started."""
        return self.times.has_run

    @property
    def is_reported(self) -> bool:
        """True if the job has ended and all its reports have arrived."""
        return self.done.is_set() and self.reporter.is_heard

    @property
    def is_computing(self) -> bool:
        """True if the job runs and is not being saved."""
        return isinstance(self.state, lifecycle.Running)

    @property
    def is_saving(self) -> bool:
        """True if the job's memory is being saved or is waiting to be saved."""
        return isinstance(self.state, lifecycle.Saving)

    @property
    def is_storing(self) -> bool:
        """True if some of the job's state can still be stored in the time that is left."""
        if isinstance(self.state, lifecycle.Running):  # its save has failed and will be tried again
            return self.state.vacating and self.state.failed_saves < lifecycle.SAVE_TRIES
        return isinstance(self.state, lifecycle.Saving | lifecycle.Signalled | lifecycle.Storing | lifecycle.Finishing)

    @property
    def unsaved_because(self) -> str:
        """Why the job's saves fail, as reported at the agent's end; empty if the latest one worked."""
        state = self.state
        return lifecycle.unsaved_line(state) if isinstance(state, lifecycle.Running | lifecycle.Saving) else ""

    @property
    def is_given_up(self) -> bool:
        """True if the job was reported as not stored in time."""
        return isinstance(self.state, lifecycle.Ended) and self.state.late

    @property
    def at_stake(self) -> AtStake:
        """The work that is lost without a save, and the cost of the save."""
        computed_s = elapsed_s(self.since_s, self.context.clock.now_s())
        return AtStake(self.assignment.spec.cpus * computed_s, self.context.estimates.expected_s(self.load))

    @property
    def load(self) -> Load:
        """The job's next save, as input for an estimate, with the job's memory and the way to save it."""
        return Load(self.memory_bytes, Way.SELF if self.assignment.spec.saves_itself else self.context.way)

    def feed(self, event: lifecycle.Event) -> None:
        """Feed an event to the lifecycle, and queue the things to do."""
        before = self.state
        self.checkpoints.stop_waiting.set()  # after any event, a job in preparation stops waiting
        if isinstance(before, lifecycle.Preparing) and isinstance(event, lifecycle.VacateAsked | lifecycle.AgentEnds):
            self._had_to_vacate = True
        self.state, todos = lifecycle.step(self.state, event)
        if self.forgets_failures and isinstance(self.state, lifecycle.Running):
            self.state = lifecycle.Running(self.state.container)
        if self.state is not before:
            was, now = type(before).__name__, type(self.state).__name__
            self.reporter.note("transition", was=was, now=now, because=str(event)[:200])
        if isinstance(before, lifecycle.Saving) and not isinstance(self.state, lifecycle.Saving):
            self._leave_queue()
        if isinstance(self.state, lifecycle.Ended):
            self._end_event.set()
            self.context.saves.recheck()
        for todo in todos:
            # This must not wait for a thread that might hang, because this process might end after the next step.
            if isinstance(todo, lifecycle.ReportSaved):
                self.reporter.report_saved(todo.checkpoint, self.times.slice(), self._latest_cost)
            else:
                self._todos.put_nowait(todo)
        if isinstance(event, lifecycle.OutOfTime):
            self._report_pending()

    async def run(self) -> None:
        """Launch the job and carry out all its steps until its end."""
        try:
            event = await self.launch()
            self.feed(event)
            if (container := self.container) is not None:
                self._container = container
                self.since_s = self.began_s = self.context.clock.now_s()
                self.times.switch_to(Activity.COMPUTING)
                await asyncio.to_thread(self._look_at_writes, container)
                self.reporter.follow(container, may_wait=lambda: self.is_computing)
                loop = asyncio.get_running_loop()
                self.context.clock.start(self._await_exit, container, loop)
            while not isinstance(self.state, lifecycle.Ended) or not self._todos.empty():
                await self._do(await self._todos.get())
        except Exception as error:  # our bug: the process must not run on unseen, and the job must not return
            if (container := self.container) is not None:
                await asyncio.to_thread(self._kill, container)
            self._report_return(ReturnReason.NODE_FAULT, f"the agent broke: {error!r}")
            raise
        finally:
            self.done.set()

    # ── while it runs ──

    def _await_exit(self, container: ContainerId, loop: asyncio.AbstractEventLoop) -> None:
        event = wait_for_exit(self.context.runtime, container, self.context.clock)
        with suppress(RuntimeError):  # the loop is closed, because the job has ended
            loop.call_soon_threadsafe(self.feed, event)

    def _report_pending(self) -> None:
        """Send at once the report that is still waiting, perhaps because the job's container cannot be removed.

        A job counts as unstarted if control has no report of it when the agent deregisters.
        """
        for todo in [self._todos.get_nowait() for _ in range(self._todos.qsize())]:
            match todo:
                case lifecycle.ReportCheckpointed(checkpoint):
                    self.reporter.report_checkpointed(checkpoint, self.times.slice(), self._latest_cost)
                case lifecycle.ReportStopped(reason, limit):
                    self.reporter.report_stopped(reason, limit, self.times.slice())
                case lifecycle.ReportReturned(why, detail):
                    self.reporter.flush_output()
                    self._report_return(why, detail)
                case _:
                    self._todos.put_nowait(todo)

    # ── the steps of the lifecycle ──

    async def _do(self, todo: lifecycle.Todo) -> None:
        match todo:
            case lifecycle.Save(container):
                await self._wait_for_save(container)
            case lifecycle.GoOn(container):
                await asyncio.to_thread(self._go_on, container)
            case lifecycle.SendSignal(container, name):
                await asyncio.to_thread(self._signal, container, name)
            case lifecycle.StoreFolder():
                await self._store_folder()
            case lifecycle.Finish(_, exit_code, out_of_memory, reason):
                self.times.switch_to(Activity.OVER)
                await self._finish(exit_code, reason, out_of_memory=out_of_memory)
            case lifecycle.Kill(container):
                self.times.switch_to(Activity.OVER)
                await asyncio.to_thread(self._kill, container)
            case lifecycle.ReportSaved():
                raise AssertionError("a published checkpoint is reported at once")
            case lifecycle.ReportCheckpointed(checkpoint):
                self.reporter.report_checkpointed(checkpoint, self.times.slice(), self._latest_cost)
                await self._keep_reports()
            case lifecycle.ReportStopped(reason, limit):
                await self._end_output() if self.has_run else None
                self.reporter.report_stopped(reason, limit, self.times.slice())
            case lifecycle.ReportReturned(why, detail):
                await self._end_output() if self.has_run else None
                self._report_return(why, detail)
            case lifecycle.Clean():
                await asyncio.to_thread(self.clean)

    def _leave_queue(self) -> None:
        """Stop waiting for a slot, because the job no longer needs a save."""
        task = self._save_task
        if task is not None and self._save_under_way is None and task is not asyncio.current_task():
            task.cancel()

    async def _wait_for_save(self, container: ContainerId) -> None:
        """Save the job when its turn comes. Return after the save, or as soon as the job no longer needs one."""
        if not self.is_saving:
            return
        turn = self._save_task = asyncio.create_task(self._save_in_turn(container))
        try:
            await asyncio.wait({turn})
        finally:
            turn.cancel()
        if not turn.cancelled():
            turn.result()

    async def _save_in_turn(self, container: ContainerId) -> None:
        """Save the job when a slot is free. At the agent's end, save it only if that makes no other save late."""
        saves = self.context.saves
        async with saves.slot(waits=self._is_vacating()) as slot:
            await saves.wait_for_others(
                slot, unless=lambda: not self._is_vacating() or self._is_in_time(saves.busy + 1)
            )
            if not isinstance(self.state, lifecycle.Saving):
                return
            load, estimates = self.load, self.context.estimates
            cost = estimates.cost(load.way) if estimates.knows(load.way) else None
            under_way = self._save_under_way = _SaveUnderWay(self.context.clock.monotonic_s(), slot, cost)
            result = await asyncio.to_thread(self._save, container)
            self._save_under_way = None
            if not isinstance(result, NewCheckpoint):
                self.feed(result)
                return
            took_s = self.context.clock.monotonic_s() - under_way.began_s
            self._record_save(result, under_way, memory_bytes=self.memory_bytes)
            # After a periodic save, nothing is awaited between this check of the state and the event, so that later
            # events find the job running.
            if self._is_last_save() and not await self.reporter.confirm_save(took_s):
                self.since_s = self.context.clock.now_s()
                self.feed(lifecycle.SaveFailed("nobody goes on from its checkpoint"))
            else:
                self.feed(lifecycle.SaveDone(result.checkpoint))

    def _is_last_save(self) -> bool:
        return isinstance(self.state, lifecycle.Saving) and not self.state.periodic

    def _is_vacating(self) -> bool:
        return isinstance(self.state, lifecycle.Saving) and self.state.vacating

    def _is_in_time(self, at_once: int) -> bool:
        """Return True if a save that begins now, with `at_once` saves running in total, probably ends in time."""
        expected_s = self.context.estimates.expected_s(self.load, at_once=at_once)
        return self.context.clock.now_s() + expected_s <= self.context.hard_stop_s()

    def measure_memory(self) -> None:
        """Measure the memory in use. If that fails, keep the last measurement. Blocks."""
        if (container := self.container) is None:
            return
        with suppress(RuntimeFault):
            self.times.memory_s = self.context.runtime.memory_s(container)
            self.memory_bytes = self.context.runtime.memory_bytes(container) or self.memory_bytes

    def pause_early(self) -> None:
        """Pause the job if its save has not begun. If pausing fails, the save will report the reason. Blocks."""
        if (container := self.container) is None or self._save_under_way is not None:
            return
        self.times.switch_to(Activity.SAVING)
        with suppress(RuntimeFault, ContainerExited, CannotCheckpoint):
            self._pause(container)

    def _pause(self, container: ContainerId) -> None:
        """Pause the job, unless another call failed to do so while this one was waiting, since each try takes
        seconds."""
        came_s = self.context.clock.monotonic_s()
        with self._pausing:
            if self._pause_error_s >= came_s:
                raise RuntimeFault(self._pause_error)
            try:
                self.context.runtime.pause(container)
            except RuntimeFault as error:
                self._pause_error, self._pause_error_s = str(error), self.context.clock.monotonic_s()
                raise

    def _save(self, container: ContainerId) -> NewCheckpoint | lifecycle.SaveFailed:
        """Pause the container, and publish its checkpoint. The container stays paused, since it must not end before the
        publication."""
        context = self.context
        try:
            self.measure_memory()
            self.times.switch_to(Activity.SAVING)
            self._pause(container)
            self._look_at_writes(container)
            paused_s = self.context.clock.monotonic_s()
            new = self.checkpoints.save_memory(
                context.runtime,
                container,
                lambda: self.reporter.mark(paused_s=paused_s),
                at_the_end=self._is_vacating(),
            )
            silent_s = self.silence.length_s(self.times.slice().compute_s)
            new = replace(new, checkpoint=new.checkpoint.model_copy(update={"silent_s": silent_s}))
            self.reporter.record_save(new.checkpoint)
            return new
        except ContainerExited as error:
            return lifecycle.SaveFailed(f"it exited first: {error}")
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            self.reporter.warn("cannot be saved, and goes on", error)
            self._record_failure(error)
            self._failed_saves += 1
            left_s = context.hard_stop_s() - context.clock.now_s()
            self.save_again_s = context.clock.now_s() + min(SAVE_PAUSE_S, max(0.0, left_s) / (lifecycle.SAVE_TRIES + 1))
            why = error.why if isinstance(error, CannotCheckpoint) else ReturnReason.SAVE_FAILED
            return lifecycle.SaveFailed(str(error), why)
        finally:
            self.since_s = context.clock.now_s()

    def _record_save(self, new: NewCheckpoint, save: "_SaveUnderWay", *, memory_bytes: int) -> None:
        """Record the cost of a save for the estimates, and keep it for the report."""
        self.times.switch_to(Activity.OVER)  # if the job continues, `_go_on` records that
        load, took_s, estimates = self.load, self.context.clock.monotonic_s() - save.began_s, self.context.estimates
        at_once, expected_s = save.slot.at_once, save.expected_s(load)
        self.last_save_s = self.context.clock.now_s()
        self._latest_cost = None
        is_representative = estimates.is_representative(load.way, is_full=new.is_full)
        if is_representative:
            estimates.note(load, at_once=at_once, took_s=took_s)
        # Control bases estimates on the save that ends an attempt, so its cost is reported only if it is
        # representative.
        if is_representative or (isinstance(self.state, lifecycle.Saving) and self.state.periodic):
            self._latest_cost = SaveMeasurement(
                memory_bytes=memory_bytes,
                stored_bytes=new.stored_bytes,
                took_s=took_s,
                expected_s=expected_s if is_representative else None,
                at_once=at_once,
                way=load.way,
                failed=self._failed_saves,
            )
            self._failed_saves = 0
        self.storage_fault = ""
        what = "saved in full" if new.is_full else "saved"
        self.reporter.note(what, number=new.checkpoint.number, took_s=round(took_s, 2), expected_s=expected_s)

    def _record_failure(self, error: Exception) -> None:
        self.storage_fault = str(error) if isinstance(error, StorageError) else ""

    async def _keep_reports(self) -> None:
        """Make sure that a periodic save is not lost with this process. A hanging storage delays the job only
        briefly."""
        self.times.switch_to(Activity.SAVING)
        try:
            async with asyncio.timeout(REPORTS_ON_DISK_WITHIN_S):
                await asyncio.to_thread(self.reporter.keep_reports)
        except (TimeoutError, OSError) as error:
            self.reporter.warn("its save is lost if this agent ends before control hears of it", error)

    def _look_at_writes(self, container: ContainerId) -> None:
        """Check how much the job has written, if its silence has a limit. This is called before and after each save."""
        if self.assignment.spec.silent_limit_s is not None:
            written_bytes = self.context.runtime.written_bytes(container)
            self.silence.record_look(written_bytes, self.times.slice().compute_s)

    def _go_on(self, container: ContainerId) -> None:
        self.silence.forget_count()
        self._look_at_writes(container)
        self.times.switch_to(Activity.COMPUTING)
        try:
            self.context.runtime.unpause(container)
        except RuntimeFault as error:
            self.reporter.warn("cannot let it go on", error)

    def _signal(self, container: ContainerId, name: str) -> None:
        """Let the container continue and send it the signal, which a paused process would not receive."""
        self._signal_s = self._signal_s or self.context.clock.monotonic_s()
        self.times.switch_to(Activity.SAVING)
        try:
            self.context.runtime.unpause(container)
            self.context.runtime.signal(container, name)
        except RuntimeFault as error:
            self.reporter.warn("cannot tell it to save itself", error)

    async def _finish(self, exit_code: int, reason: str, *, out_of_memory: bool) -> None:
        """Store the results, and report the exit."""
        results = await self._persistently(lambda: self.reporter.store_results(exit_code))
        if results is None:
            return
        await self._end_output()
        self.reporter.report_exit(exit_code, reason, results, self.times.slice(), out_of_memory=out_of_memory)
        self.feed(lifecycle.Finished())

    async def _store_folder(self) -> None:
        """Publish the folder of a workload that has saved itself, with or without a signal."""
        began_s = self._signal_s or self.context.clock.monotonic_s()
        self.times.switch_to(Activity.SAVING)
        await self._end_output()
        new = await self._persistently(self.checkpoints.save_folder)
        if new is None:
            return
        mark = self.reporter.end_output()
        log_position = {"log_lines": mark.lines, "open_lines": mark.open_lines}
        checkpoint = new.checkpoint.model_copy(update=log_position)
        self._record_save(new, _SaveUnderWay(began_s, Slot(), None), memory_bytes=checkpoint.size_bytes)
        self.feed(lifecycle.SaveDone(checkpoint))

    async def _persistently(self, store: Callable[[], Result]) -> Result | None:
        """Return the result of `store`, which is tried again while the storage fails; None when no time is left."""
        pause_s = 1.0
        while isinstance(self.state, lifecycle.Finishing | lifecycle.Storing):
            try:
                return await asyncio.to_thread(store)
            except (StorageError, OSError) as error:
                self.reporter.warn("cannot store what it left, trying again", error)
                self._record_failure(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end_event.wait(), pause_s)
            pause_s = min(30.0, 2 * pause_s)
        return None

    async def _end_output(self) -> None:
        """Pass on all output of a process that has ended and will not be restored."""
        await asyncio.to_thread(self.reporter.await_output)
        self.reporter.end_output()

    def _kill(self, container: ContainerId) -> None:
        self._end(container)
        if self.has_run:  # the last lines are read from the ended container before it is removed
            self.reporter.await_output()
        try:
            self.context.runtime.remove(container)
        except RuntimeFault as error:
            self.reporter.warn(f"cannot remove the container; {self.context.cleaner} will", error)

    def _end(self, container: ContainerId) -> None:
        try:
            self.context.runtime.kill(container)
        except RuntimeFault as error:
            self.reporter.warn(f"cannot kill the container; {self.context.cleaner} will", error)

    def kill_now(self) -> None:
        """Kill the container at the agent's end, in case the job's own thread hangs. Blocks."""
        if self._container is not None:
            self._end(self._container)

    def _report_return(self, why: ReturnReason, detail: str) -> None:
        # The storage might not be mounted on this node. That cannot be concluded if the agent did not wait for the
        # storage because the agent is ending. If the job has run here or has a checkpoint, the job or the checkpoint
        # might be to blame. Control can compare nodes.
        leaves = self.context.clock.now_s() >= self.context.hard_stop_s() or self._had_to_vacate
        is_storage = why is ReturnReason.STORAGE_FAULT and not leaves
        self.node_fault = not self.has_run and (is_storage or why is ReturnReason.NODE_FAULT)
        measured = self._cost_so_far() if why is ReturnReason.TOO_LATE else None
        self.reporter.report_return(why, detail, self.times.slice(), measured)

    def _cost_so_far(self) -> SaveMeasurement | None:
        """Return the cost so far of a save that is too late; None if no save is under way."""
        if (save := self._save_under_way) is None:
            return None
        return SaveMeasurement(
            memory_bytes=self.memory_bytes,
            stored_bytes=0,
            took_s=self.context.clock.monotonic_s() - save.began_s,
            expected_s=save.expected_s(self.load),
            at_once=save.slot.at_once,
            way=self.load.way,
        )


def wait_for_exit(runtime: Runtime, container: ContainerId, clock: Clock) -> lifecycle.Event:
    """Wait for a job's process to end, and return the event that describes its end. Blocks.

    Containers also end when the runtime goes away or an admin kills them. The job is not to blame for either.
    """
    give_up_s = float("inf")
    while True:
        try:
            end = runtime.wait(container)
            if end.exit_code == TERMINATED:
                clock.pause(ENGINE_ENDS_S)
                runtime.facts()
            return lifecycle.Exited(end.exit_code, end.exit_code != 0 and end.out_of_memory, end.reason)
        except ContainerKilled as error:
            return lifecycle.Lost(str(error), error.why)
        except RuntimeFault as error:
            give_up_s = min(give_up_s, clock.monotonic_s() + RUNTIME_BACK_S)
            if clock.monotonic_s() >= give_up_s:
                return lifecycle.Lost(f"the container runtime went away: {error}")
            clock.pause(1)
