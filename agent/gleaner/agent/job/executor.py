"""Do what `job.lifecycle` says for one job, one thing after the other, and feed back what happened.

The only executor of `lifecycle.step`: for an agent, whose reporter tells control, and for `glean run`, whose reporter
has Slurm start the job again. Blocking work runs in threads of its own; everything that decides runs on the event
loop, so there is no lock.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.limiter import Limiter
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import JobContext
from gleaner.agent.job.job_checkpoints import JobCheckpoints, Kept
from gleaner.agent.job.reporter import Reporter
from gleaner.agent.messages import Assignment, Measured, ReturnReason, Way
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
"""The exit code of a process that was terminated: by its own doing, or by an engine that ends."""
ENGINE_ENDS_S = 1.0
RUNTIME_BACK_S = 20.0
"""A runtime may be away for so long before its containers are taken for lost."""
KEPT_WITHIN_S = 5.0
"""A container stands still for so long at most until the report of its periodic save is on the storage."""
SAVE_PAUSE_S = 10.0
"""The longest pause after a save that failed; shorter where there is less time left."""


@dataclass(frozen=True, slots=True)
class _SaveUnderWay:
    """A save that has begun. `cost`: the cost of saves as it was known then; None if nothing was known."""

    began_s: float
    """By the monotonic clock: if the node's clock is set meanwhile, that must not count as the cost of a save."""
    lane: Limiter
    cost: SaveCost | None

    def expected_s(self, load: Load) -> float | None:
        """Return the time expected of the save, with as many at once as there were; None if nothing was known."""
        at_once = self.lane.at_once
        return None if self.cost is None else self.cost.all_s([load.mib] * at_once, at_once=at_once)


