"""The agent: it registers, claims jobs, runs each in an executor, sends heartbeats, saves all jobs in time, and
deregisters.

The agent plans to exit one kill wait before Slurm ends it (`timing.deadlines.exit_by_s`), even if the storage hangs. A
save that is still running at the planned exit can use the kill wait, and is lost only if it is not finished when Slurm
ends the agent.

The agent's own clock determines when saving begins, unless an order from control, a signal from Slurm or an earlier end
of the Slurm job requires it sooner. Without work the agent ends and frees the node. Without control it keeps running,
saves to the storage, and leaves its reports there.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_probe import StorageProbe
from gleaner.agent.common.clock import EXCHANGES, Clock, Exchange, SystemClock, least_ahead_s
from gleaner.agent.common.limiter import Limiter, default_saves_at_once
from gleaner.agent.common.randomness import Randomness
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.control_reporter import make_executor
from gleaner.agent.job.deliveries import Deliveries
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.inputs import Inputs
from gleaner.agent.job.last_saves import LastSaves
from gleaner.agent.job.limits import DiskGuard, end_jobs_at_limit, end_silent_jobs
from gleaner.agent.job.url_inputs import UrlInputs
from gleaner.agent.messages import (
    AttemptRef,
    ClaimRequest,
    Deregistration,
    Heartbeat,
    NodeFacts,
    NodeImages,
    Order,
    Registration,
    Way,
)
from gleaner.agent.node.disk_usage import DiskLimits, DiskWatch
from gleaner.agent.node.leftovers import remove_containers, remove_folders
from gleaner.agent.privileged.common.slurm_job import USUAL_KILL_WAIT_S, JobHandle
from gleaner.agent.reporting.client import ControlClient, ControlRefused, ControlSilent, Outbox, deregister
from gleaner.agent.reporting.spooled_report import REPORTS
from gleaner.agent.runtime.interface import Runtime
from gleaner.agent.settings import SiteAgentSettings
from gleaner.agent.timing.deadlines import (
    SHUTDOWN_GRACE_S,
    early_save_s,
    exit_by_s,
    interval_s,
    is_due,
    save_point_s,
    saving_order,
    shutdown_grace_s,
)
from gleaner.agent.timing.save_cost import SaveEstimates
from gleaner.agent.transfer.file_transfers import Transfers

log = structlog.get_logger()

TICK_S = 0.5
CLAIM_EVERY_S = 5.0
USAGE_EVERY_S = 5.0
DISK_EVERY_S = 2.0
"""The time between two checks of the free space. The jobs' own use is measured every ten seconds, or when the space
shrinks."""
DELIVER_EVERY_S = 1.0
REGISTER_AGAIN_S = 3.0
REGISTER_FOR_S = 120.0
"""For this long after its start, an agent tries to reach control. If that fails, it ends, so that others can use the
node."""
STORAGE_ANSWERS_WITHIN_S = 3.0
"""The agent waits this long at its end for a storage that does not answer."""
EXIT_BEFORE_END_S = 1.0
"""The time between the end of all work and the instant at which Slurm ends the agent, when the node must be free."""
SUSPICIOUS_S = 30.0
"""If a job's work with the storage takes this much longer than expected, the agent checks whether the storage hangs."""
AGENT_CLOSED = 409
"""The status with which control answers an agent that it considers ended. Control would soon refuse the results of any
further work."""
NODE_FAULTS = 3
"""The agent ends after this many consecutive jobs that the node could not run, so that one bad node does not use up a
queue."""
SPARE_THREADS = 32


