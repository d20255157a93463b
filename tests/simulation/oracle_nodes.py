"""First come first served and EASY on nodes, with migration, or with agents, that can be read at a glance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tests.simulation import oracle_compaction
from tests.simulation.oracle_compaction import Node

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.model import Allocation, Machine, Workload
from gleaner.control.simulation.settings import Migration


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
