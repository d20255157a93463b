"""The shell around one task: it does what `agent.task` says, one thing after the other, and feeds back what happened.

Blocking work runs in threads of its own; everything that decides runs on the event loop, so there is no lock.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from gleaner.agent import folder, task
from gleaner.agent.beginning import begin, way_of
from gleaner.agent.bench import Bench
from gleaner.agent.estimates import Load
from gleaner.agent.exits import exit_of
from gleaner.agent.joblog import JobLog
from gleaner.agent.lanes import Lane
from gleaner.agent.margin import AtStake, Line
from gleaner.agent.protocol import (
    Assignment,
    Checkpointed,
    Completed,
    Generation,
    GivenBack,
    Measured,
    Message,
    RestoreMeasured,
    Saved,
    Way,
    Why,
)
from gleaner.agent.runtime.protocol import CannotCheckpoint, ContainerExited, ContainerId, RuntimeFault
from gleaner.agent.storage.protocol import StorageError
from gleaner.agent.stored import Kept, Stored
from gleaner.agent.times import Doing, Times, elapsed_s

log = structlog.get_logger()

Result = TypeVar("Result")

STOPPED = 153
"""The exit code of a job that was ended for what it wrote: as of a process that a limit of size ends (SIGXFSZ)."""
SAVE_PAUSE_S = 10.0
"""The longest pause after a save that failed; shorter where there is less time left."""


@dataclass(frozen=True, slots=True)
class _SaveUnderWay:
    """A save that has begun. `line`: what was known of the cost of saves then; None: nothing was."""

    began_s: float
    """By the monotonic clock: a node's clock that is set meanwhile must not be taken for the cost of its saves."""
    lane: Lane
    line: Line | None

    def expected_s(self, load: Load) -> float | None:
        """How long it should have taken, with as many at once as there were."""
        return None if self.line is None else self.line.save_s(load.counted_bytes, at_once=self.lane.at_once)


