"""First come first served and EASY on nodes, with migration, or with agents, that can be read at a glance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tests.simulation import oracle_compaction
from tests.simulation.oracle_compaction import Node

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.model import Allocation, Machine, Workload
from gleaner.control.simulation.settings import AgentSettings, Migration


@dataclass(eq=False)
class Place(Node):
    number: int = 0
    speed: float = 1.0


@dataclass(eq=False)
class Work:
    index: int
    submit_s: float
    run_s: float
    limit_s: float
    cores: int
    migratable: bool
    start_s: float = math.nan
    end_s: float = math.nan
    expected_s: float = math.nan


@dataclass(eq=False)
class Stretch:
    work: Work
    on: dict[Place, int]
    start_s: float
    end_s: float
    expected_s: float
    restore_s: float = 0
    save_s: float = 0

    def row(self) -> tuple[int, float, float, float, float, list[tuple[int, int]]]:
        held = sorted((place.number, cores) for place, cores in self.on.items())
        return self.work.index, self.start_s, self.end_s, self.restore_s, self.save_s, held


@dataclass
class Site:
    places: list[Place]
    """In the order in which they are filled."""
    whole: bool
    prefers_one: bool = False
    now_s: float = 0
    running: list[Stretch] = field(default_factory=list[Stretch])
    over: list[Stretch] = field(default_factory=list[Stretch])
    waiting: list[Work] = field(default_factory=list[Work])

    def levels(self, cores: int) -> list[list[Place]]:
        """Return the levels where a job of so many cores may go, the best first."""
        levels = [list(level) for _, level in groupby(self.places, key=lambda place: place.priority)]
        fitting = [level for level in levels if sum(place.cores for place in level) >= cores]
        return fitting or [self.places]

    def spots(self, work: Work) -> list[dict[Place, int]]:
        """Return the cores by node that the job could get now, the best first."""
        found: list[dict[Place, int]] = []
        for level in self.levels(work.cores):
            on_one: dict[Place, int] = {}
            if self.prefers_one:
                on_one = oracle_compaction.goes_to(_asking(work), level, spreads=False)
            found.append(on_one or oracle_compaction.goes_to(_asking(work), level, spreads=True))
        return [self.rounded(spot) for spot in found if spot]

    def rounded(self, spot: dict[Place, int]) -> dict[Place, int]:
        return {place: place.cores if self.whole else cores for place, cores in spot.items()}

    def begin(self, work: Work, on: dict[Place, int]) -> None:
        speed = min(place.speed for place in on)
        work.start_s, work.end_s = self.now_s, self.now_s + work.run_s / speed
        self.waiting.remove(work)
        self.hold(Stretch(work, on, self.now_s, work.end_s, self.now_s + work.limit_s / speed))

    def hold(self, stretch: Stretch) -> None:
        self.running.append(stretch)
        for place, cores in stretch.on.items():
            place.used += cores
            assert place.used <= place.cores

    def release(self, stretch: Stretch) -> None:
        self.running.remove(stretch)
        self.over.append(stretch)
        for place, cores in stretch.on.items():
            place.used -= cores

    def shadow(self, head: Work) -> tuple[float, list[Place], int]:
        """Return when the job fits on a level if all run to their limits, the level, and the cores left there."""
        for at_s in sorted({stretch.expected_s for stretch in self.running}):
            for level in self.levels(head.cores):
                ended = [stretch for stretch in self.running if stretch.expected_s <= at_s]
                back = sum(cores for stretch in ended for place, cores in stretch.on.items() if place in level)
                free = back + sum(place.idle for place in level)
                if free >= head.cores:
                    return at_s, level, free - head.cores
        raise AssertionError("larger than the machine")

    def decide(self, *, overtaking: bool) -> None:
        while self.waiting and (spots := self.spots(self.waiting[0])):
            self.begin(self.waiting[0], spots[0])
        if not self.waiting or not overtaking:
            return
        shadow_s, level, extra = self.shadow(self.waiting[0])
        for work in self.waiting[1:]:
            for spot in self.spots(work):
                late = self.now_s + work.limit_s / min(place.speed for place in spot) > shadow_s
                held = sum(cores for place, cores in spot.items() if place in level) if late else 0
                if held <= extra:
                    extra -= held
                    self.begin(work, spot)
                    break

    def move(self, kind: Migration, save_s: float, restore_s: float) -> bool:
        """Migrate what the policy says; return True if there was something to migrate."""
        stretches = sorted(self.running, key=lambda stretch: stretch.work.index)
        jobs = [_asking(stretch.work, stretch.on) for stretch in stretches]
        policy = oracle_compaction.compaction if kind is Migration.COMPACTION else oracle_compaction.priorities
        found = policy(self.places, jobs)
        if found is None:
            return False
        old = stretches[jobs.index(found[0])]
        on = self.rounded({place: cores for place, cores in found[1].items() if isinstance(place, Place)})
        slower = min(place.speed for place in old.on) / min(place.speed for place in on)
        again_s = self.now_s + save_s + restore_s
        end_s, expected_s = (again_s + (end_s - self.now_s) * slower for end_s in (old.end_s, old.expected_s))
        new = Stretch(old.work, on, self.now_s + save_s, end_s, expected_s, restore_s=restore_s)
        old.end_s = old.expected_s = self.now_s + save_s
        old.save_s = save_s
        old.work.end_s = new.end_s
        self.hold(new)
        return True


def _asking(work: Work, on: dict[Place, int] | None = None) -> oracle_compaction.Job:
    """Return the policy's view of a job: it asks for its own cores, also where it has whole nodes."""
    job = oracle_compaction.Job({}, migratable=work.migratable)
    left = work.cores
    for place, cores in (on or {Place(work.cores): work.cores}).items():
        job.on[place] = min(cores, left)
        left -= job.on[place]
    return job


