"""The shell around one task: it does what `agent.task` says, one thing after the other, and feeds back what happened.

Blocking work runs in threads of its own; everything that decides runs on the event loop, so there is no lock.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gleaner.agent import folder, task
from gleaner.agent.client import Outbox
from gleaner.agent.exits import exit_of
from gleaner.agent.joblog import JobLog
from gleaner.agent.protocol import (
    Assignment,
    Completed,
    Generation,
    GivenBack,
    Message,
    NodeFacts,
    Output,
    Saved,
    Why,
)
from gleaner.agent.runtime.protocol import (
    LABEL_AGENT,
    LABEL_ATTEMPT,
    LABEL_END,
    LABEL_JOB,
    LABEL_SLURM_JOB,
    CannotCheckpoint,
    CannotRestore,
    CannotStart,
    ContainerExited,
    ContainerId,
    ContainerSpec,
    ImageMissing,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.storage.protocol import (
    ParcelBroken,
    Storage,
    StorageError,
    generation_key,
    output_key,
)
from gleaner.agent.times import Times

log = structlog.get_logger()

SAVE_PAUSE_S = 10.0
"""The longest pause after a save that failed; shorter where there is less time left."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all tasks of one agent share."""

    agent: str
    slurm_job: str | None
    facts: NodeFacts
    runtime: Runtime
    storage: Storage
    work: Path
    outbox: Outbox
    saves: asyncio.Semaphore
    end_s: Callable[[], float]