@dataclass(slots=True)
class TaskShell:
    """One claimed job, from its assignment to its last report."""

    bench: Bench
    assignment: Assignment
    memory_bytes: int = 0
    """In use when it was last weighed."""
    since_s: float = 0.0
    """When it was last tried to save it, or else when it began to compute."""
    began_s: float = 0.0
    """When it began to compute."""
    saved_s: float = 0.0
    """When it was last saved."""
    save_again_s: float = 0.0
    """Before this instant a save that has failed is not tried again: what made it fail may pass."""
    node_fault: bool = False
    """Whether it was given back because the node does not work."""
    storage_fault: str = ""
    """Why the storage did not take what was last to be stored; empty if it did, or if something else was in the way."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    state: task.Task = field(init=False)
    stored: Stored = field(init=False)
    _todos: asyncio.Queue[task.Todo] = field(default_factory=asyncio.Queue[task.Todo])
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing more is tried: what is left to do is to report, and to clean up."""
    _times: Times = field(default_factory=Times)
    _container: ContainerId | None = None
    _failed: int = 0
    """Saves that failed since the last report of one that did not."""
    _saving: "_SaveUnderWay | None" = None
    _was_told_to_leave: bool = False
    """Before it had begun: then what it did not find in time says nothing of the node."""
    _signalled_s: float = 0.0
    """By the monotonic clock; 0: it was not."""
    _measured: Measured | None = None
    """What the latest published generation cost."""
    _log: JobLog = field(default_factory=JobLog)
    _pausing: threading.Lock = field(default_factory=threading.Lock)
    _refused: str = ""
    """Why it could not be paused the last time that this failed."""
    _refused_s: float = -math.inf
    """When that was, by the monotonic clock."""
    _turn: asyncio.Task[None] | None = None
    """Its save, from the wait for a lane on."""

    def __post_init__(self) -> None:
        self.state = task.Preparing(self.assignment.saves_itself)
        place = self.bench.work / self.bench.agent / f"{self.assignment.job}-{self.assignment.attempt}"
        self.stored = Stored(self.bench.storage, self.assignment, self.bench.facts, place)

    @property
    def container(self) -> ContainerId | None:
        """The container, while there is one."""
        return None if isinstance(self.state, task.Preparing | task.Ended) else self.state.container

    @property
    def has_run(self) -> bool:
        """Whether its container ever started."""
        return self._times.has_run

    @property
    def is_reported(self) -> bool:
        """Whether it has ended and control knows all of it."""
        return self.done.is_set() and not self.bench.outbox.waits_for(self._path)

    @property
    def is_computing(self) -> bool:
        """Whether it is to be saved when the time comes."""
        return isinstance(self.state, task.Running)

    @property
    def is_saving(self) -> bool:
        """Whether its memory is being saved, or waits for that."""
        return isinstance(self.state, task.Saving)

    @property
    def is_storing(self) -> bool:
        """Whether something of it may still come to the storage if it is given time."""
        if isinstance(self.state, task.Running):  # its save has failed, and is tried again
            return self.state.leaving and self.state.failed_saves < task.SAVE_TRIES
        return isinstance(self.state, task.Saving | task.Signalled | task.Storing | task.Finishing)

    @property
    def is_given_up(self) -> bool:
        """Whether control has been told that nothing came of it in time."""
        return isinstance(self.state, task.Ended) and self.state.late

    @property
    def at_stake(self) -> AtStake:
        """What is lost without a save, and what that costs."""
        computed_s = elapsed_s(self.since_s, self.bench.now_s())
        return AtStake(self.assignment.cpus * computed_s, self.bench.estimates.expected_s(self.load))

    @property
    def load(self) -> Load:
        """What saving it means."""
        return Load(self.memory_bytes, Way.SELF if self.assignment.saves_itself else self.bench.way)

    def feed(self, event: task.Event) -> None:
        """Tell the task what happened; what is to be done is queued."""
        before = self.state
        self.stored.hurry.set()  # whatever it was: nothing that is being prepared waits any more
        if isinstance(before, task.Preparing) and isinstance(event, task.VacateAsked | task.AgentEnds):
            self._was_told_to_leave = True
        self.state, todos = task.step(self.state, event)
        if self.state is not before:
            self._say("task", was=type(before).__name__, now=type(self.state).__name__, because=str(event)[:200])
        if isinstance(before, task.Saving) and not isinstance(self.state, task.Saving):
            self._leave_line()
        if isinstance(self.state, task.Ended):
            self._ended.set()
            self.bench.saves.look_again()
        for todo in todos:
            # What must not wait for a thread that may hang: after the next step this process may be gone.
            if isinstance(todo, task.ReportSaved):
                self._report_saved(todo.generation)
            else:
                self._todos.put_nowait(todo)
        if isinstance(event, task.OutOfTime):
            self._tell_what_waits()

    async def run(self) -> None:
        """Prepare the job and see it through."""
        self._log = JobLog.going_on(self.assignment.generation)
        try:
            async with self.bench.begins.one() as lane:
                begun = await asyncio.to_thread(begin, self.bench, self.assignment, self.stored)
            if isinstance(begun, task.Started):
                self._note_restore(at_once=lane.at_once)
            self.feed(begun)
            if (container := self.container) is not None:
                self._container = container
                self.since_s = self.began_s = self.bench.now_s()
                self._times.turn_to(Doing.COMPUTING)
                self._watch(container)
            while not isinstance(self.state, task.Ended) or not self._todos.empty():
                await self._do(await self._todos.get())
        except Exception as error:  # a bug of ours: the process must not go on unseen, nor the job come here for ever
            if (container := self.container) is not None:
                await asyncio.to_thread(self._kill, container)
            self._give_back(Why.NODE_FAULT, f"the agent broke: {error!r}")
            raise
        finally:
            self.done.set()

    def _note_restore(self, *, at_once: int) -> None:
        if (generation := self.assignment.generation) and (way := way_of(self.bench, self.assignment)):
            took_s = elapsed_s(self._times.started_s)
            restored = RestoreMeasured(stored_bytes=generation.size_bytes, took_s=took_s, at_once=at_once, way=way)
            self._times.restored = restored

    # ── while it runs ──

    def _watch(self, container: ContainerId) -> None:
        loop = asyncio.get_running_loop()
        for work in (self._await_exit, self._read_log, self._listen):
            threading.Thread(target=work, args=(container, loop), daemon=True).start()

    def _await_exit(self, container: ContainerId, loop: asyncio.AbstractEventLoop) -> None:
        event = exit_of(self.bench.runtime, container)
        loop.call_soon_threadsafe(self.feed, event)

    def _read_log(self, container: ContainerId, _loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._log.follow(self.bench.runtime.logs(container), may_wait=lambda: isinstance(self.state, task.Running))
        except RuntimeFault as error:
            self._say("cannot read the log", error=str(error))

    def _listen(self, container: ContainerId, _loop: asyncio.AbstractEventLoop) -> None:
        try:
            if (output := self.bench.runtime.live(container)) is not None:
                self._log.listen(output)
        except (RuntimeFault, OSError) as error:
            self._say("cannot listen to it", error=str(error))

    def flush_log(self, *, all_of_it: bool = False) -> None:
        """Put the lines read so far into the outbox, as far as it has room for them, or `all_of_it` at the end."""
        path = self._path + "log"
        for taken in self._log.taken(None if all_of_it else lambda: self.bench.outbox.room_bytes(path)):
            self.bench.outbox.put(path, taken.lines, log_bytes=taken.size_bytes)

    def _report_saved(self, generation: Generation) -> None:
        """Tell control of the published generation that ends the attempt.

        The container stands still since before the generation's log was marked: it has written nothing more.
        """
        self.flush_log(all_of_it=True)
        self._report("saved", Saved(generation=generation, slice=self._times.slice(), measured=self._measured))

    def _tell_what_waits(self) -> None:
        """Report at once what stands in line, perhaps behind a container that cannot be removed: control gives what it
        has not heard of before the farewell back as unstarted."""
        for todo in [self._todos.get_nowait() for _ in range(self._todos.qsize())]:
            match todo:
                case task.ReportCheckpointed(generation):
                    self._report_checkpointed(generation)
                case task.ReportStopped(reason):
                    self._report_stopped(reason)
                case task.GiveBack(why, detail):
                    self.flush_log()
                    self._give_back(why, detail)
                case _:
                    self._todos.put_nowait(todo)

    def _report_checkpointed(self, generation: Generation) -> None:
        self.flush_log()
        told = Checkpointed(generation=generation, slice=self._times.slice(), measured=self._measured)
        self._report("checkpointed", told)

    def _report_stopped(self, reason: str) -> None:
        self.flush_log()
        lines, spent = self._log.written, self._times.slice()
        self._report("completed", Completed(exit_code=STOPPED, reason=reason, log_lines=lines, slice=spent))

    # ── what the task says ──

    async def _do(self, todo: task.Todo) -> None:  # noqa: PLR0912 - one case a thing to do
        match todo:
            case task.Save(container):
                await self._until_saved(container)
            case task.GoOn(container):
                await asyncio.to_thread(self._go_on, container)
            case task.Signal(container, name):
                await asyncio.to_thread(self._signal, container, name)
            case task.StoreFolder():
                began_s = self._signalled_s or time.monotonic()  # it may have saved itself without being told to
                self._times.turn_to(Doing.SAVING)
                await self._drain_log()
                if kept := await self._persistently(self.stored.save_folder):
                    written = {"log_lines": self._log.written, "open_lines": self._log.open_lines()}
                    generation = kept.generation.model_copy(update=written)
                    self._note(kept, _SaveUnderWay(began_s, Lane(), None), memory_bytes=generation.size_bytes)
                    self.feed(task.SaveDone(generation))
            case task.Finish(_, exit_code):
                self._times.turn_to(Doing.OVER)
                await self._finish(exit_code)
            case task.Kill(container):
                await asyncio.to_thread(self._kill, container)
            case task.ReportSaved():
                raise AssertionError("what is published is reported at once")
            case task.ReportCheckpointed(generation):
                self._report_checkpointed(generation)
            case task.ReportUnstartable(exit_code, reason):
                self._report("completed", Completed(exit_code=exit_code, reason=reason, slice=self._times.slice()))
            case task.ReportStopped(reason):
                await self._drain_log()
                self._report_stopped(reason)
            case task.GiveBack(why, detail):
                await self._drain_log() if self.has_run else None
                self._give_back(why, detail)
            case task.Clean():
                await asyncio.to_thread(self._clean)

    def _leave_line(self) -> None:
        """Give up the wait for a lane: what is to become of the job now does not depend on a save."""
        if self._turn is not None and self._saving is None and self._turn is not asyncio.current_task():
            self._turn.cancel()

    async def _until_saved(self, container: ContainerId) -> None:
        """Save it in turn. Return when that is done, and at once if it is not to be saved any more."""
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
        """Save it when a lane is free; at the agent's end, when that does not make those late who have begun."""
        saves = self.bench.saves
        async with saves.one(waits=self._is_leaving()) as lane:
            await saves.let_others_end(lane, unless=lambda: not self._is_leaving() or self._is_in_time(saves.busy + 1))
            if not isinstance(self.state, task.Saving):
                return
            load, estimates = self.load, self.bench.estimates
            line = estimates.line(load.way) if estimates.knows(load.way) else None
            under_way = self._saving = _SaveUnderWay(time.monotonic(), lane, line)
            saved = await asyncio.to_thread(self._save, container)
            self._saving = None
            if isinstance(saved, Kept):
                self._note(saved, under_way, memory_bytes=self.memory_bytes)
                self.feed(task.SaveDone(saved.generation))
            else:
                self.feed(saved)

    def _is_leaving(self) -> bool:
        return isinstance(self.state, task.Saving) and self.state.leaving

    def _is_in_time(self, at_once: int) -> bool:
        """Whether a save that begins now, with so many at once, should end in time."""
        return self.bench.now_s() + self.bench.estimates.expected_s(self.load, at_once=at_once) <= self.bench.cut_s()

    def stop(self) -> None:
        """Let it stand still, if its save has not begun. If that does not work, its save will say why. Blocks."""
        if (container := self.container) is None or self._saving is not None:
            return
        self._times.turn_to(Doing.SAVING)
        with suppress(RuntimeFault, ContainerExited):
            self._pause(container)

    def _pause(self, container: ContainerId) -> None:
        """Freeze it. What was tried in vain while this call waited is not tried once more: that takes seconds."""
        came_s = time.monotonic()
        with self._pausing:
            if self._refused_s >= came_s:
                raise RuntimeFault(self._refused)
            try:
                self.bench.runtime.pause(container)
            except RuntimeFault as error:
                self._refused, self._refused_s = str(error), time.monotonic()
                raise

    def _save(self, container: ContainerId) -> Kept | task.SaveFailed:
        """Pause, checkpoint, copy, publish. The container is left paused: only a published generation frees it."""
        bench = self.bench
        try:
            used = bench.runtime.usage([container])
            self.memory_bytes = used[container].memory_bytes if container in used else self.memory_bytes
            self._times.turn_to(Doing.SAVING)
            self._pause(container)
            paused_s = time.monotonic()
            return self.stored.save_memory(
                bench.runtime,
                container,
                lambda: self._log.mark(paused_s=paused_s),
                at_the_end=self._is_leaving(),
            )
        except ContainerExited as error:
            return task.SaveFailed(f"it exited first: {error}")
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            self._say("save failed", error=str(error))
            self._note_failure(error)
            self._failed += 1
            left_s = bench.cut_s() - bench.now_s()
            self.save_again_s = bench.now_s() + min(SAVE_PAUSE_S, max(0.0, left_s) / (task.SAVE_TRIES + 1))
            return task.SaveFailed(str(error))
        finally:
            self.since_s = bench.now_s()

    def _note(self, kept: Kept, save: "_SaveUnderWay", *, memory_bytes: int) -> None:
        """Learn from what a save cost, and keep it for the report."""
        self._times.turn_to(Doing.OVER)  # it is published; if it goes on, that is said by whoever lets it
        load, took_s, estimates = self.load, time.monotonic() - save.began_s, self.bench.estimates
        at_once, expected_s = save.lane.at_once, save.expected_s(load)
        self.saved_s = self.bench.now_s()
        self._measured = None
        is_telling = estimates.is_telling(load.way, wrote_all=kept.wrote_all)
        if is_telling:
            estimates.note(load, at_once=at_once, took_s=took_s)
        # Control learns from a save that ends an attempt; from one after which the job goes on it does not.
        if is_telling or (isinstance(self.state, task.Saving) and self.state.periodic):
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
        self._say(said, number=kept.generation.number, took_s=round(took_s, 2), expected_s=expected_s)

    def _note_failure(self, error: Exception) -> None:
        self.storage_fault = str(error) if isinstance(error, StorageError) else ""

    def _go_on(self, container: ContainerId) -> None:
        self._times.turn_to(Doing.COMPUTING)
        try:
            self.bench.runtime.unpause(container)
        except RuntimeFault as error:
            self._say("cannot let it go on", error=str(error))

    def _signal(self, container: ContainerId, name: str) -> None:
        """What stands still would not hear it."""
        self._signalled_s = self._signalled_s or time.monotonic()
        self._times.turn_to(Doing.SAVING)
        try:
            self.bench.runtime.unpause(container)
            self.bench.runtime.signal(container, name)
        except RuntimeFault as error:
            self._say("cannot tell it to save itself", error=str(error))

    async def _finish(self, exit_code: int) -> None:
        """Publish the folder, and report the exit."""
        output = await self._persistently(lambda: self.stored.publish_output(exit_code))
        if output is None:
            return
        await self._drain_log()
        self._report(
            "completed",
            Completed(exit_code=exit_code, output=output, log_lines=self._log.written, slice=self._times.slice()),
        )
        self.feed(task.Finished())

    async def _persistently(self, store: Callable[[], Result]) -> Result | None:
        """What comes of it; a storage that fails is tried again until there is no time left, then None."""
        pause_s = 1.0
        while isinstance(self.state, task.Finishing | task.Storing):
            try:
                return await asyncio.to_thread(store)
            except (StorageError, OSError) as error:
                self._say("cannot store what it left, trying again", error=str(error))
                self._note_failure(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause_s)
            pause_s = min(30.0, 2 * pause_s)
        return None

    async def _drain_log(self) -> None:
        """Put all of the output of a process that has ended for good into the outbox."""
        await asyncio.to_thread(self._log.wait)
        self._log.end_lines()
        self.flush_log(all_of_it=True)

    def _kill(self, container: ContainerId) -> None:
        for act in (self.bench.runtime.kill, self._settle, self.bench.runtime.remove):
            try:
                act(container)
            except RuntimeFault as error:
                self._say("cannot remove the container; the watchdog will", error=str(error))

    def kill_now(self) -> None:
        """At the agent's end, when its own thread hangs somewhere else. Blocks."""
        if self._container is None:
            return
        try:
            self.bench.runtime.kill(self._container)
        except RuntimeFault as error:
            self._say("cannot kill the container; the watchdog will", error=str(error))

    def _clean(self) -> None:
        try:
            folder.clear(self.stored.folder)
            self.stored.folder.rmdir()
        except OSError as error:
            self._say("cannot remove the job's folder; the next agent will", error=str(error))

    def _settle(self, _container: ContainerId) -> None:
        """The last lines are read from the ended container before it is removed."""
        if self.has_run:
            self._log.wait()

    def _give_back(self, why: Why, detail: str) -> None:
        # The storage may not be mounted here; but one that was not waited for, since the agent ends, says nothing.
        leaves = self.bench.now_s() >= self.bench.cut_s() or self._was_told_to_leave
        began_nothing = why is Why.STORAGE_FAULT and not self.has_run and not leaves
        self.node_fault = began_nothing or why in (Why.NODE_FAULT, Why.CANNOT_RESTORE, Why.GENERATION_BROKEN)
        measured = self._cost_so_far() if why is Why.TOO_LATE else None
        self._report("given-back", GivenBack(why=why, detail=detail, slice=self._times.slice(), measured=measured))

    def _cost_so_far(self) -> Measured | None:
        """What a save that comes too late has taken by now."""
        if (save := self._saving) is None:
            return None
        return Measured(
            memory_bytes=self.memory_bytes,
            stored_bytes=0,
            took_s=time.monotonic() - save.began_s,
            expected_s=save.expected_s(self.load),
            at_once=save.lane.at_once,
            way=self.load.way,
        )

    def _report(self, verb: str, message: Message) -> None:
        self.bench.outbox.put(self._path + verb, message)

    @property
    def _path(self) -> str:
        return f"/jobs/{self.assignment.job}/attempts/{self.assignment.attempt}/"

    def _say(self, what: str, **facts: object) -> None:
        log.info(what, job=self.assignment.job, attempt=self.assignment.attempt, **facts)
