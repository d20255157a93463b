"""OMFS the slow and readable way: lists, one instant after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tests.simulation.oracle import workload_of

from gleaner.control.policy.entitlements import OwnerCpus, choose_victims
from gleaner.control.policy.entitlements_view import EntitlementRules, JobClass, RunningJob
from gleaner.control.policy.resources import Resources
from gleaner.control.simulation.model import Workload
from gleaner.control.simulation.settings import OmfsSettings

FIXED, KILLED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE


@dataclass(frozen=True)
class Wish:
    units: int
    owner: str
    kind: JobClass = SAVED


@dataclass(frozen=True)
class Held(Wish):
    """A job that runs."""

    priority: int = 0
    ran_s: float = 0
    cost_s: float = 0


@dataclass(frozen=True)
class Rules:
    entitled: dict[str, int]
    quantum_s: float = 0
    protects: bool = True
    literal: bool = False


START, REFUSE, WAIT = "start", "refuse", "wait"
Answer = str | list[int]
"""A word, or who is vacated."""


def answer(
    wish: Wish, running: Sequence[Held], promised: Sequence[Wish], *, idle: int, coming: int, rules: Rules
) -> Answer:
    """Return the decision on one waiting job. `promised` jobs count as their owners', but cannot be vacated.

    By the paper's words it is the answer of live control's rules, of which the simulator has a twin.
    """
    owners = {owner: OwnerCpus(entitled) for owner, entitled in rules.entitled.items()}
    for job in (*running, *promised):
        owners[job.owner].count(job.units, job.kind)
    for job in promised:
        owners[job.owner].promised += job.units
    own, missing = owners[wish.owner], wish.units - idle - coming
    if rules.literal:
        exceeds = wish.kind is FIXED and own.used_fixed + wish.units >= own.entitled
        fits_idle = missing < 0
    else:
        exceeds = own.would_exceed(wish.units, wish.kind)
        fits_idle = idle >= wish.units and own.may_use_idle(wish.units)
    if exceeds or not (fits_idle or own.is_claim(wish.units)):
        return REFUSE
    if idle >= wish.units:
        return START  # by the listing too: line 31 has nothing to do
    if rules.literal:
        chosen = least_prioritised(running, missing, rules)
        return REFUSE if chosen is None else chosen
    if missing <= 0:
        return []
    jobs = [
        RunningJob(str(at), job.owner, job.kind, -job.ran_s, {"": Resources(job.units, 0)}, job.priority, job.cost_s)
        for at, job in enumerate(running)
    ]
    live_rules = EntitlementRules(rules.quantum_s, rules.protects, saves_left=100)
    found = choose_victims(jobs, lambda job: job.cpus, owners, missing, now_s=0.0, rules=live_rules)
    return [int(job.job) for job in found] or WAIT


def least_prioritised(running: Sequence[Held], missing: int, rules: Rules) -> list[int] | None:
    order = sorted(range(len(running)), key=lambda at: (running[at].ran_s < rules.quantum_s, running[at].priority))
    chosen: list[int] = []
    while sum(running[at].units for at in chosen) < missing:
        if len(chosen) == len(order):
            return None
        chosen.append(order[len(chosen)])
    return chosen


@dataclass(eq=False)
class Job:
    submit_s: float
    run_s: float
    units: int
    owner: str
    kind: JobClass = SAVED
    memory_mib: float = 0
    number: int = 0
    left_s: float = math.nan
    has_image: bool = False
    since_s: float = math.nan
    restore_s: float = 0
    freed_s: float = math.nan
    """The end of its save."""
    saved_from_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    missing: int = 0
    """Of a claim."""
    claim: "Job | None" = None
    """For which it is being saved."""

    def held(self, now_s: float, settings: OmfsSettings) -> Held:
        cost_s = settings.save.seconds(self.memory_mib)
        return Held(self.units, self.owner, self.kind, -self.number, now_s - self.since_s, cost_s)

    @property
    def wish(self) -> Wish:
        return Wish(self.units, self.owner, self.kind)


Stretch = tuple[int, float, float, float, float, float]
"""Job, start, end, and the seconds in restore, in save and lost."""


@dataclass
class Cluster:
    units: int
    settings: OmfsSettings
    rules: Rules
    now_s: float = 0
    waiting: list[Job] = field(default_factory=list[Job])
    running: list[Job] = field(default_factory=list[Job])
    saving: list[Job] = field(default_factory=list[Job])
    claims: list[Job] = field(default_factory=list[Job])
    stretches: list[Stretch] = field(default_factory=list[Stretch])

    @property
    def idle(self) -> int:
        collected = sum(job.units - job.missing for job in self.claims)
        return self.units - collected - sum(job.units for job in [*self.running, *self.saving])

    @property
    def coming(self) -> int:
        return sum(job.units for job in self.saving) - sum(job.missing for job in self.claims)

    def begin(self, job: Job) -> None:
        job.since_s = self.now_s
        restoring = [one for one in self.running if one.has_image and one.since_s + one.restore_s > self.now_s]
        job.restore_s = self.settings.restore.seconds(job.memory_mib, len(restoring) + 1) if job.has_image else 0
        job.start_s = job.since_s if math.isnan(job.start_s) else job.start_s
        self.running.append(job)

    def give(self, first: Job | None) -> None:
        """Give what is idle to the jobs that have a claim."""
        for claim in [*(one for one in self.claims if one is first), *self.claims]:
            claim.missing -= min(self.idle, claim.missing)

    def begin_complete(self) -> None:
        complete = [one for one in self.claims if one.missing == 0]
        self.claims = [one for one in self.claims if one.missing]
        for job in complete:
            self.begin(job)

    def end_due(self) -> None:
        """In no order that matters: what ends is spread over the claims, each of which needs no more than comes."""
        for job in [one for one in self.running if one.since_s + one.restore_s + one.left_s <= self.now_s]:
            job.end_s = job.since_s + job.restore_s + job.left_s
            self.running.remove(job)
            self.stretches.append((job.number, job.since_s, job.end_s, job.restore_s, 0, 0))
            self.give(None)
        for job in [one for one in self.saving if one.freed_s <= self.now_s]:
            self.saving.remove(job)
            save_s = job.freed_s - job.saved_from_s
            self.stretches.append((job.number, job.since_s, job.freed_s, job.restore_s, save_s, 0))
            self.waiting.append(job)
            self.give(job.claim)

    def vacate(self, job: Job, claim: Job, at_once: int) -> None:
        self.running.remove(job)
        ran_s = self.now_s - job.since_s
        computed_s = ran_s - min(ran_s, job.restore_s)
        if job.kind is SAVED and computed_s > 0:
            job.left_s -= computed_s
            job.has_image = True
            job.saved_from_s, job.claim = self.now_s, claim
            job.freed_s = self.now_s + self.settings.save.seconds(job.memory_mib, at_once)
            self.saving.append(job)
            return
        if ran_s:
            restored_s = min(ran_s, job.restore_s)
            self.stretches.append((job.number, job.since_s, self.now_s, restored_s, 0, computed_s))
        elif job.start_s == self.now_s:
            job.start_s = math.nan
        if job.kind is SAVED or not self.rules.literal:
            self.waiting.append(job)
        self.give(claim)

    def attempt(self, job: Job) -> Answer:
        held = [one.held(self.now_s, self.settings) for one in self.running]
        promised = [one.wish for one in self.claims]
        found = answer(job.wish, held, promised, idle=self.idle, coming=self.coming, rules=self.rules)
        if found == START:
            self.waiting.remove(job)
            self.begin(job)
        elif isinstance(found, list):
            self.waiting.remove(job)
            victims = [self.running[at] for at in found]
            job.missing = job.units
            self.claims.append(job)
            self.give(job)
            computing = [one for one in victims if one.kind is SAVED and one.since_s + one.restore_s < self.now_s]
            at_once = len(self.saving) + len(computing)
            for victim in victims:
                self.vacate(victim, job, at_once)
            self.begin_complete()
        return found

    def walk(self) -> bool:
        """One decision; whether a claim must wait for a quantum."""
        if self.rules.literal:
            for job in sorted(self.waiting, key=lambda one: one.number):
                self.attempt(job)
            return False
        answers: list[Answer] = [[]]
        while any(isinstance(one, list) for one in answers):
            answers = [
                self.attempt(job) for job in sorted(self.waiting, key=lambda one: one.number) if self.is_claim(job)
            ]
        if WAIT in answers:
            return True
        for job in sorted(self.waiting, key=lambda one: one.number):
            if self.attempt(job) not in (START, REFUSE):
                raise AssertionError("no claim, and yet somebody is to be vacated for it")
        return False

    def is_claim(self, job: Job) -> bool:
        held = [*self.running, *self.claims]
        return job.units <= self.rules.entitled[job.owner] - sum(one.units for one in held if one.owner == job.owner)


def replayed(
    jobs: Sequence[Job], *, units: int, settings: OmfsSettings, until_s: float = math.inf, every_s: float = 0
) -> Cluster:
    """The cluster when it has done what it could; the jobs, by time of submission, have their starts and ends."""
    entitled = {owner: math.floor(units * percent / 100) for owner, percent in settings.percent.items()}
    for job in jobs:
        entitled.setdefault(job.owner, 0)
    rules = Rules(entitled, settings.quantum_s, settings.quantum_protects, settings.literal)
    cluster = Cluster(units, settings, rules)
    coming = list(jobs)
    for number, job in enumerate(jobs):
        job.number, job.left_s = number, job.run_s
    wake_s = due_s = math.inf
    while True:
        instants = [job.submit_s for job in coming[:1]] + [wake_s, due_s]
        instants += [job.since_s + job.restore_s + job.left_s for job in cluster.running]
        instants += [job.freed_s for job in cluster.saving]
        if not min(instants) < until_s:
            cluster.now_s = until_s
            cluster.end_due()
            return cluster
        cluster.now_s = min(instants)
        cluster.end_due()
        cluster.begin_complete()
        if wake_s <= cluster.now_s:
            wake_s = math.inf
        while coming and coming[0].submit_s <= cluster.now_s:
            cluster.waiting.append(coming.pop(0))
        if due_s == math.inf:
            due_s = math.ceil(cluster.now_s / every_s) * every_s if every_s else cluster.now_s
        if due_s > cluster.now_s:
            continue
        due_s = math.inf
        if cluster.walk():
            quanta = [job.since_s + settings.quantum_s for job in cluster.running]
            wake_s = min((at_s for at_s in quanta if at_s > cluster.now_s), default=math.inf)


def as_workload(jobs: Sequence[Job], groups: Sequence[str] = ()) -> Workload:
    """The same jobs, as the simulator takes them."""
    groups = tuple(sorted({*groups, *(job.owner for job in jobs)}))
    return replace(
        workload_of(((job.submit_s, job.run_s, job.run_s, job.units) for job in jobs), "a test"),
        memory_mib=np.array([job.memory_mib for job in jobs], dtype=float),
        group=np.array([groups.index(job.owner) for job in jobs], dtype=np.int32),
        job_class=np.array([job.kind for job in jobs], np.int8),
        groups=groups,
    )
