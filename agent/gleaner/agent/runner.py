"""The agent: claims jobs, keeps their shells going, beats, saves all in time, says farewell.

Its own clock decides when saving begins; control's orders, Slurm's signals and Slurm's idea of the end are
further sources, and the earliest wins. It is idle-tolerant and silence-tolerant: without work it ends and frees
the node; without control it goes on, saves to storage, and leaves its reports there.
"""

import asyncio
import json
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gleaner.agent import slurm, task
from gleaner.agent.client import ControlClient, ControlRefused, ControlSilent, Outbox
from gleaner.agent.leftovers import reap, sweep
from gleaner.agent.margin import Measured, expected_save_s, remembered, save_point_s
from gleaner.agent.protocol import Ask, AttemptRef, Beat, Farewell, NodeFacts, Order, Registration
from gleaner.agent.runtime.protocol import Runtime, RuntimeFault
from gleaner.agent.settings import AgentSettings
from gleaner.agent.shell import Bench, TaskShell
from gleaner.agent.storage.protocol import Storage

log = structlog.get_logger()

TICK_S = 0.5
CLAIM_EVERY_S = 5.0
USAGE_EVERY_S = 5.0
DELIVER_EVERY_S = 1.0
OUTBOX_FULL = 100
"""While so many reports wait for control, no more lines of output are added to them."""
REGISTER_FOR_S = 120.0
"""An agent that cannot reach control this long after its start ends: the node is better used otherwise."""
GONE_BEFORE_END_S = 2.0
"""So long before its end nothing is waited for any more."""
CLOSED = 409
"""Control's answer to an agent that it takes for ended: whatever it still computes would not count for long."""
NODE_FAULTS = 3
"""So many jobs in a row that the node could not run, and the agent ends: one bad node must not eat a queue."""
SPARE_THREADS = 32
KILL_WAIT_S = 25.0
"""After a SIGTERM that names no later end: Slurm's KillWait (30 s by default) less a little."""


