"""The agent: claims jobs, keeps their shells going, beats, saves all in time, says farewell.

It is gone by Slurm's kill wait before its end (`margin.gone_s`), whatever still hangs in the storage by then.

Its own clock decides when saving begins; control's orders, Slurm's signals and Slurm's idea of the end are
further sources, and the earliest wins. It is idle-tolerant and silence-tolerant: without work it ends and frees
the node; without control it goes on, saves to storage, and leaves its reports there.
"""

import asyncio
import signal
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import structlog

from gleaner.agent import slurm, task
from gleaner.agent.bench import Bench
from gleaner.agent.client import ControlClient, ControlRefused, ControlSilent, Outbox
from gleaner.agent.estimates import Estimates
from gleaner.agent.lanes import Lanes, default_saves_at_once
from gleaner.agent.leftovers import reap, sweep, sweep_sockets
from gleaner.agent.margin import gone_s, save_point_s
from gleaner.agent.parting import say_farewell
from gleaner.agent.periods import interval_s, is_due
from gleaner.agent.protocol import Ask, AttemptRef, Beat, Farewell, NodeFacts, Order, Registration, Way
from gleaner.agent.runtime.protocol import Runtime, RuntimeFault
from gleaner.agent.settings import AgentSettings
from gleaner.agent.shell import TaskShell
from gleaner.agent.storage.probe import Probe
from gleaner.agent.storage.protocol import Storage

log = structlog.get_logger()