def places_of(machine: Machine) -> list[Place]:
    """In the order in which they are filled."""
    kinds = [kind for kind in machine.classes for _ in range(kind.nodes)]
    places = [Place(kind.cores, kind.priority, number=n, speed=kind.speed) for n, kind in enumerate(kinds)]
    return sorted(places, key=lambda place: (-place.priority, place.number))


def work_of(workload: Workload) -> list[Work]:
    rows = zip(
        workload.submit_s, workload.run_s, workload.limit_s, workload.processors, workload.job_class, strict=True
    )
    return [
        Work(index, float(submit), float(run), float(limit), int(cores), migratable=kind == JobClass.CHECKPOINTABLE)
        for index, (submit, run, limit, cores, kind) in enumerate(rows)
    ]


def replayed(
    coming: Sequence[Work],
    machine: Machine,
    *,
    overtaking: bool,
    kind: Migration = Migration.NONE,
    every_s: float = 30,
    save_s: float = 0,
    restore_s: float = 0,
) -> list[Stretch]:
    """All stretches in order of their ends. At one instant: all ends, all submissions, one decision, one look."""
    site = Site(places_of(machine), machine.allocation is Allocation.NODES, machine.prefers_one)
    coming = list(coming)
    look_s = settled_s = -math.inf
    has_changed = False
    while coming or site.waiting or site.running:
        instants = [work.submit_s for work in coming[:1]] + [stretch.end_s for stretch in site.running]
        if has_changed and kind is not Migration.NONE:
            instants.append(look_s)
        site.now_s = min(instants)
        is_news = False  # a look alone is none: what was refused is not tried again
        for stretch in [stretch for stretch in site.running if stretch.end_s == site.now_s]:
            site.release(stretch)
            is_news = has_changed = True
        while coming and coming[0].submit_s == site.now_s:
            site.waiting.append(coming.pop(0))
            is_news = has_changed = True
        if is_news:
            site.decide(overtaking=overtaking)
            look_s = math.ceil(max(site.now_s, settled_s) / every_s) * every_s
        if has_changed and look_s == site.now_s and kind is not Migration.NONE:
            has_changed = not site.waiting and site.move(kind, save_s, restore_s)
            if has_changed:
                settled_s = site.now_s + save_s + restore_s
                look_s = max(math.ceil(settled_s / every_s), math.floor(site.now_s / every_s) + 1) * every_s
    return site.over


@dataclass(eq=False)
class Agent:
    place: Place
    start_s: float
    end_s: float
    is_leaving: bool = False


