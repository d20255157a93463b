"""The shell around one task: it does what `agent.task` says, one thing after the other, and feeds back what happened.

Blocking work runs in threads of its own; everything that decides runs on the event loop, so there is no lock.
"""

import asyncio
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

SAVE_PAUSE_S = 10.0
"""The longest pause after a save that failed; shorter where there is less time left."""


@dataclass(slots=True)
class TaskShell:
    """One claimed job, from its assignment to its last report."""

    bench: Bench
    assignment: Assignment
    memory_bytes: int = 0
    """In use when it was last weighed."""
    since_s: float = 0.0
    """When it was last tried to save it, or else when it began to compute."""
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
    _signalled_s: float = 0.0
    _unreported: Generation | None = None
    """Published, and control has not been told."""
    _measured: Measured | None = None
    """What the latest published generation cost."""
    _log: JobLog = field(default_factory=JobLog)

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
    def load(self) -> Load:
        """What saving it means."""
        return Load(self.memory_bytes, Way.SELF if self.assignment.saves_itself else self.bench.way)

    def feed(self, event: task.Event) -> None:
        """Tell the task what happened; what is to be done is queued."""
        before = self.state
        self.state, todos = task.step(self.state, event)
        if self.state is not before:
            self._say("task", was=type(before).__name__, now=type(self.state).__name__, because=str(event)[:200])
        if isinstance(self.state, task.Ended):
            self._ended.set()
        for todo in todos:
            if isinstance(todo, task.ReportSaved):
                self._unreported = todo.generation
            self._todos.put_nowait(todo)

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
                self.since_s = time.time()
                self._times.turn_to(Doing.COMPUTING)
                self._watch(container)
            while not isinstance(self.state, task.Ended) or not self._todos.empty():
                await self._do(await self._todos.get())
        except Exception as error:  # a bug of ours: the process must not go on unseen, nor the job come here for ever
            if (container := self.container) is not None:
                await asyncio.to_thread(self._kill, container)
            self.report_saved()
            self._give_back(Why.NODE_FAULT, f"the agent broke: {error!r}")
            raise
        finally:
            self.report_saved()
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

    def flush_log(self) -> None:
        """Put the lines read so far into the outbox."""
        for lines in self._log.taken():
            self._report("log", lines)

    def report_saved(self) -> None:
        """Tell control of the published generation, unless it has been told.

        Done after the container is gone, except at the agent's end: a runtime that is slow to remove a container
        must not cost what is saved.
        """
        if self._unreported is None:
            return
        self.flush_log()
        written = {"log_lines": self._log.first, "open_lines": self._log.open_lines()}
        whole = self._unreported.model_copy(update=written)
        self._unreported = None
        self._report("saved", Saved(generation=whole, slice=self._times.slice(), measured=self._measured))

    # ── what the task says ──

    async def _do(self, todo: task.Todo) -> None:  # noqa: PLR0912 - one case a thing to do
        match todo:
            case task.Save(container):
                async with self.bench.saves.one() as lane:
                    if isinstance(self.state, task.Saving):
                        began_s = time.time()
                        saved = await asyncio.to_thread(self._save, container)
                        if isinstance(saved, Kept):
                            self._note(saved, began_s=began_s, at_once=lane.at_once, memory_bytes=self.memory_bytes)
                            self.feed(task.SaveDone(saved.generation))
                        else:
                            self.feed(saved)
            case task.GoOn(container):
                await asyncio.to_thread(self._go_on, container)
            case task.Signal(container, name):
                await asyncio.to_thread(self._signal, container, name)
            case task.StoreFolder():
                began_s = self._signalled_s or time.time()  # it may have saved itself without being told to
                self._times.turn_to(Doing.SAVING)
                await self._drain_log()
                if kept := await self._persistently(self.stored.save_folder):
                    self._note(kept, began_s=began_s, at_once=1, memory_bytes=kept.generation.size_bytes)
                    self.feed(task.SaveDone(kept.generation))
            case task.Finish(_, exit_code):
                self._times.turn_to(Doing.OVER)
                await self._finish(exit_code)
            case task.Kill(container):
                await asyncio.to_thread(self._kill, container)
            case task.ReportSaved():
                await asyncio.to_thread(self._log.wait)
                self.report_saved()
            case task.ReportCheckpointed(generation):
                self.flush_log()
                told = Checkpointed(generation=generation, slice=self._times.slice(), measured=self._measured)
                self._report("checkpointed", told)
            case task.ReportUnstartable(exit_code, reason):
                self._report("completed", Completed(exit_code=exit_code, reason=reason, slice=self._times.slice()))
            case task.GiveBack(why, detail):
                await self._drain_log() if self.has_run else None
                self._give_back(why, detail)
            case task.Clean():
                await asyncio.to_thread(self._clean)

    def _save(self, container: ContainerId) -> Kept | task.SaveFailed:
        """Pause, checkpoint, copy, publish. The container is left paused: only a published generation frees it."""
        bench = self.bench
        try:
            used = bench.runtime.usage([container])
            self.memory_bytes = used[container].memory_bytes if container in used else self.memory_bytes
            self._times.turn_to(Doing.SAVING)
            bench.runtime.pause(container)
            paused_s = time.monotonic()
            return self.stored.save_memory(bench.runtime, container, lambda: self._log.mark(paused_s=paused_s))
        except ContainerExited as error:
            return task.SaveFailed(f"it exited first: {error}")
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            self._say("save failed", error=str(error))
            self._note_failure(error)
            self._failed += 1
            left_s = bench.gone_s() - time.time()
            self.save_again_s = time.time() + min(SAVE_PAUSE_S, left_s / (task.SAVE_TRIES + 1))
            return task.SaveFailed(str(error))
        finally:
            self.since_s = time.time()

    def _note(self, kept: Kept, *, began_s: float, at_once: int, memory_bytes: int) -> None:
        """Learn from what a save cost, and keep it for the report."""
        self._times.turn_to(Doing.OVER)  # it is published; if it goes on, that is said by whoever lets it
        load, took_s, estimates = self.load, elapsed_s(began_s), self.bench.estimates
        expected_s = estimates.expected_s(load, at_once=at_once)
        estimates.note(load, at_once=at_once, took_s=took_s, expected_s=expected_s)
        self._measured = Measured(
            memory_bytes=memory_bytes,
            stored_bytes=kept.stored_bytes,
            took_s=took_s,
            expected_s=expected_s,
            at_once=at_once,
            way=load.way,
            failed=self._failed,
        )
        self._failed, self.storage_fault = 0, ""
        self._say("saved", number=kept.generation.number, took_s=round(took_s, 2), expected_s=round(expected_s, 2))

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
        self._signalled_s = self._signalled_s or time.time()
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
            Completed(exit_code=exit_code, output=output, log_lines=self._log.first, slice=self._times.slice()),
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
        self.flush_log()

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
        began_nothing = why is Why.STORAGE_FAULT and not self.has_run  # the storage may not be mounted here
        self.node_fault = began_nothing or why in (Why.NODE_FAULT, Why.CANNOT_RESTORE, Why.GENERATION_BROKEN)
        self._report("given-back", GivenBack(why=why, detail=detail, slice=self._times.slice()))

    def _report(self, verb: str, message: Message) -> None:
        self.bench.outbox.put(self._path + verb, message)

    @property
    def _path(self) -> str:
        return f"/jobs/{self.assignment.job}/attempts/{self.assignment.attempt}/"

    def _say(self, what: str, **facts: object) -> None:
        log.info(what, job=self.assignment.job, attempt=self.assignment.attempt, **facts)