TICK_S = 0.5
CLAIM_EVERY_S = 5.0
USAGE_EVERY_S = 5.0
DELIVER_EVERY_S = 1.0
REGISTER_FOR_S = 120.0
"""An agent that cannot reach control this long after its start ends: the node is better used otherwise."""
NO_SLURM = slurm.Ending(end_s=None, runs=False, is_preempted=False)
LAST_WORDS_S = 3.0
"""So long before it has to be gone nothing is waited for any more; a third of it each for what still goes on, for
killing what then hangs, and for the farewell."""
SUSPICIOUS_S = 30.0
"""What a job does with the storage may take so much longer than expected before the storage is asked if it hangs."""
CLOSED = 409
"""Control's answer to an agent that it takes for ended: whatever it still computes would not count for long."""
NODE_FAULTS = 3
"""So many jobs in a row that the node could not run, and the agent ends: one bad node must not eat a queue."""
SPARE_THREADS = 32


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
    way: Way = Way.DOCKER
    """How this node saves memory."""
    can_save: bool = True
    """Whether it can at all."""
    kill_wait_s: float = 0.0
    """It is gone so long before its end."""
    gone_s: float = field(init=False)
    """When, seconds since the epoch; only ever lowered."""
    outbox: Outbox = field(init=False)
    _shells: list[TaskShell] = field(default_factory=list[TaskShell])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _vacating: bool = False
    _ending_because: str = ""
    _fault: bool = False
    _node_faults: int = 0
    _heartbeat_s: float = 10.0
    _mtbf_s: float | None = None
    _is_asking: bool = False
    """Whether control is to answer a claim: with work, perhaps."""
    _bench: Bench = field(init=False)
    _probe: Probe = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.client.report)
        self.gone_s = gone_s(self.end_s, now_s=time.time(), kill_wait_s=self.kill_wait_s)
        at_once = self.settings.saves_at_once or default_saves_at_once(self.facts.cpus)
        self._probe = Probe(self.storage, f"agents/{self.name}/probe")
        self._bench = Bench(
            agent=self.name,
            slurm_job=self.slurm_job,
            facts=self.facts,
            runtime=self.runtime,
            storage=self.storage,
            work=self.settings.work,
            outbox=self.outbox,
            estimates=Estimates(self.way, at_once, self.settings.save_bandwidth_mib_s),
            saves=Lanes(at_once),
            begins=Lanes(self.facts.cpus + SPARE_THREADS),
            can_save=self.can_save,
            end_s=lambda: self.end_s,
            gone_s=lambda: self.gone_s,
        )

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
            await asyncio.to_thread(sweep_sockets)
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
                self._mtbf_s = welcome.node_mtbf_s
                self._bench.estimates.learn(welcome.rates)
                return True

    async def _watch_the_clock(self) -> None:
        """Until nothing is left to do: vacate when it is time, end when idle, stop at the end whatever happens."""
        idle_since_s = time.time()
        while True:
            now_s = time.time()
            self._shells = [shell for shell in self._shells if not shell.is_reported]
            if any(not shell.done.is_set() for shell in self._shells):
                idle_since_s = now_s
            elif self._vacating or (now_s - idle_since_s >= self.settings.idle_s and not self._is_asking):
                self._ending_because = self._ending_because or "no work"
                return
            if not self._vacating and now_s >= self._save_point_s():
                self._vacate("the end is near")
            self._ask_for_saves(now_s)
            self._look_at_the_storage()
            if now_s >= self.gone_s - LAST_WORDS_S:
                await self._run_out()
                return
            await asyncio.sleep(TICK_S)

    def _ask_for_saves(self, now_s: float) -> None:
        """At the end, of all whose save failed or that have just started; before, of those whose period is over."""
        computing = [shell for shell in self._shells if shell.is_computing]
        if self._vacating:
            for shell in computing:
                if shell.save_again_s <= now_s < self.gone_s - LAST_WORDS_S:
                    shell.feed(task.AgentEnds())
            return
        save_point_s = self._save_point_s()
        for shell in computing:
            save_s, shortest_s = self._bench.estimates.expected_s(shell.load), self.settings.shortest_period_s
            period_s = interval_s(self.settings.periodic_saves, save_s, mtbf_s=self._mtbf_s, shortest_s=shortest_s)
            if period_s and is_due(now_s, since_s=shell.since_s, interval_s=period_s, save_point_s=save_point_s):
                shell.feed(task.SaveDue())

    def _look_at_the_storage(self) -> None:
        expected_s = self._bench.estimates.all_s(shell.load for shell in self._shells)
        inside_s = max((shell.stored.inside_s for shell in self._shells), default=0.0)
        if inside_s > SUSPICIOUS_S + 3 * expected_s:
            self._probe.look()

    async def _part(self) -> None:
        """Say farewell, and see that control hears all there is to hear."""
        farewell = Farewell(ended_s=time.time(), reason=self._ending_because, fault=self._fault)
        self.outbox.put(f"/agents/{self.name}/farewell", farewell)
        reports = self.settings.storage / "agents" / self.name / "reports"
        hangs = self._probe.out_for_s >= LAST_WORDS_S / 3
        await say_farewell(self.outbox, reports, gone_s=self.gone_s, storage_hangs=hangs)

    async def _run_out(self) -> None:
        """The time is over. What hangs is left behind: this process ends soon, and takes its threads along."""
        self._ending_because = "out of time"
        if any(shell.stored.inside_s for shell in self._shells):
            self._probe.look()
        for shell in self._shells:
            shell.feed(task.OutOfTime("the storage hangs" if self._probe.hangs else shell.storage_fault))
        await self._within(LAST_WORDS_S / 3, *(shell.done.wait() for shell in self._shells))
        stuck = [shell for shell in self._shells if not shell.done.is_set()]
        await self._within(LAST_WORDS_S / 3, *(asyncio.to_thread(shell.kill_now) for shell in stuck))
        if self._probe.out_for_s >= LAST_WORDS_S / 3:
            log.error("the storage does not answer any more")
            self._fault, self._ending_because = True, "storage hangs"
        for shell in self._shells:
            shell.report_saved()

    @staticmethod
    async def _within(patience_s: float, *waits: Coroutine[Any, Any, object]) -> None:
        if waits:
            await asyncio.wait([asyncio.create_task(wait) for wait in waits], timeout=patience_s)

    # ── work ──

    async def _claim(self) -> None:
        while True:
            room = self._room()
            if room and self._wants_work():
                self._is_asking = True
                try:
                    found = await asyncio.to_thread(self.client.claim, room)
                except (ControlSilent, ControlRefused) as error:
                    log.warning("no claim", reason=str(error))
                else:
                    for assignment in found.jobs:
                        self._take(TaskShell(self._bench, assignment))
                self._is_asking = False
            await asyncio.sleep(CLAIM_EVERY_S)

    def _wants_work(self) -> bool:
        """Nothing new is begun near the end, or on a storage that hangs."""
        is_worth_it = self._save_point_s() - time.time() >= self.settings.shortest_slice_s
        return is_worth_it and not self._probe.hangs and not self._vacating

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
        return Ask(cpus=cpus, memory_mib=memory_mib, most=64) if cpus > 0 and memory_mib > 0 else None

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
        loads = [shell.load for shell in self._shells if shell.container is not None]
        save_s = self._bench.estimates.all_s(loads)
        return save_point_s(gone_s=self.gone_s, margin_s=max(self.settings.margin_s, LAST_WORDS_S), save_s=save_s)

    async def _weigh(self) -> None:
        """Keep the containers' memory in use up to date: it sets when saving begins, and how often."""
        while True:
            here = {shell.container: shell for shell in self._shells if shell.container is not None}
            try:
                used = await asyncio.to_thread(self.runtime.usage, list(here))
                for container, usage in used.items():
                    here[container].memory_bytes = usage.memory_bytes
            except RuntimeFault as error:
                log.warning("cannot read the memory in use", reason=str(error))
            await asyncio.sleep(USAGE_EVERY_S)

    def _vacate(self, why: str) -> None:
        if self._vacating:
            return
        memory_bytes = sum(shell.memory_bytes for shell in self._shells)
        log.info("vacating", why=why, end_in_s=round(self.end_s - time.time(), 1), memory=memory_bytes)
        self._vacating = True
        self._ending_because = why
        for shell in self._shells:
            shell.feed(task.AgentEnds())

    def _signalled(self, number: int) -> None:
        log.info("signal", signal=signal.Signals(number).name)
        asking = asyncio.create_task(self._heed(signal.Signals(number)))
        self._running.add(asking)
        asking.add_done_callback(self._running.discard)

    async def _heed(self, number: signal.Signals) -> None:
        """Find out what a signal means: Slurm's early warning, a preemption, or a cancellation.

        Only the warning can wait for Slurm's answer; whoever terminates us does not wait for it either. A preemption
        comes as SIGTERM where the warning has been given already.
        """
        told_s = time.time()
        is_warning = number is signal.SIGUSR1
        if not is_warning:
            self._vacate("terminated")
        found = await asyncio.to_thread(slurm.ending, self.slurm_job) if self.slurm_job else NO_SLURM
        is_earlier = found.end_s is not None and found.end_s < self.end_s - 1
        if found.runs and (found.is_preempted or is_earlier):
            self.end_earlier(found.end_s or self.end_s, kill_wait_s=self.kill_wait_s)
            self._vacate("preempted")
            if self._ending_because == "terminated":
                self._ending_because = "preempted"
        elif not is_warning:
            # Slurm's wait goes on by now: SIGKILL comes at its end.
            self.end_earlier(told_s + (self.kill_wait_s or slurm.USUAL_KILL_WAIT_S) * 5 / 6, kill_wait_s=0)
        elif not found.runs or found.end_s is None:
            self._vacate("warned, and Slurm does not say why")
        # Else it is Slurm's early warning of an end that is known: the clock decides.

    def end_earlier(self, end_s: float, *, kill_wait_s: float) -> None:
        """Slurm has brought the end forward."""
        self.end_s = min(self.end_s, end_s)
        self.gone_s = min(self.gone_s, gone_s(self.end_s, now_s=time.time(), kill_wait_s=kill_wait_s))
