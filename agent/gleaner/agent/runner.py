"""The agent: claims jobs, keeps their shells going, beats, saves all in time, says farewell.

It plans to be gone by Slurm's kill wait before its end (`margin.gone_s`), and is, whatever hangs in the storage by
then. A save that is late and still goes on has the rest of that wait: it is lost only at the end itself.

Its own clock decides when saving begins; control's orders, Slurm's signals and Slurm's idea of the end are
further sources, and the earliest wins. It is idle-tolerant and silence-tolerant: without work it ends and frees
the node; without control it goes on, saves to storage, and leaves its reports there.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import structlog

from gleaner.agent import slurm, task
from gleaner.agent.bench import Bench
from gleaner.agent.client import ControlClient, ControlRefused, ControlSilent, Outbox
from gleaner.agent.clock import Clock
from gleaner.agent.disk import DiskLimits, DiskWatch
from gleaner.agent.disk_guard import DiskGuard
from gleaner.agent.estimates import Estimates
from gleaner.agent.lanes import Lanes, default_saves_at_once
from gleaner.agent.last_saves import LastSaves
from gleaner.agent.leftovers import reap, sweep, sweep_sockets
from gleaner.agent.margin import LAST_WORDS_S, gone_s, last_words_s, save_point_s, saving_order
from gleaner.agent.parting import say_farewell
from gleaner.agent.periods import early_save_s, interval_s, is_due
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
DISK_EVERY_S = 2.0
"""So often it is looked at what is free; the jobs' own use is looked at every ten seconds, or when that falls."""
DELIVER_EVERY_S = 1.0
REGISTER_FOR_S = 120.0
"""An agent that cannot reach control this long after its start ends: the node is better used otherwise."""
NO_SLURM = slurm.Ending(end_s=None, runs=False, is_preempted=False)
ANSWERS_WITHIN_S = 3.0
"""A storage that is asked at the agent's end and has not answered after so long gets no further time."""
LEAVES_BEFORE_S = 1.0
"""What uses the rest of the grace is over so long before Slurm's end, which is to find the node free."""
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
    clock: Clock = field(default_factory=Clock)
    gone_s: float = field(init=False)
    """When it plans to be, seconds since the epoch; only ever lowered."""
    _last_words_s: float = field(init=False)
    """So long before it leaves nothing is waited for any more; a third of it each for what still goes on, for killing
    what then hangs, and for the farewell."""
    _leave_s: float = 0.0
    """Until when something that is being stored, or its last words, use the rest of the grace."""
    _last_saves: LastSaves | None = None
    _saved_early: list[TaskShell] | None = None
    """The jobs whose early saves are the measurement; None: none have been asked for."""
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
    _disk: DiskWatch = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.client.report)
        self.gone_s = gone_s(self.end_s, now_s=self.clock.now_s(), kill_wait_s=self.kill_wait_s)
        self._last_words_s = last_words_s(self.gone_s, now_s=self.clock.now_s())
        # A node may be told to have more cores than there are: it saves no faster for that.
        cores = min(self.facts.cpus, os.cpu_count() or self.facts.cpus)
        at_once = self.settings.saves_at_once or default_saves_at_once(cores)
        self._probe = Probe(self.storage, f"agents/{self.name}/probe")
        told = self.settings
        limits = DiskLimits(told.disk_mib_per_job, told.inodes_per_job, told.disk_reserve_mib)
        self._disk = DiskWatch(self.runtime, told.work, limits, images_keep_s=told.images_keep_days * 86_400)
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
            now_s=self.clock.now_s,
            cut_s=lambda: self._latest_s - self._last_words_s,
            images_allowed=told.images_allowed,
            limits=limits,
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
        parts = (self._beat, self._deliver, self._claim, self._weigh, self._watch_disk)
        background = [asyncio.create_task(part()) for part in parts]
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
        give_up_s = min(self.clock.now_s() + REGISTER_FOR_S, self._save_point_s())
        registration = Registration(facts=self.facts, end_s=self.end_s, slurm_job=self.slurm_job)
        while True:
            try:
                welcome = await asyncio.to_thread(self.client.register, registration)
            except ControlRefused as error:
                log.error("control refuses this agent", reason=str(error))
                return False
            except ControlSilent as error:
                if self.clock.now_s() >= give_up_s or self._ending_because:
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
        idle_since_s = self.clock.now_s()
        while True:
            now_s = self.clock.now_s()
            self._shells = [shell for shell in self._shells if not shell.is_reported]
            if any(not shell.done.is_set() for shell in self._shells):
                idle_since_s = now_s
            elif self._vacating or (now_s - idle_since_s >= self.settings.idle_s and not self._is_asking):
                self._ending_because = self._ending_because or "no work"
                return
            if not self._vacating and not self._saves_early(now_s) and now_s >= self._save_point_s():
                self._vacate("the end is near")
            self._ask_for_saves(now_s)
            self._look_at_the_storage()
            if self._is_over(now_s):
                await self._run_out()
                return
            await asyncio.sleep(min(TICK_S, self._last_words_s / 4))

    def _is_over(self, now_s: float) -> bool:
        """Whether nothing is waited for any more.

        What is being stored when the agent planned to be gone, or is to be tried again, goes on through the rest of
        Slurm's kill wait, as long as the storage answers: a late save costs more than a reserve that nobody needs.
        """
        planned_s = self.gone_s - self._last_words_s
        is_storing = any(shell.is_storing for shell in self._shells)
        if is_storing and now_s >= planned_s - ANSWERS_WITHIN_S:
            self._probe.look()
        if now_s < planned_s:
            return False
        if is_storing and self._probe.out_for_s < ANSWERS_WITHIN_S:
            self._leave_s = self.end_s
            return now_s >= self.leave_s - self._last_words_s
        # What was stored in the grace has yet to be told: the end is never put back to what is over already.
        self._leave_s = now_s + self._last_words_s
        return True

    @property
    def leave_s(self) -> float:
        """When this process ends at the latest, as things stand, seconds since the epoch."""
        return max(self.gone_s, min(self._leave_s, self._latest_s))

    @property
    def _latest_s(self) -> float:
        """When it ends whatever happens, with all of the grace used."""
        return max(self.gone_s, self.end_s - LEAVES_BEFORE_S)

    def _saves_early(self, now_s: float) -> bool:
        """Save all jobs early, once, where too little is known of what saves cost here.

        As many at once as at the end: it is the measurement, and what can be lost at the end is only what came after.
        Return whether it is to come or under way: until it has measured, the guess does not end the slice.
        """
        if not self.settings.early_saves or now_s >= self._latest_save_point_s():
            return False
        if self._saved_early is None:
            shells = [shell for shell in self._shells if shell.is_computing and shell.load.way is not Way.SELF]
            if not shells or not self._bench.estimates.is_guess:
                return False
            if now_s >= early_save_s(min(shell.began_s for shell in shells), gone_s=self.gone_s):
                log.info("all jobs are saved early: too little is known of what saves cost here", jobs=len(shells))
                self._saved_early = shells
                self._feed_in_order(shells, task.SaveDue())
            return True
        return self._bench.estimates.is_guess and any(shell.is_saving for shell in self._saved_early)

    def _feed_in_order(self, shells: Sequence[TaskShell], event: task.Event) -> None:
        """Tell them all; those are first in the lanes whose loss would be worst."""
        for at in saving_order([shell.at_stake for shell in shells]):
            shells[at].feed(event)

    def _ask_for_saves(self, now_s: float) -> None:
        """At the end, of all whose save failed or that have just started; before, of those whose period is over.

        Before the end also of those that are to be written as a whole, for the first time or once more: at the end
        that may take too long.
        """
        computing = [shell for shell in self._shells if shell.is_computing]
        if self._vacating:
            for shell in computing:
                if shell.save_again_s <= now_s < self._latest_s - self._last_words_s:
                    shell.feed(task.AgentEnds())
            return
        save_point_s = self._save_point_s()
        for shell in computing:
            if self._is_due_as_a_whole(shell, now_s, save_point_s=save_point_s):
                shell.feed(task.SaveDue())
                continue
            save_s, shortest_s = self._bench.estimates.expected_s(shell.load), self.settings.shortest_period_s
            period_s = interval_s(self.settings.periodic_saves, save_s, mtbf_s=self._mtbf_s, shortest_s=shortest_s)
            if period_s and is_due(now_s, since_s=shell.since_s, interval_s=period_s, save_point_s=save_point_s):
                shell.feed(task.SaveDue())

    def _is_due_as_a_whole(self, shell: TaskShell, now_s: float, *, save_point_s: float) -> bool:
        """Return True if the next save of a job writes all that it has and is due now; it is tried once a slice."""
        is_first = self.settings.early_saves and shell.stored.is_first
        return (
            (is_first or shell.stored.is_to_begin_chain)
            and shell.since_s <= shell.began_s
            and shell.load.way is not Way.SELF
            and early_save_s(shell.began_s, gone_s=self.gone_s) <= now_s < save_point_s
        )

    def _look_at_the_storage(self) -> None:
        expected_s = self._bench.estimates.all_s(shell.load for shell in self._shells)
        inside_s = max((shell.stored.inside_s for shell in self._shells), default=0.0)
        if inside_s > SUSPICIOUS_S + 3 * expected_s:
            self._probe.look()

    async def _part(self) -> None:
        """Say farewell, and see that control hears all there is to hear."""
        saves = self._last_saves
        farewell = Farewell(
            ended_s=self.clock.now_s(),
            reason=self._ending_because,
            fault=self._fault,
            saving_s=saves.took_s(self.clock.now_s()) if saves else None,
            saving_expected_s=saves.expected_s if saves else None,
            was_late=saves.was_late if saves else False,
        )
        self.outbox.put(f"/agents/{self.name}/farewell", farewell)
        reports = self.settings.storage / "agents" / self.name / "reports"
        hangs = self._probe.out_for_s >= ANSWERS_WITHIN_S
        left_s = max(self.leave_s - self.clock.now_s(), min(1.0, self._last_words_s / 3))
        await say_farewell(self.outbox, reports, within_s=left_s, storage_hangs=hangs)

    async def _run_out(self) -> None:
        """The time is over. What hangs is left behind: this process ends soon, and takes its threads along."""
        self._ending_because = "out of time"
        if any(shell.stored.inside_s for shell in self._shells):
            self._probe.look()
        hangs = self._probe.out_for_s >= ANSWERS_WITHIN_S
        for shell in self._shells:
            shell.feed(task.OutOfTime("the storage hangs" if hangs else shell.storage_fault))
        await self._within(self._last_words_s / 3, *(shell.done.wait() for shell in self._shells))
        stuck = [shell for shell in self._shells if not shell.done.is_set()]
        await self._within(self._last_words_s / 3, *(asyncio.to_thread(shell.kill_now) for shell in stuck))
        if hangs or self._probe.out_for_s >= ANSWERS_WITHIN_S:
            log.error("the storage does not answer any more")
            self._fault, self._ending_because = True, "storage hangs"

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
        """Nothing new is begun near the end, on a storage that hangs, or on a full disk."""
        is_worth_it = self._save_point_s() - self.clock.now_s() >= self.settings.shortest_slice_s
        return is_worth_it and not self._probe.hangs and not self._vacating and not self._disk.is_short

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
            # One that has ended is named until its report is delivered, or control would think it forgotten; but not
            # one that was given back, or control would think that it lives.
            shells = [shell for shell in self._shells if not shell.is_given_up]
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
        return self._latest_save_point_s() - self._bench.estimates.all_s(loads)

    def _latest_save_point_s(self) -> float:
        """When saving would have to begin if it took no time."""
        return save_point_s(gone_s=self.gone_s, margin_s=max(self.settings.margin_s, LAST_WORDS_S), save_s=0.0)

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

    async def _watch_disk(self) -> None:
        """End what takes more of the node's disk than it may."""
        guard = DiskGuard(self._disk, self.runtime)
        while True:
            await guard.look(self._shells)
            await asyncio.sleep(DISK_EVERY_S)

    def _vacate(self, why: str) -> None:
        if self._vacating:
            return
        memory_bytes = sum(shell.memory_bytes for shell in self._shells)
        log.info("vacating", why=why, end_in_s=round(self.end_s - self.clock.now_s(), 1), memory=memory_bytes)
        self._vacating = True
        self._ending_because = why
        self._feed_in_order(self._shells, task.AgentEnds())
        self._last_saves = LastSaves.begun(self._shells, self._bench.estimates, now_s=self.clock.now_s())
        for shell in self._shells:
            if shell.is_saving:  # while it waits for its save it stands still: the others' saves go the faster
                self._keep(asyncio.create_task(asyncio.to_thread(shell.stop)))

    def _signalled(self, number: int) -> None:
        log.info("signal", signal=signal.Signals(number).name)
        self._keep(asyncio.create_task(self._heed(signal.Signals(number))))

    def _keep(self, running: asyncio.Task[None]) -> None:
        """Hold on to it until it is done, as the event loop does not."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _heed(self, number: signal.Signals) -> None:
        """Find out what a signal means: Slurm's early warning, a preemption, or a cancellation.

        Only the warning can wait for Slurm's answer; whoever terminates us does not wait for it either. A preemption
        comes as SIGTERM where the warning has been given already.
        """
        told_s = self.clock.now_s()
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
        now_s = self.clock.now_s()
        self.gone_s = min(self.gone_s, gone_s(self.end_s, now_s=now_s, kill_wait_s=kill_wait_s))
        self._last_words_s = min(self._last_words_s, last_words_s(self.gone_s, now_s=now_s))