@dataclass(slots=True)
class Executor:
    """One job on one node, from its launch to its last report."""

    context: JobContext
    stored: JobCheckpoints
    reporter: Reporter
    launch: Callable[[], Awaitable[lifecycle.Started | lifecycle.NotStarted | lifecycle.LimitPassed]]
    """Starts the job or restores it, unless it has used up a limit before."""
    clean: Callable[[], None]
    """Removes what the job has left on the node. Blocks."""
    times: Stopwatch
    forgets_failures: bool = False
    """True if each demand to vacate stands alone: saves that failed before do not count, and it computes meanwhile."""
    memory_bytes: int = 0
    """The memory in use when it was last measured."""
    since_s: float = 0.0
    """The instant at which a save of the job was last tried, or else when the job began to compute."""
    began_s: float = 0.0
    """The instant at which the job began to compute."""
    saved_s: float = 0.0
    """The instant at which the job was last saved."""
    save_again_s: float = 0.0
    """Before this instant a save that has failed is not tried again: the reason may pass."""
    node_fault: bool = False
    """True if the job was returned because the node does not work."""
    storage_fault: str = ""
    """Why the storage did not take what was last to be stored; empty if it did, or if there was another reason."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    state: lifecycle.Task = field(init=False)
    _todos: asyncio.Queue[lifecycle.Todo] = field(default_factory=asyncio.Queue[lifecycle.Todo])
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the job has ended: what is left is to report, and to clean up."""
    _container: ContainerId | None = None
    _failed: int = 0
    """Saves that failed since the last report of a checkpoint."""
    _saving: "_SaveUnderWay | None" = None
    _was_told_to_vacate: bool = False
    """True if that was before the job began: then a checkpoint that was not found in time is no fault of the node."""
    _signalled_s: float = 0.0
    """The instant at which the job was told to save itself, by the monotonic clock; 0 if it was not."""
    _measured: Measured | None = None
    """The cost of the latest published checkpoint."""
    _pausing: AbstractContextManager[object] = field(init=False)
    _refused: str = ""
    """Why the job could not be paused, the last time that this failed."""
    _refused_s: float = -math.inf
    """The instant of that, by the monotonic clock."""
    _turn: asyncio.Task[None] | None = None
    """The job's save, from the wait for a lane on."""

    def __post_init__(self) -> None:
        self.state = lifecycle.Preparing(self.assignment.saves_itself)
        self._pausing = self.context.clock.lock()

    @property
    def assignment(self) -> Assignment:
        """The job as it was assigned."""
        return self.stored.assignment

    @property
    def container(self) -> ContainerId | None:
        """The container, while there is one."""
        return None if isinstance(self.state, lifecycle.Preparing | lifecycle.Ended) else self.state.container

    @property
    def has_run(self) -> bool:
        """True if the job's container has ever started."""
        return self.times.has_run

    @property
    def is_reported(self) -> bool:
        """True if the job has ended and all of it has been heard."""
        return self.done.is_set() and self.reporter.is_heard

    @property
    def is_computing(self) -> bool:
        """True if the job is to be saved when the time comes."""
        return isinstance(self.state, lifecycle.Running)

    @property
    def is_saving(self) -> bool:
        """True if the job's memory is being saved, or waits for that."""
        return isinstance(self.state, lifecycle.Saving)

    @property
    def is_storing(self) -> bool:
        """True if something of the job may still come to the storage if there is time."""
        if isinstance(self.state, lifecycle.Running):  # its save has failed, and is tried again
            return self.state.vacating and self.state.failed_saves < lifecycle.SAVE_TRIES
        return isinstance(self.state, lifecycle.Saving | lifecycle.Signalled | lifecycle.Storing | lifecycle.Finishing)

    @property
    def is_given_up(self) -> bool:
        """True if it was reported that the job could not be stored in time."""
        return isinstance(self.state, lifecycle.Ended) and self.state.late

    @property
    def at_stake(self) -> AtStake:
        """The work that is lost without a save, and the cost of the save."""
        computed_s = elapsed_s(self.since_s, self.context.clock.now_s())
        return AtStake(self.assignment.cpus * computed_s, self.context.estimates.expected_s(self.load))

    @property
    def load(self) -> Load:
        """The job as a save to be made: its memory, and the way to save it."""
        return Load(self.memory_bytes, Way.SELF if self.assignment.saves_itself else self.context.way)

    def feed(self, event: lifecycle.Event) -> None:
        """Tell the lifecycle what happened, and queue what is to be done."""
        before = self.state
        self.stored.hurry.set()  # whatever happened: a job that is being prepared waits no longer
        if isinstance(before, lifecycle.Preparing) and isinstance(event, lifecycle.VacateAsked | lifecycle.AgentEnds):
            self._was_told_to_vacate = True
        self.state, todos = lifecycle.step(self.state, event)
        if self.forgets_failures and isinstance(self.state, lifecycle.Running):
            self.state = lifecycle.Running(self.state.container)
        if self.state is not before:
            was, now = type(before).__name__, type(self.state).__name__
            self.reporter.note("transition", was=was, now=now, because=str(event)[:200])
        if isinstance(before, lifecycle.Saving) and not isinstance(self.state, lifecycle.Saving):
            self._leave_queue()
        if isinstance(self.state, lifecycle.Ended):
            self._ended.set()
            self.context.saves.look_again()
        for todo in todos:
            # This must not wait for a thread that may hang: after the next step this process may be gone.
            if isinstance(todo, lifecycle.ReportSaved):
                self.reporter.report_saved(todo.checkpoint, self.times.slice(), self._measured)
            else:
                self._todos.put_nowait(todo)
        if isinstance(event, lifecycle.OutOfTime):
            self._tell_what_waits()

    async def run(self) -> None:
        """Prepare the job and see it through."""
        try:
            begun = await self.launch()
            self.feed(begun)
            if (container := self.container) is not None:
                self._container = container
                self.since_s = self.began_s = self.context.clock.now_s()
                self.times.turn_to(Activity.COMPUTING)
                self.reporter.follow(container, may_wait=lambda: self.is_computing)
                loop = asyncio.get_running_loop()
                self.context.clock.start(self._await_exit, container, loop)
            while not isinstance(self.state, lifecycle.Ended) or not self._todos.empty():
                await self._do(await self._todos.get())
        except Exception as error:  # a bug of ours: the process must not go on unseen, and the job not come back here
            if (container := self.container) is not None:
                await asyncio.to_thread(self._kill, container)
            self._report_return(ReturnReason.NODE_FAULT, f"the agent broke: {error!r}")
            raise
        finally:
            self.done.set()

    # ── while it runs ──

    def _await_exit(self, container: ContainerId, loop: asyncio.AbstractEventLoop) -> None:
        event = exit_of(self.context.runtime, container, self.context.clock)
        with suppress(RuntimeError):  # the loop has been closed: the job has ended, and nobody listens any more
            loop.call_soon_threadsafe(self.feed, event)

    def _tell_what_waits(self) -> None:
        """Report at once what waits, perhaps behind a container that cannot be removed.

        A job of which control has heard nothing before the farewell counts as unstarted.
        """
        for todo in [self._todos.get_nowait() for _ in range(self._todos.qsize())]:
            match todo:
                case lifecycle.ReportCheckpointed(checkpoint):
                    self.reporter.report_checkpointed(checkpoint, self.times.slice(), self._measured)
                case lifecycle.ReportStopped(reason, limit):
                    self.reporter.report_stopped(reason, limit, self.times.slice())
                case lifecycle.ReportReturned(why, detail):
                    self.reporter.flush_output()
                    self._report_return(why, detail)
                case _:
                    self._todos.put_nowait(todo)

    # ── what the lifecycle says ──

    async def _do(self, todo: lifecycle.Todo) -> None:
        match todo:
            case lifecycle.Save(container):
                await self._until_saved(container)
            case lifecycle.GoOn(container):
                await asyncio.to_thread(self._go_on, container)
            case lifecycle.Signal(container, name):
                await asyncio.to_thread(self._signal, container, name)
            case lifecycle.StoreFolder():
                await self._store_folder()
            case lifecycle.Finish(_, exit_code):
                self.times.turn_to(Activity.OVER)
                await self._finish(exit_code)
            case lifecycle.Kill(container):
                self.times.turn_to(Activity.OVER)
                await asyncio.to_thread(self._kill, container)
            case lifecycle.ReportSaved():
                raise AssertionError("what is published is reported at once")
            case lifecycle.ReportCheckpointed(checkpoint):
                self.reporter.report_checkpointed(checkpoint, self.times.slice(), self._measured)
                await self._keep_reports()
            case lifecycle.ReportUnstartable(exit_code, reason):
                self.reporter.report_unstartable(exit_code, reason, self.times.slice())
            case lifecycle.ReportStopped(reason, limit):
                await self._end_output() if self.has_run else None
                self.reporter.report_stopped(reason, limit, self.times.slice())
            case lifecycle.ReportReturned(why, detail):
                await self._end_output() if self.has_run else None
                self._report_return(why, detail)
            case lifecycle.Clean():
                await asyncio.to_thread(self.clean)

    def _leave_queue(self) -> None:
        """Give up the wait for a lane: what becomes of the job does not depend on a save any more."""
        if self._turn is not None and self._saving is None and self._turn is not asyncio.current_task():
            self._turn.cancel()

    async def _until_saved(self, container: ContainerId) -> None:
        """Save the job in its turn. Return when that is done, and at once if the job is not to be saved any more."""
        if not self.is_saving:
            return
        turn = self._turn = asyncio.create_task(self._save_in_turn(container))
        try:
            await asyncio.wait({turn})
        finally:
            turn.cancel()
        if not turn.cancelled():
            turn.result()

    async def _save_in_turn(self, container: ContainerId) -> None:
        """Save the job when a lane is free; at the agent's end, only if that does not make others late."""
        saves = self.context.saves
        async with saves.one(waits=self._is_vacating()) as lane:
            await saves.let_others_end(lane, unless=lambda: not self._is_vacating() or self._is_in_time(saves.busy + 1))
            if not isinstance(self.state, lifecycle.Saving):
                return
            load, estimates = self.load, self.context.estimates
            cost = estimates.cost(load.way) if estimates.knows(load.way) else None
            under_way = self._saving = _SaveUnderWay(self.context.clock.monotonic_s(), lane, cost)
            saved = await asyncio.to_thread(self._save, container)
            self._saving = None
            if not isinstance(saved, Kept):
                self.feed(saved)
                return
            took_s = self.context.clock.monotonic_s() - under_way.began_s
            self._note(saved, under_way, memory_bytes=self.memory_bytes)
            # Nothing is awaited between a look at the state and the event of a save after which the job goes on: what
            # comes later finds it running.
            if self._is_last_save() and not await self.reporter.confirm_save(took_s):
                self.since_s = self.context.clock.now_s()
                self.feed(lifecycle.SaveFailed("nobody goes on from its checkpoint"))
            else:
                self.feed(lifecycle.SaveDone(saved.checkpoint))

    def _is_last_save(self) -> bool:
        return isinstance(self.state, lifecycle.Saving) and not self.state.periodic

    def _is_vacating(self) -> bool:
        return isinstance(self.state, lifecycle.Saving) and self.state.vacating

    def _is_in_time(self, at_once: int) -> bool:
        """Return True if a save that begins now, with so many at once, should end in time."""
        expected_s = self.context.estimates.expected_s(self.load, at_once=at_once)
        return self.context.clock.now_s() + expected_s <= self.context.cut_s()

    def weigh(self) -> None:
        """Measure the memory in use; what was measured last stays if that does not work. Blocks."""
        if (container := self.container) is None:
            return
        with suppress(RuntimeFault):
            used = self.context.runtime.usage([container])
            self.memory_bytes = used[container].memory_bytes if container in used else self.memory_bytes

    def stop(self) -> None:
        """Pause the job if its save has not begun. If that does not work, its save will say why. Blocks."""
        if (container := self.container) is None or self._saving is not None:
            return
        self.times.turn_to(Activity.SAVING)
        with suppress(RuntimeFault, ContainerExited, CannotCheckpoint):
            self._pause(container)

    def _pause(self, container: ContainerId) -> None:
        """Pause the job. If another call failed while this one waited for it, do not try again: that takes seconds."""
        came_s = self.context.clock.monotonic_s()
        with self._pausing:
            if self._refused_s >= came_s:
                raise RuntimeFault(self._refused)
            try:
                self.context.runtime.pause(container)
            except RuntimeFault as error:
                self._refused, self._refused_s = str(error), self.context.clock.monotonic_s()
                raise

    def _save(self, container: ContainerId) -> Kept | lifecycle.SaveFailed:
        """Pause, checkpoint, copy, publish. The container is left paused: only a published checkpoint may let it go."""
        context = self.context
        try:
            self.weigh()
            self.times.turn_to(Activity.SAVING)
            self._pause(container)
            paused_s = self.context.clock.monotonic_s()
            kept = self.stored.save_memory(
                context.runtime,
                container,
                lambda: self.reporter.mark(paused_s=paused_s),
                at_the_end=self._is_vacating(),
            )
            self.reporter.record_save(kept.checkpoint)
            return kept
        except ContainerExited as error:
            return lifecycle.SaveFailed(f"it exited first: {error}")
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            self.reporter.warn("cannot be saved, and goes on", error)
            self._note_failure(error)
            self._failed += 1
            left_s = context.cut_s() - context.clock.now_s()
            self.save_again_s = context.clock.now_s() + min(SAVE_PAUSE_S, max(0.0, left_s) / (lifecycle.SAVE_TRIES + 1))
            return lifecycle.SaveFailed(str(error), lasts=isinstance(error, CannotCheckpoint) and error.lasts)
        finally:
            self.since_s = context.clock.now_s()

    def _note(self, kept: Kept, save: "_SaveUnderWay", *, memory_bytes: int) -> None:
        """Learn from the cost of a save, and keep the cost for the report."""
        self.times.turn_to(Activity.OVER)  # it is published; if the job goes on, `_go_on` says so
        load, took_s, estimates = self.load, self.context.clock.monotonic_s() - save.began_s, self.context.estimates
        at_once, expected_s = save.lane.at_once, save.expected_s(load)
        self.saved_s = self.context.clock.now_s()
        self._measured = None
        is_telling = estimates.is_telling(load.way, wrote_all=kept.wrote_all)
        if is_telling:
            estimates.note(load, at_once=at_once, took_s=took_s)
        # Control learns from a save that ends an attempt, and not from one after which the job goes on.
        if is_telling or (isinstance(self.state, lifecycle.Saving) and self.state.periodic):
            self._measured = Measured(
                memory_bytes=memory_bytes,
                stored_bytes=kept.stored_bytes,
                took_s=took_s,
                expected_s=expected_s if is_telling else None,
                at_once=at_once,
                way=load.way,
                failed=self._failed,
            )
            self._failed = 0
        self.storage_fault = ""
        said = "saved with all that it has" if kept.wrote_all else "saved"
        self.reporter.note(said, number=kept.checkpoint.number, took_s=round(took_s, 2), expected_s=expected_s)

    def _note_failure(self, error: Exception) -> None:
        self.storage_fault = str(error) if isinstance(error, StorageError) else ""

    async def _keep_reports(self) -> None:
        """See that a periodic save is not lost with this process. A storage that hangs does not hold the job up."""
        self.times.turn_to(Activity.SAVING)
        try:
            async with asyncio.timeout(KEPT_WITHIN_S):
                await asyncio.to_thread(self.reporter.keep_reports)
        except (TimeoutError, OSError) as error:
            self.reporter.warn("its save is lost with this agent until control has heard of it", error)

    def _go_on(self, container: ContainerId) -> None:
        self.times.turn_to(Activity.COMPUTING)
        try:
            self.context.runtime.unpause(container)
        except RuntimeFault as error:
            self.reporter.warn("cannot let it go on", error)

    def _signal(self, container: ContainerId, name: str) -> None:
        """Send the signal; a paused process would not hear it, so the container goes on first."""
        self._signalled_s = self._signalled_s or self.context.clock.monotonic_s()
        self.times.turn_to(Activity.SAVING)
        try:
            self.context.runtime.unpause(container)
            self.context.runtime.signal(container, name)
        except RuntimeFault as error:
            self.reporter.warn("cannot tell it to save itself", error)

    async def _finish(self, exit_code: int) -> None:
        """Store the results, and report the exit."""
        results = await self._persistently(lambda: self.reporter.store_results(exit_code))
        if results is None:
            return
        await self._end_output()
        self.reporter.report_exit(exit_code, results, self.times.slice())
        self.feed(lifecycle.Finished())

    async def _store_folder(self) -> None:
        """Publish the folder of a workload that has saved itself, perhaps without being told to."""
        began_s = self._signalled_s or self.context.clock.monotonic_s()
        self.times.turn_to(Activity.SAVING)
        await self._end_output()
        kept = await self._persistently(self.stored.save_folder)
        if kept is None:
            return
        mark = self.reporter.end_output()
        written = {"log_lines": mark.lines, "open_lines": mark.open_lines}
        checkpoint = kept.checkpoint.model_copy(update=written)
        self._note(kept, _SaveUnderWay(began_s, Limiter(), None), memory_bytes=checkpoint.size_bytes)
        self.feed(lifecycle.SaveDone(checkpoint))

    async def _persistently(self, store: Callable[[], Result]) -> Result | None:
        """Return the result of `store`. A storage that fails is tried again. None when there is no time left."""
        pause_s = 1.0
        while isinstance(self.state, lifecycle.Finishing | lifecycle.Storing):
            try:
                return await asyncio.to_thread(store)
            except (StorageError, OSError) as error:
                self.reporter.warn("cannot store what it left, trying again", error)
                self._note_failure(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause_s)
            pause_s = min(30.0, 2 * pause_s)
        return None

    async def _end_output(self) -> None:
        """Pass on all of the output of a process that has ended for good."""
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
        """Kill the container at the agent's end, when the job's own thread hangs elsewhere. Blocks."""
        if self._container is not None:
            self._end(self._container)

    def _report_return(self, why: ReturnReason, detail: str) -> None:
        # The storage may not be mounted here. A storage that was not waited for, since the agent ends, says nothing.
        leaves = self.context.clock.now_s() >= self.context.cut_s() or self._was_told_to_vacate
        began_nothing = why is ReturnReason.STORAGE_FAULT and not self.has_run and not leaves
        self.node_fault = began_nothing or why in (
            ReturnReason.NODE_FAULT,
            ReturnReason.CANNOT_RESTORE,
            ReturnReason.CHECKPOINT_BROKEN,
        )
        measured = self._cost_so_far() if why is ReturnReason.TOO_LATE else None
        self.reporter.report_return(why, detail, self.times.slice(), measured)

    def _cost_so_far(self) -> Measured | None:
        """Return the cost so far of a save that comes too late; None if no save goes on."""
        if (save := self._saving) is None:
            return None
        return Measured(
            memory_bytes=self.memory_bytes,
            stored_bytes=0,
            took_s=self.context.clock.monotonic_s() - save.began_s,
            expected_s=save.expected_s(self.load),
            at_once=save.lane.at_once,
            way=self.load.way,
        )


def exit_of(runtime: Runtime, container: ContainerId, clock: Clock) -> lifecycle.Event:
    """Wait for a job's process to end; return how it ended, as an event. Blocks.

    A runtime that goes away takes its containers along, and somebody may kill them: neither is the job's fault.
    """
    give_up_s = float("inf")
    while True:
        try:
            exit_code = runtime.wait(container)
            if exit_code == TERMINATED:
                clock.pause(ENGINE_ENDS_S)
                runtime.facts()
            return lifecycle.Exited(exit_code)
        except ContainerKilled as error:
            return lifecycle.Lost(str(error))
        except RuntimeFault as error:
            give_up_s = min(give_up_s, clock.monotonic_s() + RUNTIME_BACK_S)
            if clock.monotonic_s() >= give_up_s:
                return lifecycle.Lost(f"the container runtime went away: {error}")
            clock.pause(1)
