"""Slow schedulers that can be read at a glance: what the compiled ones must agree with."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gleaner.control.simulation.model import Workload


@dataclass(eq=False)
class Job:
    submit_s: float
    run_s: float
    limit_s: float
    units: int
    start_s: float = math.nan
    promised_s: float = math.nan
    """Conservative backfilling only."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.run_s

    @property
    def expected_end_s(self) -> float:
        return self.start_s + self.limit_s


@dataclass
class Cluster:
    units: int
    now_s: float = 0
    running: list[Job] = field(default_factory=list[Job])
    """In order of their starts."""
    waiting: list[Job] = field(default_factory=list[Job])

    @property
    def free(self) -> int:
        return self.units - sum(job.units for job in self.running)

    def start(self, job: Job) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        job.start_s = self.now_s

    def fits(self, job: Job) -> bool:
        return job.units <= self.free

    def shadow(self, head: Job) -> tuple[float, int]:
        """Return when the job has enough free units if all run to their limits, and how many more are free then."""
        free = self.free
        ends = sorted({job.expected_end_s for job in self.running})
        for end_s in ends:
            free += sum(job.units for job in self.running if job.expected_end_s == end_s)
            if free >= head.units:
                return end_s, free - head.units
        raise AssertionError("larger than the machine")


def fcfs(cluster: Cluster) -> None:
    while cluster.waiting and cluster.fits(cluster.waiting[0]):
        cluster.start(cluster.waiting[0])


def easy(cluster: Cluster) -> None:
    fcfs(cluster)
    if not cluster.waiting:
        return
    shadow_s, extra = cluster.shadow(cluster.waiting[0])
    for job in cluster.waiting[1:]:
        ends_in_time = cluster.now_s + job.limit_s <= shadow_s
        if cluster.fits(job) and (ends_in_time or job.units <= extra):
            cluster.start(job)
            extra -= 0 if ends_in_time else job.units


def promise(cluster: Cluster, *, something_ended: bool = True) -> None:
    """The first half of conservative backfilling. What is due and could not start keeps the promise that it had."""
    for job in cluster.waiting:
        if (something_ended and not job.promised_s < cluster.now_s) or math.isnan(job.promised_s):
            earliest_s = _earliest(cluster, job)
            assert not earliest_s > job.promised_s, "a promise was broken"
            job.promised_s = earliest_s


def conservative(cluster: Cluster, *, something_ended: bool = True) -> None:
    promise(cluster, something_ended=something_ended)
    for job in [job for job in cluster.waiting if job.promised_s <= cluster.now_s]:
        cluster.start(job)


def _earliest(cluster: Cluster, job: Job) -> float:
    """The first instant from which on nobody else holds so much that this job could not run to its limit."""
    held = [(cluster.now_s, other.expected_end_s, other.units) for other in cluster.running]
    held += [
        (other.promised_s, other.promised_s + other.limit_s, other.units)
        for other in cluster.waiting
        if other is not job and not math.isnan(other.promised_s)
    ]

    def is_free(begin_s: float) -> bool:
        end_s = begin_s + job.limit_s
        changes = [begin_s] + [start_s for start_s, _, _ in held if begin_s < start_s < end_s]
        return all(
            sum(units for start_s, stop_s, units in held if start_s <= at_s < stop_s) + job.units <= cluster.units
            for at_s in changes
        )

    candidates = sorted({cluster.now_s, *(stop_s for _, stop_s, _ in held if stop_s > cluster.now_s)})
    return next(at_s for at_s in candidates if is_free(at_s))


def starts(kind: str, jobs: Sequence[Job], units: int) -> list[float]:
    """Return when each job starts. At one instant: first all ends, then all submissions, then one decision."""
    cluster = Cluster(units)
    coming = list(jobs)
    while coming or cluster.waiting or cluster.running:
        instants = [job.submit_s for job in coming[:1]] + [job.end_s for job in cluster.running]
        if kind == "conservative":
            instants += [job.promised_s for job in cluster.waiting]
        cluster.now_s = min(instants)
        ended = [job for job in cluster.running if job.end_s == cluster.now_s]
        cluster.running = [job for job in cluster.running if job not in ended]
        while coming and coming[0].submit_s == cluster.now_s:
            cluster.waiting.append(coming.pop(0))
        match kind:
            case "fcfs":
                fcfs(cluster)
            case "easy":
                easy(cluster)
            case _:
                conservative(cluster, something_ended=bool(ended))
    return [job.start_s for job in jobs]


def jobs_of(workload: Workload) -> list[Job]:
    """The jobs of a workload on a pool of processors."""
    columns = zip(workload.submit_s, workload.run_s, workload.limit_s, workload.processors, strict=True)
    return [Job(float(submit), float(run), float(limit), int(units)) for submit, run, limit, units in columns]


def workload_of(jobs: Iterable[tuple[float, float, float, int]], name: str = "by hand") -> Workload:
    """Jobs as (submit, run, limit, processors), numbered from 1."""
    rows = list(jobs)
    zeros = np.zeros(len(rows), np.int32)
    submit_s, run_s, limit_s = (np.array([row[i] for row in rows], float) for i in range(3))
    return Workload(
        name=name,
        job=np.arange(1, len(rows) + 1),
        submit_s=submit_s,
        run_s=run_s,
        limit_s=limit_s,
        processors=np.array([row[3] for row in rows], np.int64),
        memory_mib=np.zeros(len(rows)),
        user=zeros,
        group=zeros,
        job_class=np.zeros(len(rows), np.int8),
    )