@dataclass(slots=True)
class Agent:
    """One agent, from its registration to its deregistration."""

    name: str
    end_s: float
    """The instant at which Slurm ends the agent, in seconds since the epoch. It is only ever brought forward."""
    slurm_job: str | None
    settings: SiteAgentSettings
    client: ControlClient
    runtime: Runtime
    storage: FolderStorage
    facts: NodeFacts
    images: NodeImages = field(default_factory=NodeImages)
    way: Way = Way.SHIM
    """The way in which this node saves memory."""
    can_save: bool = True
    """True if this node can save memory at all."""
    kill_wait_s: float = 0.0
    """The time between the agent's planned exit and its end, in seconds."""
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=Randomness)
    exit_by_s: float = field(init=False)
    """The planned exit, in seconds since the epoch. It is only ever brought forward."""
    _shutdown_grace_s: float = field(init=False)
    """The last seconds before `exit_by_s`, in which the agent no longer waits for anything. One third is for work that
    is still running, one for killing work that hangs, and one for the deregistration."""
    _extended_until_s: float = 0.0
    """The instant until which a late save and its report can use the rest of the kill wait."""
    _last_saves: LastSaves | None = None
    _early_saves: list[Executor] | None = None
    """The jobs whose early saves measure this node; None before the early saves."""
    outbox: Outbox = field(init=False)
    deliveries: Deliveries = field(init=False)
    _jobs: list[Executor] = field(default_factory=list[Executor])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _vacating: bool = False
    _ending_because: str = ""
    _fault: bool = False
    _node_faults: int = 0
    _heartbeat_s: float = 10.0
    _mtbf_s: float | None = None
    _is_asking: bool = False
    """True while a claim is waiting for control's answer, which might bring work."""
    _had_time: bool = False
    """True once there was enough time left for a slice."""
    _has_measured_disk: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the free space is known. Until then the agent claims no jobs."""
    _exchanges: deque[Exchange] = field(default_factory=lambda: deque[Exchange](maxlen=EXCHANGES))
    """The newest heartbeats and control's answers, which show by how much the two clocks differ."""
    _context: AgentContext = field(init=False)
    _probe: StorageProbe = field(init=False)
    _disk: DiskWatch = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.client.report, self.client.token_hash)
        self.exit_by_s = exit_by_s(self.end_s, now_s=self.clock.now_s(), kill_wait_s=self.kill_wait_s)
        self._shutdown_grace_s = shutdown_grace_s(self.exit_by_s, now_s=self.clock.now_s())
        # Slurm might count more cores than the machine has, which does not make saves faster.
        cores = min(self.facts.cpus, os.cpu_count() or self.facts.cpus)
        at_once = self.settings.saves_at_once or default_saves_at_once(cores)
        self._probe = StorageProbe(self.storage, f"agents/{self.name}/probe", self.clock)
        settings = self.settings
        limits = DiskLimits(settings.disk_mib_per_job, settings.inodes_per_job, settings.disk_reserve_mib)
        images_limit_bytes = int(settings.images_limit_gib * 2**30)
        self._disk = DiskWatch(
            self.runtime,
            settings.work,
            limits,
            images_keep_s=settings.images_keep_days * 86_400,
            images_limit_bytes=images_limit_bytes,
            clock=self.clock,
        )
        place, reserve_bytes = settings.work / self.name, limits.reserve_mib * 2**20
        control_hosts = tuple(urlsplit(url).hostname or "" for url in settings.control_url)
        transfers = Transfers(control_hosts, reserve_bytes, self.clock, settings.storage, settings.work, place)
        report = partial(self.outbox.put, f"/agents/{self.name}/delivered")
        self.deliveries = Deliveries(self.client, transfers.deliver, report, self.clock)
        self._context = AgentContext(
            agent=self.name,
            slurm_job=self.slurm_job,
            facts=self.facts,
            runtime=self.runtime,
            storage=self.storage,
            work=self.settings.work,
            outbox=self.outbox,
            reports=self.settings.storage / "agents" / self.name / REPORTS,
            estimates=SaveEstimates(self.way, at_once, self.settings.save_bandwidth_mib_s),
            saves=Limiter(at_once),
            begins=Limiter(self.facts.cpus + SPARE_THREADS),
            can_save=self.can_save,
            end_s=lambda: self.end_s,
            clock=self.clock,
            hard_stop_s=lambda: self._last_exit_s - self._shutdown_grace_s,
            images_allowed=settings.images_allowed,
            images_pushed=settings.images_pushed,
            images_limit_bytes=images_limit_bytes,
            limits=limits,
            inputs=Inputs(place, self.storage, reserve_bytes=reserve_bytes, clock=self.clock),
            url_inputs=UrlInputs(place, self.storage, self.clock, transfers.fetch, self.client.fix_input),
        )

    # ── the whole ──

    async def live(self) -> int:
        """Run until the work or the time is over, and return the exit status."""
        loop = asyncio.get_running_loop()
        # A job blocks at most one thread. Calls to control and to Slurm must never have to wait for such a thread.
        loop.set_default_executor(ThreadPoolExecutor(self.facts.cpus + SPARE_THREADS))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, self._on_signal, number)
        whole_node, now_s = self.slurm_job is not None, self.clock.now_s()
        await asyncio.to_thread(remove_containers, self.runtime, agent=self.name, whole_node=whole_node, now_s=now_s)
        if self.slurm_job is not None:
            await asyncio.to_thread(remove_folders, self.settings.work, agent=self.name, now_s=now_s)
        if not await self._register():
            return 1
        parts = (self._send_heartbeats, self._deliver_reports, self._claim_jobs, self._measure_memory, self._watch_disk)
        background = [asyncio.create_task(part()) for part in (*parts, self.deliveries.run)]
        for part in background:
            part.add_done_callback(self._note_broken_part)
        try:
            await self._watch_the_clock()
        finally:
            self.deliveries.stop()
            for work in background:
                work.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        await self._deregister()
        return 1 if self._fault else 0

    async def _register(self) -> bool:
        give_up_s = min(self.clock.now_s() + REGISTER_FOR_S, self._save_point_s())
        registration = Registration(facts=self.facts, images=self.images, end_s=self.end_s, slurm_job=self.slurm_job)
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
                await self.clock.sleep(self.randomness.jitter(REGISTER_AGAIN_S))
            else:
                self._heartbeat_s = welcome.heartbeat_s
                self._mtbf_s = welcome.node_mtbf_s
                self._context.estimates.learn(welcome.rates)
                return True

    async def _watch_the_clock(self) -> None:
        """Vacate the node in time. Return when the agent has long been idle, when all jobs are saved, or at the end."""
        idle_since_s = self.clock.now_s()
        while True:
            now_s = self.clock.now_s()
            self._jobs = [job for job in self._jobs if not job.is_reported]
            if any(not job.done.is_set() for job in self._jobs):
                idle_since_s = now_s
            elif self._vacating:
                return
            elif now_s - idle_since_s >= self.settings.idle_s and not self._is_occupied:
                self._ending_because = self._ending_because or self._disk.why_short() or self._why_idle()
                self._fault = self._fault or self._disk.is_short  # the next agent would also find no space here
                return
            if not self._vacating and not self._make_early_saves(now_s) and now_s >= self._save_point_s():
                self._vacate("the end is near")
            end_jobs_at_limit(self._jobs)
            self._ask_for_saves(now_s)
            self._look_at_the_storage()
            if self._is_over(now_s):
                await self._end_all_jobs()
                return
            await self.clock.sleep(min(TICK_S, self._shutdown_grace_s / 4))

    def _why_idle(self) -> str:
        """Return why this agent ends although its time is not over."""
        if self._had_time:
            return "no work"
        return f"no time for a slice of {self.settings.shortest_slice_s:g} s (shortest_slice_s in the agents' settings)"

    @property
    def _is_occupied(self) -> bool:
        """True if an agent without jobs must not end yet."""
        return self._is_asking or self.deliveries.is_busy or not self._has_measured_disk.is_set()

    def _is_over(self, now_s: float) -> bool:
        """Return True if the agent must not wait any longer.

        A save that is still running at the planned exit, or that is to be tried again, can use the rest of Slurm's kill
        wait, as long as the storage answers. A lost save costs more than an unused reserve.
        """
        planned_s = self.exit_by_s - self._shutdown_grace_s
        is_storing = any(job.is_storing for job in self._jobs)
        if is_storing and now_s >= planned_s - STORAGE_ANSWERS_WITHIN_S:
            self._probe.start()
        if now_s < planned_s:
            return False
        if is_storing and self._probe.waits_s < STORAGE_ANSWERS_WITHIN_S:
            self._extended_until_s = self.end_s
            return now_s >= self.latest_exit_s - self._shutdown_grace_s
        # A job that was stored during the kill wait must still be reported, so the exit is never set to a past instant.
        self._extended_until_s = now_s + self._shutdown_grace_s
        return True

    @property
    def latest_exit_s(self) -> float:
        """The latest exit of this process as currently known, in seconds since the epoch."""
        return max(self.exit_by_s, min(self._extended_until_s, self._last_exit_s))

    @property
    def _last_exit_s(self) -> float:
        """The instant of the exit if all of the kill wait is used. At that instant, the process ends in any case."""
        return max(self.exit_by_s, self.end_s - EXIT_BEFORE_END_S)

    def _make_early_saves(self, now_s: float) -> bool:
        """Save all jobs early, once, on a node where too little is known about the cost of saves.

        As many jobs are saved at the same time as at the end, since these saves serve as the measurement. Afterwards,
        only work that was computed since these saves can be lost. Return True while early saves are due or running, so
        that the slice is not ended because of a guess.
        """
        if not self.settings.early_saves or now_s >= self._latest_save_point_s():
            return False
        if self._early_saves is None:
            jobs = [job for job in self._jobs if job.is_computing and job.load.way is not Way.SELF]
            if not jobs or not self._context.estimates.is_guess:
                return False
            if now_s >= early_save_s(min(job.began_s for job in jobs), exit_by_s=self.exit_by_s):
                log.info("all jobs are saved early: too little is known of what saves cost here", jobs=len(jobs))
                self._early_saves = jobs
                self._feed_in_order(jobs, lifecycle.SaveDue())
            return True
        return self._context.estimates.is_guess and any(job.is_saving for job in self._early_saves)

    def _feed_in_order(self, jobs: Sequence[Executor], event: lifecycle.Event) -> None:
        """Feed the event to all these jobs. The jobs that would lose most receive it first, and are saved first."""
        for at in saving_order([job.at_stake for job in jobs]):
            jobs[at].feed(event)

    def _ask_for_saves(self, now_s: float) -> None:
        """Ask for the saves that are due.

        At the end, these are the saves of jobs whose save failed or that have just started. Before the end, these are
        the periodic saves and the full saves, because a full save might take too long at the end.
        """
        computing = [job for job in self._jobs if job.is_computing]
        if self._vacating:
            for job in computing:
                if job.save_again_s <= now_s < self._last_exit_s - self._shutdown_grace_s:
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
        """Return True if a job's next save is a full one and is due now. A full save is tried once per slice."""
        is_first = self.settings.early_saves and job.checkpoints.is_first
        return (
            (is_first or job.checkpoints.needs_full_checkpoint)
            and job.since_s <= job.began_s
            and job.load.way is not Way.SELF
            and early_save_s(job.began_s, exit_by_s=self.exit_by_s) <= now_s < save_point_s
        )

    def _look_at_the_storage(self) -> None:
        expected_s = self._context.estimates.all_s(job.load for job in self._jobs)
        inside_s = max((job.checkpoints.storage_s for job in self._jobs), default=0.0)
        if inside_s > SUSPICIOUS_S + 3 * expected_s:
            self._probe.start()

    async def _deregister(self) -> None:
        """Deregister, after handing all reports to control or to the storage as far as possible."""
        saves = self._last_saves
        deregistration = Deregistration(
            ended_s=self.clock.now_s(),
            reason=self._ending_because,
            fault=self._fault,
            saving_s=saves.took_s(self.clock.now_s()) if saves else None,
            saving_expected_s=saves.expected_s if saves else None,
            was_late=saves.was_late if saves else False,
        )
        self.outbox.put(f"/agents/{self.name}/farewell", deregistration)
        hangs = self._probe.waits_s >= STORAGE_ANSWERS_WITHIN_S
        left_s = max(self.latest_exit_s - self.clock.now_s(), min(1.0, self._shutdown_grace_s / 3))
        await deregister(self.outbox, self._context.reports, clock=self.clock, within_s=left_s, storage_hangs=hangs)

    async def _end_all_jobs(self) -> None:
        """End all jobs, because the time is over. Leave alone any calls that hang, since they end with this process."""
        self._ending_because = "out of time"
        if any(job.checkpoints.storage_s for job in self._jobs):
            self._probe.start()
        hangs = self._probe.waits_s >= STORAGE_ANSWERS_WITHIN_S
        for job in self._jobs:
            job.feed(lifecycle.OutOfTime("the storage hangs" if hangs else job.storage_fault))
        await self._wait_within(self._shutdown_grace_s / 3, *(job.done.wait() for job in self._jobs))
        stuck = [job for job in self._jobs if not job.done.is_set()]
        await self._wait_within(self._shutdown_grace_s / 3, *(asyncio.to_thread(job.kill_now) for job in stuck))
        if hangs or self._probe.waits_s >= STORAGE_ANSWERS_WITHIN_S:
            log.error("the storage does not answer any more")
            self._fault, self._ending_because = True, "storage hangs"

    @staticmethod
    async def _wait_within(patience_s: float, *waits: Coroutine[Any, Any, object]) -> None:
        if waits:
            await asyncio.wait([asyncio.create_task(wait) for wait in waits], timeout=patience_s)

    # ── work ──

    async def _claim_jobs(self) -> None:
        await self._has_measured_disk.wait()
        while True:
            free = self._free_resources()
            self._had_time = self._had_time or self._has_time()
            if free and self._wants_work():
                self._is_asking = True
                try:
                    answer = await asyncio.to_thread(self.client.claim, free)
                except (ControlSilent, ControlRefused) as error:
                    log.warning("no claim", reason=str(error))
                else:
                    for assignment in answer.jobs:
                        self._start_job(make_executor(self._context, assignment))
                self._is_asking = False
            await self.clock.sleep(CLAIM_EVERY_S)

    def _wants_work(self) -> bool:
        """Return False near the end, while the storage hangs, or while the disk is full, when no new job can begin."""
        return self._has_time() and not self._probe.hangs and not self._vacating and not self._disk.is_short

    def _has_time(self) -> bool:
        """Return True if a slice that begins now is worthwhile."""
        return self._save_point_s() - self.clock.now_s() >= self.settings.shortest_slice_s

    def _start_job(self, job: Executor) -> None:
        self._jobs.append(job)
        running = asyncio.create_task(job.run())
        self._running.add(running)
        running.add_done_callback(self._note_job_end)
        running.add_done_callback(lambda _: self._note_fault(job))
        if self._vacating:
            job.feed(lifecycle.AgentEnds())

    def _note_fault(self, job: Executor) -> None:
        """Count the consecutive jobs that this node could not run."""
        if job.node_fault:
            self._node_faults += 1
        elif job.has_run:
            self._node_faults = 0
        if self._node_faults >= NODE_FAULTS:
            self._fault = True
            self._vacate("this node cannot run jobs")

    def _note_job_end(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if not running.cancelled() and (error := running.exception()):
            log.error("the executor of a job broke; the job stays with its last checkpoint", error=repr(error))
            self._fault = True

    def _note_broken_part(self, part: asyncio.Task[None]) -> None:
        """Vacate the node if a background task failed, since without it the agent would only seem to work."""
        if not part.cancelled() and (error := part.exception()):
            log.error("a part of this agent broke", error=repr(error))
            self._fault = True
            self._vacate(f"a part of it broke: {error!r}")

    def _free_resources(self) -> ClaimRequest | None:
        here = [job.assignment for job in self._jobs if not job.done.is_set()]
        cpus = self.facts.cpus - sum(job.spec.cpus for job in here)
        memory_mib = self.facts.memory_mib - sum(job.memory_mib for job in here)
        if cpus <= 0 or memory_mib <= 0:
            return None
        left_s = max(0.0, self._save_point_s() - self.clock.now_s())
        return ClaimRequest(cpus=cpus, memory_mib=memory_mib, most=64, left_s=left_s)

    # ── talking to control ──

    async def _send_heartbeats(self) -> None:
        while True:
            # The heartbeat names a job that has ended until its report is delivered, since control would otherwise
            # conclude that we lost the job. It does not name a job that was returned, since control would otherwise
            # conclude that the job is alive.
            jobs = [job for job in self._jobs if not job.is_given_up]
            heartbeat = Heartbeat(
                attempts=tuple(
                    AttemptRef(job=s.assignment.job, attempt=s.assignment.attempt, unsaved=s.unsaved_because)
                    for s in jobs
                ),
                clock_ahead_s=least_ahead_s(self._exchanges) if self._exchanges else None,
            )
            sent_s = self.clock.now_s()
            try:
                orders = await asyncio.to_thread(self.client.send_heartbeat, heartbeat)
            except ControlSilent as error:
                log.warning("no heartbeat", reason=str(error))
            except ControlRefused as error:
                log.warning("control refuses the heartbeat of this agent", reason=str(error))
                if error.status == AGENT_CLOSED:
                    self._vacate("control has closed this agent")
            else:
                if orders.now_s is not None:
                    self._exchanges.append(Exchange(sent_s, orders.now_s, self.clock.now_s()))
                for job, order in zip(jobs, orders.orders, strict=False):
                    if order is Order.DROP:
                        job.feed(lifecycle.DropAsked())
                    elif order is Order.VACATE:
                        job.feed(lifecycle.VacateAsked())
                self.deliveries.is_wanted |= orders.deliveries
                if orders.vacate:
                    self._vacate("control asked")
            await self.clock.sleep(self._heartbeat_s)

    async def _deliver_reports(self) -> None:
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
            await self.clock.sleep(self.randomness.jitter(pause_s))

    # ── time ──

    def _save_point_s(self) -> float:
        loads = [job.load for job in self._jobs if job.container is not None]
        return self._latest_save_point_s() - self._context.estimates.all_s(loads)

    def _latest_save_point_s(self) -> float:
        """Return the latest instant at which saves could begin if they took no time."""
        margin_s = max(self.settings.margin_s, SHUTDOWN_GRACE_S)
        return save_point_s(exit_by_s=self.exit_by_s, margin_s=margin_s, save_s=0.0)

    async def _measure_memory(self) -> None:
        """Measure the memory in use, which determines when saving begins and how often a job is saved."""
        while True:
            for job in list(self._jobs):
                await asyncio.to_thread(job.measure_memory)
            await self.clock.sleep(USAGE_EVERY_S)

    async def _watch_disk(self) -> None:
        """End jobs that use more of the node's disk than allowed, or that write nothing for too long."""
        guard = DiskGuard(self._disk, self.runtime)
        await asyncio.to_thread(self._disk.make_room)
        if self._disk.is_short:
            self._fault = True
            self._vacate(self._disk.why_short())
        self._has_measured_disk.set()
        while True:
            await guard.look(self._jobs)
            await end_silent_jobs(self._jobs)
            await self.clock.sleep(DISK_EVERY_S)

    def _vacate(self, why: str) -> None:
        if self._vacating:
            return
        memory_bytes = sum(job.memory_bytes for job in self._jobs)
        log.info("vacating", why=why, end_in_s=round(self.end_s - self.clock.now_s(), 1), memory=memory_bytes)
        self._vacating = True
        self._ending_because = why
        self.deliveries.stop()
        self._feed_in_order(self._jobs, lifecycle.AgentEnds())
        self._last_saves = LastSaves.begin(self._jobs, self._context.estimates, now_s=self.clock.now_s())
        for job in self._jobs:
            if job.is_saving:  # jobs that wait for their save are paused, so that the other saves are faster
                self._keep_task(asyncio.create_task(asyncio.to_thread(job.pause_early)))

    def _on_signal(self, number: int) -> None:
        log.info("signal", signal=signal.Signals(number).name)
        self._keep_task(asyncio.create_task(self._answer_signal(signal.Signals(number))))

    def _keep_task(self, running: asyncio.Task[None]) -> None:
        """Keep a reference to the task until it is done, as the event loop does not."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _answer_signal(self, number: signal.Signals) -> None:
        """Find out whether a signal is Slurm's early warning, a preemption, or a cancellation.

        After a warning there is time to ask Slurm first, but not after SIGTERM. A preemption arrives as SIGTERM if the
        warning has already been sent.
        """
        signal_s = self.clock.now_s()
        is_warning = number is signal.SIGUSR1
        if not is_warning:
            self._vacate("cancelled")
        job = await asyncio.to_thread(JobHandle(self.slurm_job).look) if self.slurm_job else None
        end_s = job.end_s if job is not None and job.is_running else None  # None: ended, or unknown
        if job is not None and end_s is not None and (job.is_preempted or end_s < self.end_s - 1):
            self.end_earlier(end_s, kill_wait_s=self.kill_wait_s)
            self._vacate("preempted")
            if self._ending_because == "cancelled":
                self._ending_because = "preempted"
        elif not is_warning:
            # Slurm's kill wait has begun, and SIGKILL follows at its end.
            self.end_earlier(signal_s + (self.kill_wait_s or USUAL_KILL_WAIT_S) * 5 / 6, kill_wait_s=0)
        elif end_s is None:
            self._vacate("warned, and Slurm does not say why")
        # Otherwise it is Slurm's early warning of an end that is already known, so the clock decides.

    def end_earlier(self, end_s: float, *, kill_wait_s: float) -> None:
        """Bring the end forward, as Slurm did. A later end changes nothing."""
        self.end_s = min(self.end_s, end_s)
        now_s = self.clock.now_s()
        self.exit_by_s = min(self.exit_by_s, exit_by_s(self.end_s, now_s=now_s, kill_wait_s=kill_wait_s))
        self._shutdown_grace_s = min(self._shutdown_grace_s, shutdown_grace_s(self.exit_by_s, now_s=now_s))