@dataclass(slots=True)
class TaskShell:
    """One claimed job, from its assignment to its last report."""

    bench: Bench
    assignment: Assignment
    state: task.Task = field(default_factory=task.Preparing)
    saved_bytes: int = 0
    save_again_s: float = 0.0
    """Before this instant a save that has failed is not tried again: what made it fail may pass."""
    node_fault: bool = False
    """Whether it was given back because the node does not work."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _todos: asyncio.Queue[task.Todo] = field(default_factory=asyncio.Queue[task.Todo])
    _times: Times = field(default_factory=Times)
    _saves: int = 0
    """How often it was tried to save it; each try has a number of its own, as one that failed may be visible."""
    _unreported: Generation | None = None
    """Published, and control has not been told."""
    _log: JobLog = field(default_factory=JobLog)

    @property
    def container(self) -> ContainerId | None:
        """The container, while there is one."""
        return None if isinstance(self.state, task.Preparing | task.Ended) else self.state.container

    @property
    def has_run(self) -> bool:
        """Whether its container ever started."""
        return self._times.running_s > 0

    @property
    def is_reported(self) -> bool:
        """Whether it has ended and control knows all of it."""
        return self.done.is_set() and not self.bench.outbox.waits_for(self._path)

    @property
    def is_computing(self) -> bool:
        """Whether it is to be saved when the time comes."""
        return isinstance(self.state, task.Running)

    def feed(self, event: task.Event) -> None:
        """Tell the task what happened; what is to be done is queued."""
        before = self.state
        self.state, todos = task.step(self.state, event)
        if self.state is not before:
            self._say("task", was=type(before).__name__, now=type(self.state).__name__, because=str(event)[:200])
        for todo in todos:
            if isinstance(todo, task.ReportSaved):
                self._unreported = todo.generation
            self._todos.put_nowait(todo)

    async def run(self) -> None:
        """Prepare the job and see it through."""
        self._times.started_s = time.time()
        self._log = JobLog.going_on(self.assignment.generation)
        try:
            self.feed(await asyncio.to_thread(self._begin))
            if (container := self.container) is not None:
                self._times.running_s = time.time()
                self._watch(container)
            while not isinstance(self.state, task.Ended) or not self._todos.empty():
                await self._do(await self._todos.get())
        except Exception:  # a bug of ours: the process must not go on unseen
            if (container := self.container) is not None:
                await asyncio.to_thread(self._kill, container)
            raise
        finally:
            self.report_saved()
            self.done.set()

    # ── beginning ──

    def _begin(self) -> task.Event:
        given = self.assignment
        folder_ = self._folder()
        spec = self._spec(folder_)
        generation = given.generation
        try:
            folder_.mkdir(parents=True, mode=0o700, exist_ok=True)
            folder.clear(folder_)
            if generation is None:
                return task.Started(self.bench.runtime.start(spec))
            parcel = self.bench.storage.open(
                generation_key(given.job, generation.attempt, generation.number), generation.digest
            )
            folder.unpack(parcel.read("folder.tar"), folder_)
            return task.Started(self.bench.runtime.restore(spec, parcel))
        except ImageMissing as error:
            return task.NotStarted(Why.IMAGE_MISSING, str(error))
        except CannotStart as error:
            return task.NotStarted(None, str(error), error.exit_code)
        except ParcelBroken as error:
            return task.NotStarted(Why.GENERATION_BROKEN, str(error))
        except CannotRestore as error:
            return task.NotStarted(Why.CANNOT_RESTORE, str(error))
        except (RuntimeFault, StorageError, OSError) as error:
            return task.NotStarted(Why.NODE_FAULT, str(error))

    def _folder(self) -> Path:
        return self.bench.work / self.bench.agent / f"{self.assignment.job}-{self.assignment.attempt}"

    def _spec(self, folder_: Path) -> ContainerSpec:
        given = self.assignment
        return ContainerSpec(
            name=f"gleaner-{given.job}-{given.attempt}",
            image=given.image,
            command=given.command,
            environment=given.environment,
            cpus=given.cpus,
            memory_mib=given.memory_mib,
            folder=folder_,
            labels={
                LABEL_JOB: str(given.job),
                LABEL_ATTEMPT: str(given.attempt),
                LABEL_AGENT: self.bench.agent,
                LABEL_SLURM_JOB: self.bench.slurm_job or "",
                LABEL_END: str(int(self.bench.end_s())),
            },
        )

    # ── while it runs ──

    def _watch(self, container: ContainerId) -> None:
        loop = asyncio.get_running_loop()
        for work in (self._await_exit, self._read_log):
            threading.Thread(target=work, args=(container, loop), daemon=True).start()

    def _await_exit(self, container: ContainerId, loop: asyncio.AbstractEventLoop) -> None:
        event = exit_of(self.bench.runtime, container)
        loop.call_soon_threadsafe(self.feed, event)

    def _read_log(self, container: ContainerId, _loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._log.follow(self.bench.runtime.logs(container), may_wait=lambda: isinstance(self.state, task.Running))
        except RuntimeFault as error:
            self._say("cannot read the log", error=str(error))

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
        self._report("saved", Saved(generation=whole, slice=self._times.slice()))

    # ── what the task says ──

    async def _do(self, todo: task.Todo) -> None:
        match todo:
            case task.Save(container):
                async with self.bench.saves:
                    if isinstance(self.state, task.Saving):
                        self.feed(await asyncio.to_thread(self._save, container))
            case task.GoOn(container):
                await asyncio.to_thread(self._go_on, container)
            case task.Finish(container, exit_code):
                self._times.stopped_s = time.time()
                await self._finish(container, exit_code)
            case task.Kill(container):
                await asyncio.to_thread(self._kill, container)
            case task.ReportSaved():
                await asyncio.to_thread(self._log.wait)
                self.report_saved()
            case task.ReportUnstartable(exit_code, reason):
                self._report("completed", Completed(exit_code=exit_code, reason=reason, slice=self._times.slice()))
            case task.GiveBack(why, detail):
                self.node_fault = why in (Why.NODE_FAULT, Why.CANNOT_RESTORE)
                await self._drain_log() if self._times.running_s else None
                self._report("given-back", GivenBack(why=why, detail=detail, slice=self._times.slice()))
            case task.Clean():
                await asyncio.to_thread(self._clean)

    def _save(self, container: ContainerId) -> task.Event:
        """Pause, checkpoint, copy, publish. The container is left paused: only a published generation frees it."""
        given, bench = self.assignment, self.bench
        self._times.stopped_s = time.time()
        self._saves += 1
        try:
            bench.runtime.pause(container)
            with bench.storage.draft(generation_key(given.job, given.attempt, self._saves)) as draft:
                bench.runtime.checkpoint(container, draft)
                draft.add("folder.tar", folder.pack(self._folder()))
                published = draft.publish(
                    {
                        "job": given.job,
                        "attempt": given.attempt,
                        "image": given.image,
                        "image_id": bench.runtime.image_id(container),
                        "node": bench.facts.model_dump(mode="json"),
                        "paused_s": self._times.stopped_s,
                    }
                )
        except ContainerExited as error:
            return task.SaveFailed(f"it exited first: {error}")
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            self._say("save failed", error=str(error))
            left_s = bench.end_s() - time.time()
            self.save_again_s = time.time() + min(SAVE_PAUSE_S, left_s / (task.SAVE_TRIES + 1))
            return task.SaveFailed(str(error))
        self._times.saved_s = time.time()
        self.saved_bytes = published.size_bytes
        return task.SaveDone(
            Generation(
                attempt=given.attempt,
                number=self._saves,
                digest=published.digest,
                size_bytes=published.size_bytes,
                log_lines=0,
            )
        )

    def _go_on(self, container: ContainerId) -> None:
        self._times.stopped_s = 0.0
        try:
            self.bench.runtime.unpause(container)
        except RuntimeFault as error:
            self._say("cannot let it go on", error=str(error))

    async def _finish(self, container: ContainerId, exit_code: int) -> None:
        """Publish the folder; a storage that fails is tried again until there is no time left."""
        output: Output | None = None
        pause_s = 1.0
        while isinstance(self.state, task.Finishing):
            try:
                output = await asyncio.to_thread(self._publish_output, exit_code)
                break
            except (StorageError, OSError) as error:
                self._say("cannot store the result, trying again", error=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(30.0, 2 * pause_s)
        else:
            return
        await self._drain_log()
        self._report(
            "completed",
            Completed(exit_code=exit_code, output=output, log_lines=self._log.first, slice=self._times.slice()),
        )
        self.feed(task.Finished())

    def _publish_output(self, exit_code: int) -> Output:
        key = output_key(self.assignment.job, self.assignment.attempt)
        with self.bench.storage.draft(key) as draft:
            draft.add("folder.tar", folder.pack(self._folder()))
            published = draft.publish({"job": self.assignment.job, "exit_code": exit_code})
        return Output(digest=published.digest, size_bytes=published.size_bytes)

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

    def _clean(self) -> None:
        try:
            folder.clear(self._folder())
            self._folder().rmdir()
        except OSError as error:
            self._say("cannot remove the job's folder; the next agent will", error=str(error))

    def _settle(self, _container: ContainerId) -> None:
        """The last lines are read from the ended container before it is removed."""
        if self._times.running_s:
            self._log.wait()

    def _report(self, verb: str, message: Message) -> None:
        self.bench.outbox.put(self._path + verb, message)

    @property
    def _path(self) -> str:
        return f"/jobs/{self.assignment.job}/attempts/{self.assignment.attempt}/"

    def _say(self, what: str, **facts: object) -> None:
        log.info(what, job=self.assignment.job, attempt=self.assignment.attempt, **facts)
