"""`glean run`: a user's own Slurm job, whose container is saved and goes on wherever Slurm starts the job again.

`job.executor` does what `job.lifecycle` says, as for an agent. What is here is how such a job begins, and when it is
to be saved; `slurm_reporter` tells Slurm and the job's owner what becomes of it.
"""

import asyncio
import math
import queue
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.common.limiter import Limiters
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import JobContext
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job.launch import begun
from gleaner.agent.messages import Checkpoint, ReturnReason, Way
from gleaner.agent.privileged.common.slurm_job import JobHandle
from gleaner.agent.runtime.interface import ContainerId, ContainerSpec, Runtime, RuntimeFault
from gleaner.agent.timing.deadlines import early_save_s
from gleaner.agent.timing.save_cost import SaveEstimates
from gleaner.agent.timing.stopwatch import Stopwatch, elapsed_s
from gleaner.agent.user_job.catalog import Catalog
from gleaner.agent.user_job.slurm_reporter import ENDED, SlurmReporter, say
from gleaner.agent.user_job.when_to_save import Plan, Wish, by_clock, by_signal, was_asked_before

_TICK_S = 1.0
_AGAIN_S = 2.0
"""Between two tries to save it."""
_WEIGH_EVERY_S = 10.0
_ASK_EVERY_S = 60.0
_KILLED_WITHIN_S = 120.0
"""After it was requeued, Slurm ends our process; if it has not by then, we go by ourselves."""

Happenings: TypeAlias = "queue.SimpleQueue[int]"
"""The numbers of the signals that have come."""
_OVER = 0
"""No signal's number: nothing of the job is left to do."""


def listening() -> Happenings:
    """Hear signals from now on, and do not die of them."""
    heard: Happenings = queue.SimpleQueue()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: heard.put(number))
    return heard


