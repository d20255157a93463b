"""Agents second by second, each by itself: what the compiled layer must agree with. All times are whole numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.simulation.oracle import Cluster, Job, conservative, easy, fcfs, promise

from gleaner.control.simulation.settings import AgentSettings


@dataclass(eq=False)
class LowJob:
    number: int
    work_s: float
    left_s: float
    is_saved: bool = False
    end_s: float = math.nan


@dataclass(eq=False)
class Place:
    job: LowJob | None = None
    restoring_s: float = 0

    @property
    def computes(self) -> bool:
        return self.job is not None and self.restoring_s == 0


@dataclass(eq=False)
class Agent(Job):
    """To the schedulers it is a job that runs to its limit."""

    places: list[Place] = field(default_factory=list[Place])
    begin_s: float = math.inf
    computed_s: float = 0
    is_leaving: bool = False
    is_vacated: bool = False

    @property
    def busy(self) -> int:
        return sum(place.job is not None for place in self.places)


@dataclass(frozen=True, order=True)
class Slice:
    """The work of one agent."""

    start_s: float
    end_s: float
    computed_s: float
    save_s: float


@dataclass
class Site(Cluster):
    kind: str = "easy"
    rules: AgentSettings = field(default_factory=AgentSettings)
    back: list[LowJob] = field(default_factory=list[LowJob])
    new: Iterator[LowJob] = field(default_factory=lambda: iter(()))
    done: list[LowJob] = field(default_factory=list[LowJob])
    slices: list[Slice] = field(default_factory=list[Slice])
    new_left: float = math.inf
    owed: int = 0
    has_news: bool = True
    """True if anything has come or ended. With preemption nobody decides anew without: a decision may change by mere
    time, since what might overtake may do so no longer."""
    wake_s: float = math.inf

    @property
    def agents(self) -> list[Agent]:
        return [job for job in self.running if isinstance(job, Agent)]

    @property
    def regular(self) -> list[Job]:
        return [job for job in self.running if not isinstance(job, Agent)]

    @property
    def low_waiting(self) -> float:
        return len(self.back) + self.new_left

    @property
    def leaving(self) -> int:
        return sum(agent.is_leaving for agent in self.agents)

    def save_s(self, at_once: int) -> float:
        return self.rules.save.seconds(self.rules.queue.memory_mib, at_once)

    def take(self) -> LowJob:
        for job in sorted(self.back, key=lambda job: (not job.is_saved, job.number))[:1]:
            self.back.remove(job)
            return job
        self.new_left -= 1
        return next(self.new)

    def fill(self, agents: Sequence[Agent]) -> None:
        """The free places of these agents take what waits, all at once."""
        free = [place for agent in agents for place in agent.places if place.job is None]
        restored = min(len(free), sum(job.is_saved for job in self.back))
        restore_s = self.rules.restore.seconds(self.rules.queue.memory_mib, restored)
        for place in free:
            if self.low_waiting > 0:
                place.job = self.take()
                place.restoring_s = restore_s if place.job.is_saved else 0

    def end(self, agent: Agent) -> None:
        self.running.remove(agent)
        self.back += [place.job for place in agent.places if place.job is not None]
        saving_s = max(self.now_s - agent.begin_s, 0)
        self.slices.append(Slice(agent.start_s, self.now_s, agent.computed_s, saving_s))


def begin(agent: Agent, now_s: float) -> None:
    if agent.begin_s == math.inf:
        agent.begin_s = now_s
        for place in agent.places:
            if place.job is not None:
                place.job.is_saved = place.job.left_s < place.job.work_s


def advance(site: Site) -> None:
    """All that is due for agents at this instant."""
    for agent in site.agents:
        for place in agent.places:
            if agent.begin_s == math.inf and place.job is not None and place.computes and place.job.left_s == 0:
                place.job.end_s = site.now_s
                site.done.append(place.job)
                place.job = None
                site.has_news = True
    begin_due(site)
    for agent in site.agents:
        if agent.end_s == site.now_s:
            site.end(agent)
    lasting = [agent for agent in site.agents if agent.begin_s == math.inf]
    site.fill([agent for agent in lasting if agent.end_s - site.now_s >= site.rules.shortest_slice_s])
    for agent in lasting:
        if agent.busy == 0:
            site.end(agent)
    begin_due(site)


def begin_due(site: Site) -> None:
    """Those that end at one instant begin to save when so many must."""
    for end_s in {agent.end_s for agent in site.agents if not agent.is_vacated}:
        group = [agent for agent in site.agents if agent.end_s == end_s and not agent.is_vacated]
        busy = sum(agent.busy for agent in group)
        has_begun = any(agent.begin_s < math.inf for agent in group)
        if busy and not has_begun and site.now_s >= end_s - site.rules.margin_s - site.save_s(busy):
            site.has_news |= site.rules.queue.jobs is not None
            for agent in group:
                begin(agent, site.now_s)


def regular_without_agents(site: Site) -> Cluster:
    """The site as the scheduler sees it that may have agents vacated, after it has decided."""
    seen = Cluster(site.units, site.now_s, site.regular, list(site.waiting))
    easy(seen) if site.kind == "easy" else fcfs(seen)
    return seen


def decide(site: Site) -> tuple[float, int]:
    """Start regular jobs. The shadow time of the first that waits, and what agents may hold past it."""
    site.owed = 0
    if site.rules.preemption:
        seen = regular_without_agents(site)
        for job in seen.running[len(site.regular) :]:
            if site.fits(job) and not (site.owed and site.kind == "fcfs"):
                site.start(job)
            else:
                site.owed += job.units
        vacate(site)
        if not seen.waiting or site.kind == "fcfs":
            return math.inf, 0
        shadow_s, extra = seen.shadow(seen.waiting[0])
        return shadow_s, extra - sum(agent.end_s > shadow_s for agent in site.agents)
    if site.kind == "fcfs":
        fcfs(site)
        return math.inf, 0
    easy(site)
    return site.shadow(site.waiting[0]) if site.waiting else (math.inf, 0)


def keep_promises(site: Site, *, something_ended: bool) -> None:
    """Conservative backfilling that may have agents vacated, and does not know of them.

    What starts late, since agents had to be saved, has the reservation that it was promised, not one from its start.
    """
    reserved = [Job(job.submit_s, job.run_s, job.limit_s, job.units, job.promised_s) for job in site.regular]
    promise(Cluster(site.units, site.now_s, reserved, site.waiting), something_ended=something_ended)
    site.owed = 0
    for job in [job for job in site.waiting if job.promised_s <= site.now_s]:
        if site.fits(job):
            site.start(job)
        else:
            site.owed += job.units
    vacate(site)


def vacate(site: Site) -> None:
    needed = site.owed - site.free - site.leaving
    if needed <= 0:
        return
    there = sorted(
        (agent for agent in site.agents if not agent.is_leaving), key=lambda agent: (agent.end_s, agent.start_s)
    )[:needed]
    while there and there[0].end_s <= site.now_s + site.save_s(len(there) * site.rules.jobs_per_agent):
        there.pop(0).is_leaving = True
    gone_s = site.now_s + site.save_s(sum(agent.busy for agent in there))
    for agent in there:
        begin(agent, site.now_s)
        agent.run_s = agent.limit_s = gone_s - agent.start_s
        agent.is_leaving = agent.is_vacated = True


def may_start(site: Site, end_s: float, shadow_s: float, extra: int) -> bool:
    """Return True if one more agent has a node, work, and delays nobody."""
    if site.free - max(0, site.owed - site.leaving) <= 0 or len(site.agents) >= site.rules.agents_at_most:
        return False
    if end_s - site.now_s < site.rules.shortest_slice_s:
        return False
    match site.kind:
        case "fcfs":
            return site.rules.preemption or bool(site.regular) or not site.waiting
        case "easy":
            return end_s <= shadow_s or extra > 0
        case _:
            held = [(site.now_s, agent.end_s, agent.units) for agent in site.agents]
            held += [(site.now_s, job.promised_s + job.limit_s, job.units) for job in site.regular]
            held += [(job.promised_s, job.promised_s + job.limit_s, job.units) for job in site.waiting]
            return all(
                sum(units for start_s, stop_s, units in held if start_s <= at_s < stop_s) < site.units
                for at_s in range(int(site.now_s), int(end_s))
            )


def start_agents(site: Site, shadow_s: float, extra: int) -> None:
    length_s = site.rules.length_s
    end_s = (site.now_s // length_s + 1) * length_s if site.rules.synchronised else site.now_s + length_s
    if end_s - site.now_s < site.rules.shortest_slice_s:
        site.wake_s = end_s
    started: list[Agent] = []
    places = site.rules.jobs_per_agent
    while len(started) * places < site.low_waiting and may_start(site, end_s, shadow_s, extra):
        agent = Agent(site.now_s, end_s - site.now_s, end_s - site.now_s, 1, site.now_s)
        agent.places = [Place() for _ in range(places)]
        others = [other.begin_s for other in site.agents if other.end_s == end_s and not other.is_vacated]
        if any(begin_s < math.inf for begin_s in others):
            agent.begin_s = site.now_s
        site.running.append(agent)
        started.append(agent)
        extra -= 1
    site.fill(started)
    begin_due(site)


def end_all(site: Site) -> bool:
    """End what ends now; whether anything did that the scheduler knows of."""
    before = list(site.running)
    site.running = [job for job in before if isinstance(job, Agent) or job.end_s > site.now_s]
    advance(site)
    ended = [job for job in before if job not in site.running]
    site.has_news |= bool(ended)
    return any(not (isinstance(job, Agent) and site.rules.preemption) for job in ended)


def pass_second(site: Site) -> None:
    for agent in site.agents:
        if agent.begin_s < math.inf:
            continue
        agent.computed_s += any(place.computes for place in agent.places)
        for place in agent.places:
            if place.job is not None and place.computes:
                place.job.left_s -= 1
            elif place.job is not None:
                place.restoring_s -= 1
                site.has_news |= place.restoring_s == 0 and site.rules.queue.jobs is not None


def simulated(kind: str, jobs: Sequence[Job], units: int, rules: AgentSettings) -> Site:
    """The site when all regular jobs have ended, its slices in order."""
    work_s = rules.queue.work_s or 10**9
    site = Site(units, kind=kind, rules=rules, new=(LowJob(number, work_s, work_s) for number in count()))
    site.new_left = math.inf if rules.queue.jobs is None else rules.queue.jobs
    coming = list(jobs)
    site.now_s = coming[0].submit_s
    while True:
        has_ended = end_all(site)
        if site.wake_s <= site.now_s:
            site.wake_s, site.has_news = math.inf, True
        while coming and coming[0].submit_s == site.now_s:
            may_start_now = coming[0].units <= site.free + len(site.agents) * rules.preemption
            site.has_news |= may_start_now or not site.waiting or kind == "conservative"
            site.waiting.append(coming.pop(0))
        site.has_news |= any(job.promised_s == site.now_s for job in site.waiting)
        while site.has_news or not rules.preemption:  # what takes no time may happen several times in one instant
            site.has_news = False
            if kind == "conservative" and rules.preemption:
                keep_promises(site, something_ended=has_ended)
                shadow_s, extra = math.inf, 0
            elif kind == "conservative":
                conservative(site, something_ended=has_ended)
                shadow_s, extra = math.inf, 0
            else:
                shadow_s, extra = decide(site)
            start_agents(site, shadow_s, extra)
            has_ended = any(job.end_s == site.now_s for job in site.running) and end_all(site)
            if not (has_ended or site.has_news):
                break
        if not (coming or site.waiting or site.regular):
            break
        pass_second(site)
        site.now_s += 1
    for agent in site.agents:
        site.end(agent)
    site.slices = sorted(part for part in site.slices if part.end_s > part.start_s)
    return site