@dataclass
class LentSite(Site):
    """A site whose scheduler sees no agents: what it starts on their nodes waits until they are saved."""

    rules: AgentSettings = field(default_factory=AgentSettings)
    agents: list[Agent] = field(default_factory=list[Agent])
    """In the order in which they started."""
    wake_s: float = math.inf

    def levels(self, cores: int) -> list[list[Place]]:
        return [sorted(level, key=self.rank) for level in super().levels(cores)]

    def rank(self, place: Place) -> int:
        """Nodes without an agent are taken first, those whose agent has to stay last."""
        return next((1 if agent.is_leaving else 2 for agent in self.agents if agent.place is place), 0)

    def save_s(self, agents: int) -> float:
        return self.rules.save.seconds(self.rules.queue.memory_mib, agents * self.rules.jobs_per_agent)

    def decide(self, *, overtaking: bool) -> None:
        head: Work | None = None
        shadow: tuple[float, list[Place], int] = math.inf, [], 0
        claims: list[Stretch] = []
        for work in list(self.waiting):
            if head and not overtaking:
                break
            on = next((spot for spot in self.spots(work) if self._late(work, spot, *shadow) <= shadow[2]), None)
            if on is None:
                head = head or work
            elif any(map(self.rank, on)) or (claims and not overtaking):
                claims.append(Stretch(work, on, self.now_s, self.now_s, self._expected_s(work, on)))
                self.hold(claims[-1])
            else:
                self.begin(work, on)
            shadow = self.shadow(head) if head and overtaking else shadow
        self.vacate({place for claim in claims for place in claim.on})
        self.start_agents(*shadow)
        for claim in claims:
            self.release(claim)
            self.over.remove(claim)

    def _expected_s(self, work: Work, on: dict[Place, int]) -> float:
        return self.now_s + work.limit_s / min(place.speed for place in on)

    def _late(self, work: Work, on: dict[Place, int], shadow_s: float, level: list[Place], _extra: int) -> int:
        """Return how many of these cores the job would hold past the shadow time."""
        is_late = self._expected_s(work, on) > shadow_s
        return sum(cores for place, cores in on.items() if place in level) if is_late else 0

    def vacate(self, claimed: set[Place]) -> None:
        there = [agent for agent in self.agents if agent.place in claimed and not agent.is_leaving]
        while there and there[0].end_s <= self.now_s + self.save_s(len(there)):
            there.pop(0).is_leaving = True
        for agent in there:
            agent.end_s, agent.is_leaving = self.now_s + self.save_s(len(there)), True

    def start_agents(self, shadow_s: float, level: list[Place], extra: int) -> None:
        length_s = self.rules.length_s
        end_s = (self.now_s // length_s + 1) * length_s if self.rules.synchronised else self.now_s + length_s
        extra -= sum(agent.place.cores for agent in self.agents if agent.place in level and agent.end_s > shadow_s)
        idle: list[Place] = []
        for place in reversed(self.places):
            held = place.cores if end_s > shadow_s and place in level else 0
            if not self.rank(place) and not place.used and held <= max(extra, 0):
                extra -= held
                idle.append(place)
        if end_s - self.now_s >= self.rules.shortest_slice_s:
            self.agents += [Agent(place, self.now_s, end_s) for place in idle]
        elif idle:
            self.wake_s = end_s


def replayed_with_agents(
    coming: Sequence[Work], machine: Machine, rules: AgentSettings, *, overtaking: bool
) -> tuple[list[Stretch], list[tuple[float, float, int]]]:
    """Return all stretches of jobs, and of agents the start, the end and the node."""
    site = LentSite(places_of(machine), machine.allocation is Allocation.NODES, machine.prefers_one, rules=rules)
    coming = list(coming)
    gone: list[Agent] = []
    while coming or site.waiting or site.running:
        ends = [stretch.end_s for stretch in site.running] + [agent.end_s for agent in site.agents]
        site.now_s = min([work.submit_s for work in coming[:1]] + ends + [site.wake_s])
        for stretch in [stretch for stretch in site.running if stretch.end_s == site.now_s]:
            site.release(stretch)
        gone += [agent for agent in site.agents if agent.end_s == site.now_s]
        site.agents = [agent for agent in site.agents if agent.end_s > site.now_s]
        site.wake_s = site.wake_s if site.wake_s > site.now_s else math.inf
        while coming and coming[0].submit_s == site.now_s:
            site.waiting.append(coming.pop(0))
        site.decide(overtaking=overtaking)
    ended = [(agent.start_s, min(agent.end_s, site.now_s), agent.place.number) for agent in gone + site.agents]
    return site.over, sorted(each for each in ended if each[0] < each[1])