@dataclass(slots=True)
class UserJob:
    """One start of one job, from the launch of its container to its end."""

    slurm_job: JobHandle
    runtime: Runtime
    stored: JobCheckpoints
    catalog: Catalog
    spec: ContainerSpec
    plan: Plan
    results: Path
    begin_with: Path | None
    happened: Happenings
    readmit: Callable[[], object] = lambda: None
    """Has the node's helper make the job's folder again: it is removed with a container that came to nothing."""
    say: Callable[[str], None] = say
    clock: Clock = field(default_factory=SystemClock)
    executor: Executor = field(init=False)
    _reporter: SlurmReporter = field(init=False)
    _heard: list[int] = field(default_factory=list[int])
    """Signals that have come and have not been obeyed."""
    _has_container: bool = False
    _weighed_s: float = 0.0
    _asked_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._asked_s = self.clock.now_s()
        self._reporter = SlurmReporter(
            slurm_job=self.slurm_job,
            runtime=self.runtime,
            catalog=self.catalog,
            assignment=self.stored.assignment,
            node=self.stored.node.node,
            folder=self.stored.folder,
            results=self.results,
            clock=self.clock,
            notice=self._notice,
            say=self.say,
        )
        context = JobContext(
            runtime=self.runtime,
            estimates=SaveEstimates(Way.CRIU, at_once=1),
            saves=Limiters(1),
            clock=self.clock,
            hard_stop_s=lambda: math.inf,
            cleaner="Slurm's Epilog",
        )
        times = Stopwatch(self.clock)
        self.executor = Executor(
            context, self.stored, self._reporter, self._launch, self._clean, times, forgets_failures=True
        )

    def run(self) -> int:
        """See the job through; return the workload's exit code, if it comes to one."""
        asyncio.run(self._see_through())
        if self._reporter.is_requeued:
            self._wait_for_the_end()
            return ENDED
        return self._reporter.exit_code

    async def _see_through(self) -> None:
        running = asyncio.create_task(self.executor.run())
        running.add_done_callback(lambda _: self.happened.put(_OVER))
        while (number := await asyncio.to_thread(self._next)) != _OVER:
            if number is not None:
                self._heard.append(number)
            if self.executor.is_computing or self.executor.is_saving:
                await self._look()
        await running

    def _next(self) -> int | None:
        """Wait for a signal, for a tick at most."""
        try:
            return self.happened.get(timeout=_TICK_S)
        except queue.Empty:
            return None

    # ── how it begins ──

    async def _launch(self) -> lifecycle.Started | lifecycle.NotStarted:
        found = await asyncio.to_thread(self._begin)
        await self._hear_what_was_missed()
        await self._notice()
        return found

    def _begin(self) -> lifecycle.Started | lifecycle.NotStarted:
        """Start the job, or restore it from the newest checkpoint that can be read here.

        A checkpoint that cannot be read is set aside once an older one has been restored. If none can be read, that may
        be the node's fault: all of them stay as they are, and nothing begins anew.
        """
        broken: list[tuple[Checkpoint, str]] = []
        while True:
            stored = self.executor.stored
            found = begun(self.runtime, self.spec, stored, fill=self._fill)
            used = stored.assignment.checkpoint
            if (
                used is None
                or not isinstance(found, lifecycle.NotStarted)
                or found.why is not ReturnReason.CHECKPOINT_BROKEN
            ):
                break
            before = self.catalog.before(used)
            if before is None:
                self.say(f"nothing that was saved can be read on this node; if no other can: rm {self.catalog.record}")
                break
            broken.append((used, found.detail))
            try:
                self.readmit()
            except RuntimeFault as error:
                self.say(f"cannot go on from what was saved before that: {error}")
            given = stored.assignment.model_copy(update={"checkpoint": before})
            self.executor.stored = JobCheckpoints(stored.storage, given, stored.node, stored.folder)
        for one, detail in broken if isinstance(found, lifecycle.Started) else ():
            self.catalog.drop(one)
            self.say(f"what was saved last is broken, and set aside: {detail}")
        if isinstance(found, lifecycle.Started):
            self._has_container = True
            if used is not None:
                self.say(f"goes on from what was saved, after {elapsed_s(self.plan.began_s, self.clock.now_s()):.1f} s")
        return found

    def _fill(self, place: Path) -> None:
        if self.begin_with is not None:
            workdir_tar.unpack(workdir_tar.pack(self.begin_with), place)

    async def _hear_what_was_missed(self) -> None:
        """Hear a signal that Slurm sent before there was a step of ours: what Gleaner has written down stays."""
        if self._heard or not self.happened.empty():
            return
        job = await asyncio.to_thread(self.slurm_job.look)
        if job is not None and was_asked_before(job):
            self._heard.append(signal.SIGUSR1)

    # ── when it is saved ──

    async def _notice(self) -> None:
        """Obey the signals that have come while something else was done."""
        with suppress(queue.Empty):
            while True:
                self._heard.append(self.happened.get_nowait())
        for number in self._heard.copy():
            await self._obey(number)

    async def _look(self) -> None:
        """Look whether the job is to be saved, or to end."""
        if self._heard:
            await self._obey(self._heard[0])
        elif self.executor.is_computing:
            wish = await asyncio.to_thread(self._by_clock)
            if wish is not None and self.executor.is_computing:
                self._follow(wish)

    async def _obey(self, number: int) -> None:
        """Do what a signal asks for, or leave it for later.

        Before the job has begun and while it is saved, it can only be asked to vacate: a save after which it was to go
        on becomes the last one, and somebody else may have requeued it meanwhile.
        """
        wish = await asyncio.to_thread(self._by_signal, number)
        is_to_vacate = wish in (Wish.VACATE, Wish.VACATE_REQUEUED)
        may_vacate = isinstance(self.executor.state, lifecycle.Preparing | lifecycle.Saving)
        if number in self._heard and (self.executor.is_computing or (is_to_vacate and may_vacate)):
            self._heard.remove(number)
            self._follow(wish)

    def _follow(self, wish: Wish) -> None:
        self._reporter.wish = wish
        if wish is Wish.SAVE:
            self.executor.feed(lifecycle.SaveDue())
        elif wish is Wish.END:
            self.say("the job was cancelled")
            self._reporter.exit_code = ENDED
            self._reporter.forget()
            self.executor.feed(lifecycle.DropAsked())
        else:
            self.executor.feed(lifecycle.AgentEnds())

    def _by_signal(self, number: int) -> Wish:
        job = self.slurm_job.look()
        if job is not None:
            self.plan = replace(self.plan, end_s=job.end_s)  # a job that is preempted ends after its grace time
        return by_signal(number, job)

    def _by_clock(self) -> Wish | None:
        now_s = self.clock.now_s()
        if now_s >= self._asked_s + _ASK_EVERY_S:
            self._asked_s = now_s
            if (job := self.slurm_job.look()) is not None:
                self.plan = replace(self.plan, end_s=job.end_s)
        if now_s >= self._weighed_s + _WEIGH_EVERY_S:
            self._weighed_s = now_s
            self.executor.weigh()
        executor = self.executor
        save_s = executor.context.estimates.all_s([executor.load])
        wish = by_clock(self.plan, now_s=now_s, since_s=executor.since_s, save_s=save_s)
        if wish is None and executor.stored.is_to_begin_chain:  # at the end it may take too long to write all there is
            is_due = now_s >= early_save_s(executor.since_s, exit_by_s=self.plan.end_s or math.inf)
            wish = Wish.SAVE if is_due else None
        return None if now_s < executor.since_s + _AGAIN_S else wish

    # ── how it ends ──

    def _clean(self) -> None:
        """Remove what is left of a container that came to nothing; one that was started has been removed."""
        if self._has_container:
            return
        try:
            self.runtime.remove(ContainerId(self.spec.name))
        except RuntimeFault as error:
            self.say(f"cannot remove the container; Slurm's Epilog will: {error}")

    def _wait_for_the_end(self) -> None:
        """Wait for Slurm's signal if nothing was begun: what comes after us in the job's script must not run now."""
        if self._has_container or self._heard:
            return
        with suppress(queue.Empty):
            self.happened.get(timeout=_KILLED_WITHIN_S)