@dataclass(slots=True)
class Agent:
    """One agent from its start to its farewell."""

    name: str
    end_s: float
    """When it must be gone, seconds since the epoch; only ever lowered."""
    slurm_job: str | None
    settings: AgentSettings
    client: ControlClient
    runtime: Runtime
    storage: Storage
    facts: NodeFacts
    outbox: Outbox = field(init=False)
    _shells: list[TaskShell] = field(default_factory=list[TaskShell])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _vacating: bool = False
    _ending_because: str = ""
    _fault: bool = False
    _node_faults: int = 0
    _heartbeat_s: float = 10.0
    _measured: tuple[Measured, ...] = ()
    _memory_bytes: int = 0
    _saves: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.client.post)
        self._saves = asyncio.Semaphore(self.settings.saves_at_once)
        self._measured = _recall(self._memory_of_saves)

    # ── the whole ──

    async def live(self) -> int:
        """Run until the work or the time is over; the exit status."""
        loop = asyncio.get_running_loop()
        # A job blocks one thread at most; what talks to control and to Slurm must never wait for one of them.
        loop.set_default_executor(ThreadPoolExecutor(self.facts.cpus + SPARE_THREADS))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, self._signalled, number)
        await asyncio.to_thread(reap, self.runtime, agent=self.name, whole_node=self.slurm_job is not None)
        if self.slurm_job is not None:
            await asyncio.to_thread(sweep, self.settings.work, agent=self.name)
        if not await self._register():
            return 1
        background = [asyncio.create_task(work()) for work in (self._beat, self._deliver, self._claim, self._weigh)]
        for part in background:
            part.add_done_callback(self._broke)
        try:
            await self._watch_the_clock()
        finally:
            for work in background:
                work.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        await self._part()
        return 1 if self._fault else 0

    async def _register(self) -> bool:
        give_up_s = min(time.time() + REGISTER_FOR_S, self._save_point_s())
        registration = Registration(facts=self.facts, end_s=self.end_s, slurm_job=self.slurm_job)
        while True:
            try:
                welcome = await asyncio.to_thread(self.client.register, registration)
            except ControlRefused as error:
                log.error("control refuses this agent", reason=str(error))
                return False
            except ControlSilent as error:
                if time.time() >= give_up_s or self._ending_because:
                    log.error("control cannot be reached, so there is nothing to do here", reason=str(error))
                    return False
                log.warning("control does not answer yet", reason=str(error))
                await asyncio.sleep(3)
            else:
                self._heartbeat_s = welcome.heartbeat_s
                return True

    async def _watch_the_clock(self) -> None:
        """Until nothing is left to do: vacate when it is time, end when idle, stop at the end whatever happens."""
        idle_since_s = time.time()
        while True:
            now_s = time.time()
            self._shells = [shell for shell in self._shells if not shell.is_reported]
            if any(not shell.done.is_set() for shell in self._shells):
                idle_since_s = now_s
            elif self._vacating or now_s - idle_since_s >= self.settings.idle_s:
                self._ending_because = self._ending_because or "no work"
                return
            if not self._vacating and now_s >= self._save_point_s():
                self._vacate("the end is near")
            if self._vacating and now_s < self.end_s - GONE_BEFORE_END_S:
                for shell in self._shells:
                    if shell.is_computing and now_s >= shell.save_again_s:  # its save failed, or it has just started
                        shell.feed(task.AgentEnds())
            if now_s >= self.end_s - GONE_BEFORE_END_S:
                await self._run_out()
                return
            await asyncio.sleep(TICK_S)

    async def _part(self) -> None:
        """Say farewell, and see that control hears all there is to hear, now or later.

        What has not been delivered goes to the storage first: control may hang until this agent is gone.
        """
        await asyncio.to_thread(_remember, self._memory_of_saves, self._measured)
        farewell = Farewell(ended_s=time.time(), reason=self._ending_because, fault=self._fault)
        self.outbox.put(f"/agents/{self.name}/farewell", farewell)
        reports = self.settings.storage / "agents" / self.name / "reports"
        left_s = max(1.0, self.end_s - time.time())
        try:
            async with asyncio.timeout(left_s):
                await asyncio.to_thread(self.outbox.spill_into, reports)
                await asyncio.to_thread(self.outbox.deliver)
                await asyncio.to_thread(shutil.rmtree, reports)
        except (TimeoutError, ControlSilent, OSError) as error:
            log.warning("control has not heard everything; the rest waits on the storage", reason=str(error))

    async def _run_out(self) -> None:
        self._ending_because = "out of time"
        for shell in self._shells:
            shell.feed(task.OutOfTime())
        waits = [shell.done.wait() for shell in self._shells]
        if waits:
            await asyncio.wait([asyncio.create_task(wait) for wait in waits], timeout=GONE_BEFORE_END_S)
        for shell in self._shells:
            shell.report_saved()

    # ── work ──

    async def _claim(self) -> None:
        while True:
            room = self._room()
            if room and not self._vacating and self._time_left_s() >= self.settings.shortest_slice_s:
                try:
                    found = await asyncio.to_thread(self.client.claim, room)
                except (ControlSilent, ControlRefused) as error:
                    log.warning("no claim", reason=str(error))
                else:
                    for assignment in found.jobs:
                        self._take(TaskShell(self._bench, assignment))
            await asyncio.sleep(CLAIM_EVERY_S)

    def _take(self, shell: TaskShell) -> None:
        self._shells.append(shell)
        running = asyncio.create_task(shell.run())
        self._running.add(running)
        running.add_done_callback(self._done)
        running.add_done_callback(lambda _: self._note_fault(shell))
        if self._vacating:
            shell.feed(task.AgentEnds())

    def _note_fault(self, shell: TaskShell) -> None:
        """Count the jobs in a row that this node could not run."""
        if shell.node_fault:
            self._node_faults += 1
        elif shell.has_run:
            self._node_faults = 0
        if self._node_faults >= NODE_FAULTS:
            self._fault = True
            self._vacate("this node cannot run jobs")

    def _done(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()):
            log.error("a task's shell broke; its job stays with its last generation", error=repr(error))
            self._fault = True

    def _broke(self, part: asyncio.Task[None]) -> None:
        """Without one of its parts an agent would only seem to work: it saves what it has and ends."""
        if not part.cancelled() and (error := part.exception()):
            log.error("a part of this agent broke", error=repr(error))
            self._fault = True
            self._vacate(f"a part of it broke: {error!r}")

    def _room(self) -> Ask | None:
        here = [shell.assignment for shell in self._shells if not shell.done.is_set()]
        cpus = self.facts.cpus - sum(job.cpus for job in here)
        memory_mib = self.facts.memory_mib - sum(job.memory_mib for job in here)
        return Ask(cpus=cpus, memory_mib=memory_mib) if cpus > 0 and memory_mib > 0 else None

    @property
    def _bench(self) -> Bench:
        return Bench(
            agent=self.name,
            slurm_job=self.slurm_job,
            facts=self.facts,
            runtime=self.runtime,
            storage=self.storage,
            work=self.settings.work,
            outbox=self.outbox,
            saves=self._saves,
            end_s=lambda: self.end_s,
        )

    # ── talking to control ──

    async def _beat(self) -> None:
        while True:
            # One that has ended is named until its report is delivered, or control would think it forgotten.
            shells = list(self._shells)
            beat = Beat(attempts=tuple(AttemptRef(job=s.assignment.job, attempt=s.assignment.attempt) for s in shells))
            try:
                orders = await asyncio.to_thread(self.client.beat, beat)
            except ControlSilent as error:
                log.warning("no beat", reason=str(error))
            except ControlRefused as error:
                log.warning("control hears no beat of this agent", reason=str(error))
                if error.status == CLOSED:
                    self._vacate("control has closed this agent")
            else:
                for shell, order in zip(shells, orders.orders, strict=False):
                    if order is Order.DROP:
                        shell.feed(task.DropAsked())
                    elif order is Order.VACATE:
                        shell.feed(task.VacateAsked())
                if orders.vacate:
                    self._vacate("control asked")
            await asyncio.sleep(self._heartbeat_s)

    async def _deliver(self) -> None:
        pause_s = DELIVER_EVERY_S
        while True:
            if len(self.outbox) < OUTBOX_FULL:  # else the output waits where it is, in the end in the containers' logs
                for shell in self._shells:
                    shell.flush_log()
            try:
                await asyncio.to_thread(self.outbox.deliver)
                pause_s = DELIVER_EVERY_S
            except ControlSilent as error:
                log.warning("reports wait", waiting=len(self.outbox), reason=str(error))
                pause_s = min(15.0, 2 * pause_s)
            await asyncio.sleep(pause_s)

    # ── time ──

    def _save_point_s(self) -> float:
        save_s = expected_save_s(self._memory_bytes, self._measured, assumed_mib_s=self.settings.save_bandwidth_mib_s)
        margin_s = self.settings.margin_s + GONE_BEFORE_END_S
        return save_point_s(end_s=self.end_s, margin_s=margin_s, save_s=save_s)

    def _time_left_s(self) -> float:
        return self._save_point_s() - time.time()

    async def _weigh(self) -> None:
        """Keep the sum of the containers' memory up to date: it sets when saving begins."""
        while True:
            containers = [shell.container for shell in self._shells]
            try:
                used = await asyncio.to_thread(self.runtime.usage, [c for c in containers if c is not None])
                if not self._vacating:
                    self._memory_bytes = sum(usage.memory_bytes for usage in used.values())
            except RuntimeFault as error:
                log.warning("cannot read the memory in use", reason=str(error))
            await asyncio.sleep(USAGE_EVERY_S)

    def _vacate(self, why: str) -> None:
        if self._vacating:
            return
        log.info("vacating", why=why, end_in_s=round(self.end_s - time.time(), 1), memory=self._memory_bytes)
        self._vacating = True
        self._ending_because = why
        saved = [shell for shell in self._shells if shell.is_computing]
        for shell in self._shells:
            shell.feed(task.AgentEnds())
        if saved:
            measuring = asyncio.create_task(self._measure(saved, time.time()))
            self._running.add(measuring)
            measuring.add_done_callback(self._running.discard)

    async def _measure(self, shells: list[TaskShell], since_s: float) -> None:
        await asyncio.gather(*(shell.done.wait() for shell in shells))
        if all(shell.saved_bytes for shell in shells):
            new = Measured(size_bytes=max(self._memory_bytes, 1), took_s=time.time() - since_s)
            self._measured = remembered(self._measured, new)

    def _signalled(self, number: int) -> None:
        log.info("signal", signal=signal.Signals(number).name)
        asking = asyncio.create_task(self._heed(signal.Signals(number)))
        self._running.add(asking)
        asking.add_done_callback(self._running.discard)

    async def _heed(self, number: signal.Signals) -> None:
        """Find out what a signal means: Slurm's early warning, a preemption, or a cancellation.

        Only the warning can wait for Slurm's answer; whoever terminates us does not wait for it either.
        """
        told_s = time.time()
        is_warning = number is signal.SIGUSR1
        if not is_warning:
            self._vacate("terminated")
        found_s = await asyncio.to_thread(slurm.end_s, self.slurm_job) if self.slurm_job else None
        if found_s is not None and found_s < self.end_s - 1:
            self.end_s = found_s
            self._vacate("preempted")
            if self._ending_because == "terminated":
                self._ending_because = "preempted"
        elif not is_warning:
            self.end_s = min(self.end_s, told_s + KILL_WAIT_S)
        elif found_s is None:
            self._vacate("warned, and Slurm does not say why")
        # Else it is Slurm's early warning of an end that is known: the clock decides.

    @property
    def _memory_of_saves(self) -> Path:
        return self.settings.work / "saves.json"


def _recall(path: Path) -> tuple[Measured, ...]:
    try:
        return tuple(Measured(size_bytes=s, took_s=t) for s, t in json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return ()


def _remember(path: Path, measured: tuple[Measured, ...]) -> None:
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps([[m.size_bytes, m.took_s] for m in measured]))
        draft.rename(path)
    except OSError as error:
        log.warning("cannot remember how long saves took", error=str(error))
