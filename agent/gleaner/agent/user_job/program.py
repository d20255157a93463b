"""`glean run`: a user's own Slurm job, whose container is saved and restored wherever Slurm starts the job again.

`job.executor` carries out the steps of `job.lifecycle`, as for an agent. This module starts such a job and decides when
to save it, and `slurm_reporter` reports to Slurm and to the job's owner.
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
from gleaner.agent.common.limiter import Limiter
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import JobContext
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job.launch import start_or_restore
from gleaner.agent.messages import Checkpoint, ReturnReason, Way
from gleaner.agent.privileged.common.slurm_job import JobHandle
from gleaner.agent.runtime.interface import ContainerId, ContainerSpec, Runtime, RuntimeFault
from gleaner.agent.timing.deadlines import early_save_s
from gleaner.agent.timing.save_cost import SaveEstimates
from gleaner.agent.timing.stopwatch import Stopwatch, elapsed_s
from gleaner.agent.user_job.catalog import Catalog
from gleaner.agent.user_job.slurm_reporter import TERMINATED, SlurmReporter, say
from gleaner.agent.user_job.when_to_save import SavePlan, SaveWish, by_clock, by_signal, had_missed_signal

_TICK_S = 1.0
_AGAIN_S = 2.0
"""The pause between two tries to save the job."""
_MEASURE_EVERY_S = 10.0
_ASK_EVERY_S = 60.0
_SLURM_KILLS_WITHIN_S = 120.0
"""The time that Slurm can take to end our process after a requeue, before we exit on our own."""

Signals: TypeAlias = "queue.SimpleQueue[int]"
"""The numbers of the signals that have arrived."""
_OVER = 0
"""A number that no signal has, which stands for the end of the job."""


def listen_for_signals() -> Signals:
    """Receive signals from now on, instead of being ended by them."""
    signals: Signals = queue.SimpleQueue()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.put(number))
    return signals


@dataclass(slots=True)
class UserJob:
    """One start of one job, from the launch of its container to its end."""

    slurm_job: JobHandle
    runtime: Runtime
    checkpoints: JobCheckpoints
    catalog: Catalog
    spec: ContainerSpec
    plan: SavePlan
    results: Path
    begin_with: Path | None
    signals: Signals
    readmit: Callable[[], object] = lambda: None
    """Has the node helper make the job's folder again, after it was removed with a container that did not start."""
    say: Callable[[str], None] = say
    clock: Clock = field(default_factory=SystemClock)
    executor: Executor = field(init=False)
    _reporter: SlurmReporter = field(init=False)
    _pending: list[int] = field(default_factory=list[int])
    """Signals that have not been obeyed yet."""
    _has_container: bool = False
    _last_measurement_s: float = 0.0
    _last_look_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_look_s = self.clock.now_s()
        self._reporter = SlurmReporter(
            slurm_job=self.slurm_job,
            runtime=self.runtime,
            catalog=self.catalog,
            assignment=self.checkpoints.assignment,
            node=self.checkpoints.node.node,
            folder=self.checkpoints.folder,
            results=self.results,
            clock=self.clock,
            obey_signals=self._obey_pending,
            say=self.say,
        )
        context = JobContext(
            runtime=self.runtime,
            estimates=SaveEstimates(Way.CRIU, at_once=1),
            saves=Limiter(1),
            clock=self.clock,
            hard_stop_s=lambda: math.inf,
            cleaner="Slurm's Epilog",
        )
        times = Stopwatch(self.clock)
        self.executor = Executor(
            context, self.checkpoints, self._reporter, self._launch, self._clean, times, forgets_failures=True
        )

    def run(self) -> int:
        """Run the job to its end. Return the workload's exit code, or another one if the workload did not exit."""
        asyncio.run(self._run_job())
        if self._reporter.is_requeued:
            self._wait_for_slurm()
            return TERMINATED
        return self._reporter.exit_code

    async def _run_job(self) -> None:
        running = asyncio.create_task(self.executor.run())
        running.add_done_callback(lambda _: self.signals.put(_OVER))
        while (number := await asyncio.to_thread(self._next_signal)) != _OVER:
            if number is not None:
                self._pending.append(number)
            if self.executor.is_computing or self.executor.is_saving:
                await self._check()
        await running

    def _next_signal(self) -> int | None:
        """Wait for a signal for at most one tick."""
        try:
            return self.signals.get(timeout=_TICK_S)
        except queue.Empty:
            return None

    # ── how it begins ──

    async def _launch(self) -> lifecycle.Started | lifecycle.NotStarted:
        event = await asyncio.to_thread(self._start_from_newest)
        await self._find_missed_signal()
        await self._obey_pending()
        return event

    def _start_from_newest(self) -> lifecycle.Started | lifecycle.NotStarted:
        """Start the job, or restore it from the newest checkpoint that can be read here.

        An unreadable checkpoint is set aside once an older one has been restored. If no checkpoint can be read, the
        node might be to blame, so all of them stay and the job does not start from the beginning.
        """
        broken: list[tuple[Checkpoint, str]] = []
        while True:
            checkpoints = self.executor.checkpoints
            event = start_or_restore(self.runtime, self.spec, checkpoints, fill=self._fill)
            checkpoint = checkpoints.assignment.checkpoint
            if (
                checkpoint is None
                or not isinstance(event, lifecycle.NotStarted)
                or event.why is not ReturnReason.CHECKPOINT_BROKEN
            ):
                break
            before = self.catalog.before(checkpoint)
            if before is None:
                self.say(f"no save can be read on this node; if no other node can read one: rm {self.catalog.record}")
                break
            broken.append((checkpoint, event.detail))
            try:
                self.readmit()
            except RuntimeFault as error:
                self.say(f"cannot continue from an earlier save: {error}")
            assignment = checkpoints.assignment.model_copy(update={"checkpoint": before})
            self.executor.checkpoints = JobCheckpoints(
                checkpoints.storage, assignment, checkpoints.node, checkpoints.folder
            )
        for one, detail in broken if isinstance(event, lifecycle.Started) else ():
            self.catalog.set_aside(one)
            self.say(f"the last save is broken, and was set aside: {detail}")
        if isinstance(event, lifecycle.Started):
            self._has_container = True
            if checkpoint is not None:
                self.say(f"continues from the last save after {elapsed_s(self.plan.began_s, self.clock.now_s()):.1f} s")
        return event

    def _fill(self, place: Path) -> None:
        if self.begin_with is not None:
            workdir_tar.unpack(workdir_tar.pack(self.begin_with), place)

    async def _find_missed_signal(self) -> None:
        """Find out whether a signal arrived before our step existed. Gleaner also records its signals in the job's
        comment, which is read here."""
        if self._pending or not self.signals.empty():
            return
        job = await asyncio.to_thread(self.slurm_job.look)
        if job is not None and had_missed_signal(job):
            self._pending.append(signal.SIGUSR1)

    # ── when it is saved ──

    async def _obey_pending(self) -> None:
        """Obey the signals that have arrived since the last time."""
        with suppress(queue.Empty):
            while True:
                self._pending.append(self.signals.get_nowait())
        for number in self._pending.copy():
            await self._obey(number)

    async def _check(self) -> None:
        """Save or end the job if a signal or the clock asks for it."""
        if self._pending:
            await self._obey(self._pending[0])
        elif self.executor.is_computing:
            wish = await asyncio.to_thread(self._wish_of_clock)
            if wish is not None and self.executor.is_computing:
                self._follow(wish)

    async def _obey(self, number: int) -> None:
        """Do what a signal asks for, or leave it for later.

        Before the job has begun and during a save, only a request to vacate is obeyed, whether or not someone else has
        requeued the job. A periodic save then becomes the last one.
        """
        wish = await asyncio.to_thread(self._wish_of_signal, number)
        is_to_vacate = wish in (SaveWish.VACATE, SaveWish.VACATE_REQUEUED)
        may_vacate = isinstance(self.executor.state, lifecycle.Preparing | lifecycle.Saving)
        if number in self._pending and (self.executor.is_computing or (is_to_vacate and may_vacate)):
            self._pending.remove(number)
            self._follow(wish)

    def _follow(self, wish: SaveWish) -> None:
        self._reporter.wish = wish
        if wish is SaveWish.SAVE:
            self.executor.feed(lifecycle.SaveDue())
        elif wish is SaveWish.END:
            self.say("the job was cancelled")
            self._reporter.exit_code = TERMINATED
            self._reporter.forget()
            self.executor.feed(lifecycle.DropAsked())
        else:
            self.executor.feed(lifecycle.AgentEnds())

    def _wish_of_signal(self, number: int) -> SaveWish:
        job = self.slurm_job.look()
        if job is not None:
            self.plan = replace(self.plan, end_s=job.end_s)  # a preempted job ends after its grace time
        return by_signal(number, job)

    def _wish_of_clock(self) -> SaveWish | None:
        now_s = self.clock.now_s()
        if now_s >= self._last_look_s + _ASK_EVERY_S:
            self._last_look_s = now_s
            if (job := self.slurm_job.look()) is not None:
                self.plan = replace(self.plan, end_s=job.end_s)
        if now_s >= self._last_measurement_s + _MEASURE_EVERY_S:
            self._last_measurement_s = now_s
            self.executor.measure_memory()
        executor = self.executor
        save_s = executor.context.estimates.all_s([executor.load])
        wish = by_clock(self.plan, now_s=now_s, since_s=executor.since_s, save_s=save_s)
        if wish is None and executor.checkpoints.needs_full_checkpoint:  # at the end a full save might take too long
            is_due = now_s >= early_save_s(executor.since_s, exit_by_s=self.plan.end_s or math.inf)
            wish = SaveWish.SAVE if is_due else None
        return None if now_s < executor.since_s + _AGAIN_S else wish

    # ── how it ends ──

    def _clean(self) -> None:
        """Remove the remains of a container that did not start. The executor has removed a container that did start."""
        if self._has_container:
            return
        try:
            self.runtime.remove(ContainerId(self.spec.name))
        except RuntimeFault as error:
            self.say(f"cannot remove the container; Slurm's Epilog will: {error}")

    def _wait_for_slurm(self) -> None:
        """Wait for Slurm's signal if no container started, because the rest of the job's script must not run now."""
        if self._has_container or self._pending:
            return
        with suppress(queue.Empty):
            self.signals.get(timeout=_SLURM_KILLS_WITHIN_S)
