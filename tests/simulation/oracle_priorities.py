"""Linear priority and Simultaneous Fair-Share the slow and readable way: lists, one instant after the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import Workload


@dataclass(frozen=True)
class Job:
    submit_s: float
    run_s: float
    limit_s: float
    units: int
    user: str = "all"


@dataclass(frozen=True)
class Hold:
    """Units that are not free from one instant to another."""

    units: int
    from_s: float
    to_s: float

    def __contains__(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.to_s


@dataclass(frozen=True)
class Weights:
    per_second: float = 1
    per_unit: float = 0
    per_limit_s: float = 0

    def priority(self, job: Job, *, since_s: float, now_s: float) -> Fraction:
        age = Fraction(now_s) - Fraction(since_s)
        return (
            Fraction(self.per_second) * age
            + Fraction(self.per_unit) * job.units
            + Fraction(self.per_limit_s) * Fraction(job.limit_s)
        )


def chosen(
    waiting: Sequence[Job],
    running: Sequence[tuple[Job, float]],
    *,
    targets: dict[str, float],
    capacity: int,
    reservations: int,
    now_s: float,
) -> list[int]:
    """Return which of the waiting start, by descending priority, in order. For each running job its start is given."""
    holds = [Hold(job.units, start_s, start_s + job.limit_s) for job, start_s in running]
    held = {user: sum(job.units for job, _ in running if job.user == user) for user in targets}
    starts: list[int] = []
    promised: list[int] = []

    def fits(job: Job, from_s: float) -> bool:
        until_s = from_s + job.limit_s
        instants = [from_s, *(hold.from_s for hold in holds if from_s < hold.from_s < until_s)]
        return all(sum(hold.units for hold in holds if at_s in hold) + job.units <= capacity for at_s in instants)

    def walk(eligible: list[int], *, is_first: bool) -> None:
        for index in eligible:
            job = waiting[index]
            if index in starts or (is_first and held[job.user] >= targets[job.user]):
                continue
            if fits(job, now_s):
                starts.append(index)
                held[job.user] += job.units
                holds.append(Hold(job.units, now_s, now_s + job.limit_s))
            elif reservations == 0:
                return
            elif len(promised) < reservations and index not in promised:
                instants = sorted({hold.to_s for hold in holds if hold.to_s > now_s})
                shadow_s = next((at_s for at_s in instants if fits(job, at_s)), None)
                if shadow_s is not None:
                    promised.append(index)
                    holds.append(Hold(job.units, shadow_s, shadow_s + job.limit_s))

    walk(list(range(len(waiting))), is_first=True)
    walk(list(range(len(waiting))), is_first=False)
    return starts


def replayed(
    jobs: Sequence[Job],
    *,
    capacity: int,
    weights: Weights,
    targets: dict[str, float] | None = None,
    reservations: int = 0,
    every_s: float = 0,
    until_s: float = math.inf,
    keep_waiting: int = 0,
) -> tuple[list[float], list[float]]:
    """Return when each job, in order of submission, entered the queue and when it started; NaN for never."""
    targets = targets or dict.fromkeys({job.user for job in jobs}, 0.0)
    entered = [math.nan] * len(jobs)
    started = [math.nan] * len(jobs)
    coming, waiting, running = list(range(len(jobs))), list[int](), list[int]()
    due_s: float | None = None

    def next_instants() -> list[float]:
        instants = [started[index] + jobs[index].run_s for index in running]
        if coming and not keep_waiting:
            instants.append(jobs[coming[0]].submit_s)
        if coming and len(waiting) < keep_waiting:
            instants.append(now_s)
        return instants if due_s is None else [*instants, due_s]

    now_s = 0.0
    while (instants := next_instants()) and (now_s := min(instants)) < until_s:
        ended = [index for index in running if started[index] + jobs[index].run_s <= now_s]
        running = [index for index in running if index not in ended]
        is_news = bool(ended)
        while coming and (len(waiting) < keep_waiting if keep_waiting else jobs[coming[0]].submit_s <= now_s):
            entered[coming[0]] = now_s if keep_waiting else jobs[coming[0]].submit_s
            waiting.append(coming.pop(0))
            is_news = True
        if is_news and due_s is None and waiting:
            due_s = math.ceil(now_s / every_s) * every_s if every_s else now_s
        if due_s is None or due_s > now_s:
            continue
        due_s = None
        ranks = {i: (-weights.priority(jobs[i], since_s=entered[i], now_s=now_s), i) for i in waiting}
        waiting.sort(key=ranks.__getitem__)
        starts = chosen(
            [jobs[index] for index in waiting],
            [(jobs[index], started[index]) for index in running],
            targets=targets,
            capacity=capacity,
            reservations=reservations,
            now_s=now_s,
        )
        for index in [waiting[place] for place in starts]:
            started[index] = now_s
            waiting.remove(index)
            running.append(index)
    return entered, started


def as_workload(jobs: Sequence[Job]) -> Workload:
    """The same jobs, as the simulator takes them."""
    users = tuple(sorted({job.user for job in jobs}))
    workload = workload_of(((job.submit_s, job.run_s, job.limit_s, job.units) for job in jobs), "a test")
    return replace(workload, user=np.array([users.index(job.user) for job in jobs], np.int32), users=users)
