"""Synthetic workloads, and the distributions from which sizes, run times and other values of a scenario are drawn.

Jobs are drawn first, and then given arrival times at a rate that results in the requested load. Times are whole
seconds, as in logs. The same settings, machine and seed always give the same workload.
"""

import math
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Literal, Self

import numpy as np
from numpy.random import PCG64, Generator
from pydantic import Field, model_validator

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Counts, Machine, Seconds, Workload
from gleaner.control.simulation.settings import SettingsTable
from gleaner.control.simulation.workloads import lublin_feitelson


class Constant(SettingsTable):
    """A distribution whose value is always the same."""

    kind: Literal["constant"] = "constant"
    value: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return np.full(count, self.value)


class Exponential(SettingsTable):
    """The exponential distribution, which is memoryless."""

    kind: Literal["exponential"] = "exponential"
    mean: float = Field(gt=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return rng.exponential(self.mean, count)


class LogNormal(SettingsTable):
    """The log-normal distribution. `mean` and `deviation` are those of the values, not of their logarithms."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    deviation: float = Field(ge=0)

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        variance = math.log1p((self.deviation / self.mean) ** 2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


class Uniform(SettingsTable):
    """The uniform distribution between `low` and `high`. For whole numbers, both ends are included."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(ge=0)
    high: float = Field(gt=0)

    @model_validator(mode="after")
    def _low_is_low(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, which is more than high, {self.high:g}")
        return self

    def draw(self, count: int, rng: Generator) -> Seconds:
        """Return `count` drawn values."""
        return rng.uniform(self.low, self.high, count)


Distribution = Annotated[Constant | Exponential | LogNormal | Uniform, Field(discriminator="kind")]


def whole(distribution: Distribution, count: int, rng: Generator) -> Seconds:
    """Return drawn values, rounded to whole numbers of at least 1.

    The ends of a uniform distribution are as likely as the values between them.
    """
    if isinstance(distribution, Uniform):
        distribution = Uniform(low=max(distribution.low - 0.5, 0), high=distribution.high + 0.5)
        return np.clip(np.rint(distribution.draw(count, rng)), 1, math.floor(distribution.high))
    return np.maximum(np.rint(distribution.draw(count, rng)), 1)


_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
COMMON_LIMITS_S: Seconds = np.array(
    [m * _MINUTE_S for m in (5, 10, 15, 20, 30, 45)]
    + [h * _HOUR_S for h in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 24, 36, 48)]
)
"""The round limits that most users request. In real logs, 20 values are the limits of about 90 % of the jobs (Tsafrir,
Etsion, Feitelson: Modeling User Runtime Estimates, JSSPP 2005). These particular values are our choice. Beyond the last
value, limits are whole days."""
_REDRAWS = 1000


class Source(StrEnum):
    """The source of the jobs."""

    DISTRIBUTIONS = "distributions"
    """Sizes and run times, which are drawn independently."""
    LUBLIN = "lublin"
    """The workload model of Lublin and Feitelson, with its daily cycle."""
    DRAWN = "drawn"
    """Jobs of a trace, drawn with their size, run time, limit, memory and owner together."""


class LimitSettings(SettingsTable):
    """`[workload.synthetic.limits]`: the limits that users request, derived from the run times of their jobs."""

    factor: Distribution = Constant(value=1)
    """The factor by which the run time is multiplied to give the limit. A factor below 1 counts as 1."""
    rounded: bool = True
    """True if limits are rounded up to the next common value, such as 15 minutes, an hour or a day."""


class OwnerSettings(SettingsTable):
    """`[[workload.synthetic.owners]]`: a user, and the share of the jobs that the user submits.

    Shares are relative to their sum.
    """

    user: str
    group: str = "all"
    share: float = Field(default=1, ge=0)


class SyntheticSettings(SettingsTable):
    """`[workload.synthetic]`: a synthetic workload."""

    source: Source = Source.DISTRIBUTIONS
    jobs: int = Field(default=10_000, ge=1, le=10**8)
    load: float | None = Field(default=None, gt=0)
    """The part of the machine that the jobs would use until the last submission if no job waited. For example, 0.9 is
    90 %. Without a load, all jobs are submitted at the start. The queue is then always full, for a replay with
    `keep_waiting`."""
    seed: int = Field(default=0, ge=0)
    sizes: Distribution = Uniform(low=1, high=16)
    """The sizes of the jobs in processors. A size larger than the machine is drawn again."""
    run_s: Distribution = Exponential(mean=3600)
    limits: LimitSettings = LimitSettings()
    owners: tuple[OwnerSettings, ...] = (OwnerSettings(user="all"),)
    memory_mib_per_processor: Distribution = Constant(value=0)
    preemptible: float = Field(default=0, ge=0, le=1)
    """The share of jobs that can be killed and then start over."""
    checkpointable: float = Field(default=0, ge=0, le=1)
    """The share of jobs that can be saved."""


def make(settings: SyntheticSettings, machine: Machine, source: Workload | None = None) -> Workload:
    """Return the workload that the settings describe. `source` is the trace from which jobs are drawn, if there is one.

    Raise `BadScenario` if the settings do not fit the machine.
    """
    rng = Generator(PCG64(settings.seed))
    match settings.source:
        case Source.DRAWN:
            if source is None:
                raise BadScenario("workload.synthetic.source is 'drawn', so it needs a trace whose jobs are drawn")
            jobs = drawn(source, settings.jobs, rng)
        case Source.LUBLIN:
            size = lublin_feitelson.sizes(settings.jobs, machine.cores, rng)
            jobs = described(settings, size, lublin_feitelson.run_times_s(size, rng), rng)
        case Source.DISTRIBUTIONS:
            size = _sizes(settings, machine.cores, rng)
            jobs = described(settings, size, whole(settings.run_s, settings.jobs, rng), rng)
    jobs = with_classes(jobs, preemptible=settings.preemptible, checkpointable=settings.checkpointable, rng=rng)
    if settings.load is None:
        return jobs
    if settings.source is Source.LUBLIN:
        return arriving_by_day(jobs, machine, load=settings.load, rng=rng)
    return arriving(jobs, machine, load=settings.load, rng=rng)


def drawn(source: Workload, jobs: int, rng: Generator) -> Workload:
    """Return `jobs` jobs of the source, drawn at random with replacement, all submitted at 0 and numbered from 1."""
    chosen = source.only(rng.integers(0, len(source), jobs))
    name = f"{jobs} jobs drawn from {source.name}"
    return replace(chosen, name=name, job=_numbers(jobs), submit_s=np.zeros(jobs))


def described(settings: SyntheticSettings, size: Counts, run_s: Seconds, rng: Generator) -> Workload:
    """Return jobs with these sizes and run times, all submitted at 0, with limits, owners and memory from the
    settings."""
    jobs = len(size)
    owner = _owners(settings, jobs, rng)
    users = tuple(sorted({entry.user for entry in settings.owners}))
    groups = tuple(sorted({entry.group for entry in settings.owners}))
    user_of = np.array([users.index(entry.user) for entry in settings.owners], np.int32)
    group_of = np.array([groups.index(entry.group) for entry in settings.owners], np.int32)
    return Workload(
        name=f"{jobs} jobs, {settings.source.value}",
        job=_numbers(jobs),
        submit_s=np.zeros(jobs),
        run_s=run_s,
        limit_s=limits_s(run_s, settings.limits, rng),
        processors=size,
        memory_mib=np.rint(settings.memory_mib_per_processor.draw(jobs, rng)) * size.astype(np.float64),
        user=user_of[owner],
        group=group_of[owner],
        job_class=np.full(jobs, JobClass.NON_PREEMPTIBLE, np.int8),
        users=users,
        groups=groups,
    )


def limits_s(run_s: Seconds, settings: LimitSettings, rng: Generator) -> Seconds:
    """Return the limits that the jobs' users request, in seconds. No limit is shorter than the job's run time."""
    asked = np.ceil(run_s * np.maximum(settings.factor.draw(len(run_s), rng), 1))
    if not settings.rounded:
        return np.asarray(asked)
    place = np.searchsorted(COMMON_LIMITS_S, asked)
    days = np.ceil(asked / _DAY_S) * _DAY_S
    return np.where(place < len(COMMON_LIMITS_S), COMMON_LIMITS_S[np.minimum(place, len(COMMON_LIMITS_S) - 1)], days)


def with_classes(workload: Workload, *, preemptible: float, checkpointable: float, rng: Generator) -> Workload:
    """Return the same jobs, of which these shares are preemptible or checkpointable.

    Raise `BadScenario` if the sum of the shares is more than 1.
    """
    if preemptible + checkpointable > 1:
        raise BadScenario(
            f"preemptible and checkpointable jobs are {preemptible + checkpointable:g} of all jobs: over 1"
        )
    chance = rng.random(len(workload))
    job_class = np.full(len(workload), JobClass.NON_PREEMPTIBLE, np.int8)
    job_class[chance < preemptible + checkpointable] = JobClass.CHECKPOINTABLE
    job_class[chance < preemptible] = JobClass.PREEMPTIBLE
    return replace(workload, job_class=job_class)


def span_s(workload: Workload, machine: Machine, load: float) -> float:
    """Return the seconds that the machine would need for the jobs' work at this load."""
    return float((machine.units_asked(workload.processors) * workload.run_s).sum() / (machine.units * load))


def arriving(workload: Workload, machine: Machine, *, load: float, rng: Generator) -> Workload:
    """Return the same jobs, submitted in a Poisson process.

    The instants of submission are drawn uniformly from the time span that results in the load.
    """
    return _submitted(workload, np.sort(rng.uniform(0, span_s(workload, machine, load), len(workload))))


def arriving_by_day(workload: Workload, machine: Machine, *, load: float, rng: Generator) -> Workload:
    """Return the same jobs, submitted as in the model of Lublin and Feitelson.

    The model's gaps between submissions are scaled so that they result in the load.
    """
    gaps = lublin_feitelson.gaps_s(len(workload), rng)
    return _submitted(
        workload, lublin_feitelson.through_the_day_s(gaps * (span_s(workload, machine, load) / gaps.sum()))
    )


def _submitted(workload: Workload, at_s: Seconds) -> Workload:
    return replace(workload, submit_s=np.floor(at_s))


def _numbers(jobs: int) -> Counts:
    return np.arange(1, jobs + 1, dtype=np.int64)


def _sizes(settings: SyntheticSettings, processors: int, rng: Generator) -> Counts:
    size = whole(settings.sizes, settings.jobs, rng)
    for _ in range(_REDRAWS):
        too_large = np.flatnonzero(size > processors)
        if not len(too_large):
            return size.astype(np.int64)
        size[too_large] = whole(settings.sizes, len(too_large), rng)
    raise BadScenario(
        f"workload.synthetic.sizes are hardly ever at most {processors} processors, which is all the machine has"
    )


def _owners(settings: SyntheticSettings, jobs: int, rng: Generator) -> Counts:
    shares = np.array([entry.share for entry in settings.owners])
    if not shares.sum() > 0:
        raise BadScenario("workload.synthetic.owners have no share of the jobs: name at least one with a share above 0")
    return rng.choice(len(shares), jobs, p=shares / shares.sum())
