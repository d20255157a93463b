"""The agent: it claims jobs, runs each in an executor, sends heartbeats, saves all jobs in time, and says farewell.

The agent plans to be gone by Slurm's kill wait before its end (`timing.deadlines.gone_s`), whatever hangs in the
storage by then. A save that is late and still goes on has the rest of that wait: it is lost only at the end itself.

The agent's own clock decides when saving begins. Control's orders, Slurm's signals and the end that Slurm tells are
further reasons, and the earliest wins. Without work the agent ends and frees the node. Without control it goes on,
saves to the storage, and leaves its reports there.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import structlog

from gleaner.agent.checkpoints.interface import Storage
from gleaner.agent.checkpoints.probe import Probe
from gleaner.agent.common.clock import EXCHANGES, Clock, Exchange, SystemClock, least_ahead_s
from gleaner.agent.common.limiter import Limiters, default_saves_at_once
from gleaner.agent.common.randomness import Randomness
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.control_reporter import executor_of
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.last_saves import LastSaves
from gleaner.agent.job.limits import DiskGuard, end_jobs_at_limit
from gleaner.agent.messages import Ask, AttemptRef, Farewell, Heartbeat, NodeFacts, Order, Registration, Way
from gleaner.agent.node.disk_usage import DiskLimits, DiskWatch
from gleaner.agent.node.leftovers import reap, sweep, sweep_sockets
from gleaner.agent.privileged.common.slurm_job import USUAL_KILL_WAIT_S, JobHandle
from gleaner.agent.reporting.client import ControlClient, ControlRefused, ControlSilent, Outbox, say_farewell
from gleaner.agent.runtime.interface import Runtime, RuntimeFault
from gleaner.agent.settings import AgentSettings
from gleaner.agent.timing.deadlines import (
    LAST_WORDS_S,
    early_save_s,
    gone_s,
    interval_s,
    is_due,
    last_words_s,
    save_point_s,
    saving_order,
)
from gleaner.agent.timing.save_cost import SaveEstimates

log = structlog.get_logger()

TICK_S = 0.5
CLAIM_EVERY_S = 5.0
USAGE_EVERY_S = 5.0
DISK_EVERY_S = 2.0
"""The free room is looked at so often; the jobs' own use is looked at every ten seconds, or when the room falls."""
DELIVER_EVERY_S = 1.0
REGISTER_AGAIN_S = 3.0
REGISTER_FOR_S = 120.0
"""An agent that cannot reach control for so long after its start ends: the node is better used otherwise."""
ANSWERS_WITHIN_S = 3.0
"""A storage that is asked at the agent's end and has not answered after so long gets no further time."""
LEAVES_BEFORE_S = 1.0
"""All work ends so long before Slurm's end, when Slurm is to find the node free."""
SUSPICIOUS_S = 30.0
"""A job's work with the storage may take so much longer than expected before the storage is asked whether it hangs."""
CLOSED = 409
"""Control's answer to an agent that it takes for ended: what the agent still computes would not count for long."""
NODE_FAULTS = 3
"""After so many jobs in a row that the node could not run the agent ends: one bad node must not use up a queue."""
SPARE_THREADS = 32


@dataclass(slots=True)
class Agent:
    """One agent, from its start to its farewell."""

    name: str
    end_s: float
    """The instant at which the agent must be gone, seconds since the epoch; only ever lowered."""
    slurm_job: str | None
    settings: AgentSettings
    client: ControlClient
    runtime: Runtime
    storage: Storage
    facts: NodeFacts
    way: Way = Way.SHIM
    """The way in which this node saves memory."""
    can_save: bool = True
    """True if this node can save memory at all."""
    kill_wait_s: float = 0.0
    """The planned time between the agent's departure and its end, in seconds."""
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=Randomness)
    gone_s: float = field(init=False)
    """The instant at which the agent plans to be gone, seconds since the epoch; only ever lowered."""
    _last_words_s: float = field(init=False)
    """The last seconds before `gone_s`, in which nothing is waited for any more: a third of them is for the work that
    still goes on, a third for killing the work that then hangs, and a third for the farewell."""
    _leave_s: float = 0.0
    """The instant until which a late save, and the report of it, use the rest of the kill wait."""
    _last_saves: LastSaves | None = None
    _saved_early: list[Executor] | None = None
    """The jobs whose early saves are the measurement; None if none have been asked for."""
    outbox: Outbox = field(init=False)
    _jobs: list[Executor] = field(default_factory=list[Executor])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _vacating: bool = False
    _ending_because: str = ""
    _fault: bool = False
    _node_faults: int = 0
    _heartbeat_s: float = 10.0
    _mtbf_s: float | None = None
    _is_asking: bool = False
    """True while control has a claim to answer, perhaps with work."""
    _exchanges: deque[Exchange] = field(default_factory=lambda: deque[Exchange](maxlen=EXCHANGES))
    """The newest heartbeats and control's answers, which tell if the two clocks agree."""
    _context: AgentContext = field(init=False)
    _probe: Probe = field(init=False)
    _disk: DiskWatch = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.client.report)
        self.gone_s = gone_s(self.end_s, now_s=self.clock.now_s(), kill_wait_s=self.kill_wait_s)
        self._last_words_s = last_words_s(self.gone_s, now_s=self.clock.now_s())
        # A node may be told to have more cores than there are: it saves no faster for that.
        cores = min(self.facts.cpus, os.cpu_count() or self.facts.cpus)
        at_once = self.settings.saves_at_once or default_saves_at_once(cores)
        self._probe = Probe(self.storage, f"agents/{self.name}/probe", self.clock)
        told = self.settings
        limits = DiskLimits(told.disk_mib_per_job, told.inodes_per_job, told.disk_reserve_mib)
        keep_s = told.images_keep_days * 86_400
        self._disk = DiskWatch(self.runtime, told.work, limits, images_keep_s=keep_s, clock=self.clock)
        self._context = AgentContext(
            agent=self.name,
            slurm_job=self.slurm_job,
            facts=self.facts,
            runtime=self.runtime,
            storage=self.storage,
            work=self.settings.work,
            outbox=self.outbox,
            reports=self.settings.storage / "agents" / self.name / "reports",
            estimates=SaveEstimates(self.way, at_once, self.settings.save_bandwidth_mib_s),
            saves=Limiters(at_once),
            begins=Limiters(self.facts.cpus + SPARE_THREADS),
            can_save=self.can_save,
            end_s=lambda: self.end_s,
            clock=self.clock,
            cut_s=lambda: self._latest_s - self._last_words_s,
            images_allowed=told.images_allowed,
            images_pushed=told.images_pushed,
            limits=limits,
        )

    # ── the whole ──

    async def live(self) -> int:
        """Run until the work or the time is over; return the exit status."""
        loop = asyncio.get_running_loop()
        # A job blocks one thread at most; what talks to control and to Slurm must never wait for one of them.
        loop.set_default_executor(ThreadPoolExecutor(self.facts.cpus + SPARE_THREADS))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, self._signalled, number)
        whole_node, now_s = self.slurm_job is not None, self.clock.now_s()
        await asyncio.to_thread(reap, self.runtime, agent=self.name, whole_node=whole_node, now_s=now_s)
        if self.slurm_job is not None:
            await asyncio.to_thread(sweep, self.settings.work, agent=self.name, now_s=now_s)
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
        await self._say_farewell()
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
                await self.clock.sleep(self.randomness.jittered(REGISTER_AGAIN_S))
            else:
                self._heartbeat_s = welcome.heartbeat_s
                self._mtbf_s = welcome.node_mtbf_s
                self._context.estimates.learn(welcome.rates)
                return True

    async def _watch_the_clock(self) -> None:
        """Vacate the node when it is time. Return when idle for long, when all is saved, and at the end in any case."""
        idle_since_s = self.clock.now_s()
        while True:
            now_s = self.clock.now_s()
            self._jobs = [job for job in self._jobs if not job.is_reported]
            if any(not job.done.is_set() for job in self._jobs):
                idle_since_s = now_s
            elif self._vacating or (now_s - idle_since_s >= self.settings.idle_s and not self._is_asking):
                self._ending_because = self._ending_because or "no work"
                return
            if not self._vacating and not self._saves_early(now_s) and now_s >= self._save_point_s():
                self._vacate("the end is near")
            end_jobs_at_limit(self._jobs)
            self._ask_for_saves(now_s)
            self._look_at_the_storage()
            if self._is_over(now_s):
                await self._run_out()
                return
            await self.clock.sleep(min(TICK_S, self._last_words_s / 4))

    def _is_over(self, now_s: float) -> bool:
        """Return True if nothing is waited for any more.

        A save that goes on, or is to be tried again, when the agent planned to be gone may use the rest of Slurm's kill
        wait, as long as the storage answers: a lost save costs more than a reserve that nobody needs.
        """
        planned_s = self.gone_s - self._last_words_s
        is_storing = any(job.is_storing for job in self._jobs)
        if is_storing and now_s >= planned_s - ANSWERS_WITHIN_S:
            self._probe.look()
        if now_s < planned_s:
            return False
        if is_storing and self._probe.out_for_s < ANSWERS_WITHIN_S:
            self._leave_s = self.end_s
            return now_s >= self.leave_s - self._last_words_s
        # What was stored during the kill wait has yet to be reported: the end is never set to an instant that is over.
        self._leave_s = now_s + self._last_words_s
        return True

    @property
    def leave_s(self) -> float:
        """The latest instant at which this process ends, as things stand, seconds since the epoch."""
        return max(self.gone_s, min(self._leave_s, self._latest_s))

    @property
    def _latest_s(self) -> float:
        """The instant at which the process ends whatever happens, with all of the kill wait used."""
        return max(self.gone_s, self.end_s - LEAVES_BEFORE_S)

    def _saves_early(self, now_s: float) -> bool:
        """Save all jobs early, once, where too little is known of what saves cost here.

        As many are saved at once as at the end, since this is the measurement; what can be lost at the end is then only
        what came after. Return True while early saves are to come or under way: until they have measured, the guess
        does not end the slice.
        """
        if not self.settings.early_saves or now_s >= self._latest_save_point_s():
            return False
        if self._saved_early is None:
            jobs = [job for job in self._jobs if job.is_computing and job.load.way is not Way.SELF]
            if not jobs or not self._context.estimates.is_guess:
                return False
            if now_s >= early_save_s(min(job.began_s for job in jobs), gone_s=self.gone_s):
                log.info("all jobs are saved early: too little is known of what saves cost here", jobs=len(jobs))
                self._saved_early = jobs
                self._feed_in_order(jobs, lifecycle.SaveDue())
            return True
        return self._context.estimates.is_guess and any(job.is_saving for job in self._saved_early)

    def _feed_in_order(self, jobs: Sequence[Executor], event: lifecycle.Event) -> None:
        """Tell all these jobs what happened, those first whose loss would be worst: they are saved first."""
        for at in saving_order([job.at_stake for job in jobs]):
            jobs[at].feed(event)

    def _ask_for_saves(self, now_s: float) -> None:
        """Ask for the saves that are due.

        At the end, these are of all jobs whose save failed or that have just started. Before the end, these are of the
        jobs whose interval is over, and of those that are to be written as a whole, for the first time or once more:
        at the end that may take too long.
        """
        computing = [job for job in self._jobs if job.is_computing]
        if self._vacating:
            for job in computing:
                if job.save_again_s <= now_s < self._latest_s - self._last_words_s:
                    job.feed(lifecycle.AgentEnds())
            return
        save_point_s = self._save_point_s()
        for job in computing:
            if self._is_due_as_a_whole(job, now_s, save_point_s=save_point_s):
                job.feed(lifecycle.SaveDue())
                continue
            save_s, shortest_s = self._context.estimates.expected_s(job.load), self.settings.shortest_period_s
            period_s = interval_s(self.settings.periodic_saves, save_s, mtbf_s=self._mtbf_s, shortest_s=shortest_s)
            if period_s and is_due(now_s, since_s=job.since_s, interval_s=period_s, save_point_s=save_point_s):
                job.feed(lifecycle.SaveDue())

    def _is_due_as_a_whole(self, job: Executor, now_s: float, *, save_point_s: float) -> bool:
        """Return True if a job's next save writes all that the job has and is due now; it is tried once a slice."""
        is_first = self.settings.early_saves and job.stored.is_first
        return (
            (is_first or job.stored.is_to_begin_chain)
            and job.since_s <= job.began_s
            and job.load.way is not Way.SELF
            and early_save_s(job.began_s, gone_s=self.gone_s) <= now_s < save_point_s
        )

    def _look_at_the_storage(self) -> None:
        expected_s = self._context.estimates.all_s(job.load for job in self._jobs)
        inside_s = max((job.stored.inside_s for job in self._jobs), default=0.0)
        if inside_s > SUSPICIOUS_S + 3 * expected_s:
            self._probe.look()

    async def _say_farewell(self) -> None:
        """Say farewell, and see that control hears all reports."""
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
        hangs = self._probe.out_for_s >= ANSWERS_WITHIN_S
        left_s = max(self.leave_s - self.clock.now_s(), min(1.0, self._last_words_s / 3))
        await say_farewell(self.outbox, self._context.reports, clock=self.clock, within_s=left_s, storage_hangs=hangs)

    async def _run_out(self) -> None:
        """End all jobs, as the time is over. A call that hangs is left behind: its thread ends with this process."""
        self._ending_because = "out of time"
        if any(job.stored.inside_s for job in self._jobs):
            self._probe.look()
        hangs = self._probe.out_for_s >= ANSWERS_WITHIN_S
        for job in self._jobs:
            job.feed(lifecycle.OutOfTime("the storage hangs" if hangs else job.storage_fault))
        await self._within(self._last_words_s / 3, *(job.done.wait() for job in self._jobs))
        stuck = [job for job in self._jobs if not job.done.is_set()]
        await self._within(self._last_words_s / 3, *(asyncio.to_thread(job.kill_now) for job in stuck))
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
                        self._take(executor_of(self._context, assignment))
                self._is_asking = False
            await self.clock.sleep(CLAIM_EVERY_S)

    def _wants_work(self) -> bool:
        """Return True if a new job may begin: not near the end, on a storage that hangs, or on a full disk."""
        is_worth_it = self._save_point_s() - self.clock.now_s() >= self.settings.shortest_slice_s
        return is_worth_it and not self._probe.hangs and not self._vacating and not self._disk.is_short

    def _take(self, job: Executor) -> None:
        self._jobs.append(job)
        running = asyncio.create_task(job.run())
        self._running.add(running)
        running.add_done_callback(self._done)
        running.add_done_callback(lambda _: self._note_fault(job))
        if self._vacating:
            job.feed(lifecycle.AgentEnds())

    def _note_fault(self, job: Executor) -> None:
        """Count the jobs in a row that this node could not run."""
        if job.node_fault:
            self._node_faults += 1
        elif job.has_run:
            self._node_faults = 0
        if self._node_faults >= NODE_FAULTS:
            self._fault = True
            self._vacate("this node cannot run jobs")

    def _done(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()):
            log.error("the executor of a job broke; the job stays with its last checkpoint", error=repr(error))
            self._fault = True

    def _broke(self, part: asyncio.Task[None]) -> None:
        """Vacate the node if a part of the agent broke: without the part, the agent would only seem to work."""
        if not part.cancelled() and (error := part.exception()):
            log.error("a part of this agent broke", error=repr(error))
            self._fault = True
            self._vacate(f"a part of it broke: {error!r}")

    def _room(self) -> Ask | None:
        here = [job.assignment for job in self._jobs if not job.done.is_set()]
        cpus = self.facts.cpus - sum(job.cpus for job in here)
        memory_mib = self.facts.memory_mib - sum(job.memory_mib for job in here)
        if cpus <= 0 or memory_mib <= 0:
            return None
        left_s = max(0.0, self._save_point_s() - self.clock.now_s())
        return Ask(cpus=cpus, memory_mib=memory_mib, most=64, left_s=left_s)

    # ── talking to control ──

    async def _beat(self) -> None:
        while True:
            # A job that has ended is named until its report is delivered, or control would take it for forgotten. A job
            # that was returned is not named, or control would take it for alive.
            jobs = [job for job in self._jobs if not job.is_given_up]
            beat = Heartbeat(
                attempts=tuple(AttemptRef(job=s.assignment.job, attempt=s.assignment.attempt) for s in jobs),
                clock_ahead_s=least_ahead_s(self._exchanges) if self._exchanges else None,
            )
            sent_s = self.clock.now_s()
            try:
                orders = await asyncio.to_thread(self.client.beat, beat)
            except ControlSilent as error:
                log.warning("no beat", reason=str(error))
            except ControlRefused as error:
                log.warning("control hears no beat of this agent", reason=str(error))
                if error.status == CLOSED:
                    self._vacate("control has closed this agent")
            else:
                if orders.now_s is not None:
                    self._exchanges.append(Exchange(sent_s, orders.now_s, self.clock.now_s()))
                for job, order in zip(jobs, orders.orders, strict=False):
                    if order is Order.DROP:
                        job.feed(lifecycle.DropAsked())
                    elif order is Order.VACATE:
                        job.feed(lifecycle.VacateAsked())
                if orders.vacate:
                    self._vacate("control asked")
            await self.clock.sleep(self._heartbeat_s)

    async def _deliver(self) -> None:
        pause_s = DELIVER_EVERY_S
        while True:
            for job in self._jobs:
                job.reporter.flush_output()
            try:
                await asyncio.to_thread(self.outbox.deliver)
                pause_s = DELIVER_EVERY_S
            except ControlSilent as error:
                log.warning("reports wait", waiting=len(self.outbox), reason=str(error))
                pause_s = min(15.0, 2 * pause_s)
            await self.clock.sleep(self.randomness.jittered(pause_s))

    # ── time ──

    def _save_point_s(self) -> float:
        loads = [job.load for job in self._jobs if job.container is not None]
        return self._latest_save_point_s() - self._context.estimates.all_s(loads)

    def _latest_save_point_s(self) -> float:
        """Return the instant at which saving would have to begin if it took no time."""
        return save_point_s(gone_s=self.gone_s, margin_s=max(self.settings.margin_s, LAST_WORDS_S), save_s=0.0)

    async def _weigh(self) -> None:
        """Keep the memory that the jobs use up to date: it decides when saving begins, and how often a job is saved."""
        while True:
            here = {job.container: job for job in self._jobs if job.container is not None}
            try:
                used = await asyncio.to_thread(self.runtime.usage, list(here))
                for container, usage in used.items():
                    here[container].memory_bytes = usage.memory_bytes
            except RuntimeFault as error:
                log.warning("cannot read the memory in use", reason=str(error))
            await self.clock.sleep(USAGE_EVERY_S)

    async def _watch_disk(self) -> None:
        """End jobs that take more of the node's disk than they may."""
        guard = DiskGuard(self._disk, self.runtime)
        while True:
            await guard.look(self._jobs)
            await self.clock.sleep(DISK_EVERY_S)

    def _vacate(self, why: str) -> None:
        if self._vacating:
            return
        memory_bytes = sum(job.memory_bytes for job in self._jobs)
        log.info("vacating", why=why, end_in_s=round(self.end_s - self.clock.now_s(), 1), memory=memory_bytes)
        self._vacating = True
        self._ending_because = why
        self._feed_in_order(self._jobs, lifecycle.AgentEnds())
        self._last_saves = LastSaves.begun(self._jobs, self._context.estimates, now_s=self.clock.now_s())
        for job in self._jobs:
            if job.is_saving:  # a job that waits for its save is paused, so that the others' saves are faster
                self._keep(asyncio.create_task(asyncio.to_thread(job.stop)))

    def _signalled(self, number: int) -> None:
        log.info("signal", signal=signal.Signals(number).name)
        self._keep(asyncio.create_task(self._heed(signal.Signals(number))))

    def _keep(self, running: asyncio.Task[None]) -> None:
        """Keep a reference to the task until it is done, as the event loop does not."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _heed(self, number: signal.Signals) -> None:
        """Find out what a signal means: Slurm's early warning, a preemption, or a cancellation.

        Only the warning can wait for Slurm's answer: whoever terminates us does not wait for it. A preemption comes as
        SIGTERM where the warning has been given already.
        """
        told_s = self.clock.now_s()
        is_warning = number is signal.SIGUSR1
        if not is_warning:
            self._vacate("terminated")
        job = await asyncio.to_thread(JobHandle(self.slurm_job).look) if self.slurm_job else None
        end_s = job.end_s if job is not None and job.is_running else None  # None: it has been ended, or nobody knows
        if job is not None and end_s is not None and (job.is_preempted or end_s < self.end_s - 1):
            self.end_earlier(end_s, kill_wait_s=self.kill_wait_s)
            self._vacate("preempted")
            if self._ending_because == "terminated":
                self._ending_because = "preempted"
        elif not is_warning:
            # Slurm's wait goes on by now: SIGKILL comes at its end.
            self.end_earlier(told_s + (self.kill_wait_s or USUAL_KILL_WAIT_S) * 5 / 6, kill_wait_s=0)
        elif end_s is None:
            self._vacate("warned, and Slurm does not say why")
        # Else it is Slurm's early warning of an end that is known: the clock decides.

    def end_earlier(self, end_s: float, *, kill_wait_s: float) -> None:
        """Bring the end forward, as Slurm has done; a later end changes nothing."""
        self.end_s = min(self.end_s, end_s)
        now_s = self.clock.now_s()
        self.gone_s = min(self.gone_s, gone_s(self.end_s, now_s=now_s, kill_wait_s=kill_wait_s))
        self._last_words_s = min(self._last_words_s, last_words_s(self.gone_s, now_s=now_s))
