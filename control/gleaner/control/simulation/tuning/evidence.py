"""A setting that was tried, its figures under each seed with their confidence intervals, and the limit it has to keep.

One seed gives one figure. The figures of n seeds are independent draws and taken as normal, so their mean is known to
± t s / sqrt(n), where s is their standard deviation and t is Student's t with n - 1 degrees of freedom. Figures of two
settings under the same seed are paired: the interval is that of their differences.

The interval is one for the mean over all variants of this workload. The trace is itself a sample of what the machine
sees, and the interval does not include that: how far single variants lie apart tells more about it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.control.simulation.metrics.tables import change, duration


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and bounds of the true mean at the level asked for. Without a spread all three are equal."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the two-sided Student-t interval of at least two figures.

    Raise ValueError for fewer figures, since one figure says nothing about its own spread, and for a level that is not
    between 0 and 1.

    >>> found = interval([1.0, 2.0, 3.0, 4.0])
    >>> found.mean, round(found.low, 4), round(found.high, 4)
    (2.5, 0.4457, 4.5543)
    >>> interval([2.0, 2.0])
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs two figures or more, not {len(values)}")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not {level:g}")
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = student_t(count - 1, (1 + level) / 2) * spread / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def student_t(freedom: int, share: float) -> float:
    """Return the value below which a t-distributed figure stays with this probability.

    >>> round(student_t(4, 0.975), 4)
    2.7764
    """
    from scipy.special import stdtrit  # a quarter of a second to load, and only a sweep needs it

    return float(stdtrit(np.float64(freedom), np.float64(share)))


def exact(seconds: float) -> str:
    """Return a chosen time in words, with no more digits than it needs.

    >>> exact(90), exact(600), exact(5400), exact(4000)
    ('90 s', '10 min', '1.5 h', '66.6667 min')
    """
    for unit, unit_s, least_s in (("h", 3600, 5400), ("min", 60, 120)):
        if seconds >= least_s:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s"


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A choice for agents: preemption, an agent's length, whether all end together, and its margin before its end."""

    preemption: bool
    length_s: float
    synchronised: bool
    margin_s: float

    @property
    def said(self) -> str:
        """The setting in words.

        >>> Setting(preemption=False, length_s=3600, synchronised=True, margin_s=30).said
        'agents of 60 min with one end, margin 30 s'
        """
        ends = "with one end" if self.synchronised else "with ends of their own"
        vacated = ", vacated for regular jobs" if self.preemption else ""
        return f"agents of {exact(self.length_s)} {ends}, margin {exact(self.margin_s)}{vacated}"

    @property
    def kind(self) -> tuple[bool, float, bool]:
        """The setting without its margin."""
        return (self.preemption, self.length_s, self.synchronised)

    @property
    def plainness(self) -> tuple[bool, float, bool, float]:
        """The order of settings by simplicity: a smaller value is a simpler setting."""
        return (self.preemption, self.length_s, not self.synchronised, -self.margin_s)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of one setting under each seed, and beside them those without agents. Loads are shares of 1.

    Seeds are the same numbers for all settings, from the first on. A setting that left the race early has fewer.
    """

    setting: Setting
    effective_loads: tuple[float, ...]
    waits_s: tuple[float, ...]
    waits_without_s: tuple[float, ...]
    loads_without: tuple[float, ...]
    level: float

    def _interval(self, values: Sequence[float]) -> Interval:
        return interval(values, level=self.level)

    @property
    def effective_load(self) -> Interval:
        return self._interval(self.effective_loads)

    @property
    def gain(self) -> Interval:
        """The gain in effective load against no agents, from paired differences."""
        pairs = zip(self.effective_loads, self.loads_without, strict=True)
        return self._interval([load - without for load, without in pairs])

    @property
    def wait_s(self) -> Interval:
        """The growth of the mean wait in seconds, over all seeds."""
        return self._interval(self.growths_s)

    @property
    def growths_s(self) -> tuple[float, ...]:
        """The growth of the mean wait in seconds under each seed."""
        return tuple(wait - without for wait, without in zip(self.waits_s, self.waits_without_s, strict=True))

    @property
    def growths(self) -> tuple[float, ...]:
        """The growth under each seed as a share of the mean wait without agents. Only where regular jobs wait."""
        pairs = zip(self.growths_s, self.waits_without_s, strict=True)
        return tuple(grown_s / without for grown_s, without in pairs)

    @property
    def wait_share(self) -> Interval:
        """The growth as a share of the mean wait without agents, over all seeds. Only where regular jobs wait."""
        return self._interval(self.growths)

    def ahead_of(self, other: "Evidence") -> Interval:
        """Return how much more effective load this setting gives than the other, paired by the seeds that both have."""
        pairs = zip(self.effective_loads, other.effective_loads, strict=False)
        return self._interval([mine - theirs for mine, theirs in pairs])


@dataclass(frozen=True, slots=True)
class WaitLimit:
    """The limit on how much longer regular jobs may wait on average: a share of their wait, or seconds."""

    most: float
    is_share: bool = True

    @property
    def said(self) -> str:
        """The limit in words.

        >>> WaitLimit(0.01).said, WaitLimit(90, is_share=False).said
        ('1 %', '90 s')
        """
        return f"{100 * self.most:g} %" if self.is_share else exact(self.most)

    def growth(self, evidence: Evidence) -> Interval:
        """Return one setting's growth of the wait in the limit's own terms: a share, or seconds."""
        return evidence.wait_share if self.is_share else evidence.wait_s

    def worst(self, evidence: Evidence) -> float:
        """Return the largest growth under any seed."""
        return max(evidence.growths if self.is_share else evidence.growths_s)

    def shown(self, growth: float) -> str:
        """Return a growth as text in the limit's own terms, with its sign."""
        return change(growth) if self.is_share else f"{'+' if growth > 0 else ''}{duration(growth)}"

    def holds(self, evidence: Evidence) -> bool:
        """Return True if even the upper end of the interval is within the limit."""
        return self.growth(evidence).high <= self.most


def rank(evidence: Evidence) -> tuple[int, float, tuple[float, ...]]:
    """Return a key that ranks by mean effective load. Of equal loads the simpler setting ranks higher.

    Means over other seeds are of other weeks, and say nothing beside each other. So more seeds rank first.
    """
    plainness = tuple(-float(part) for part in evidence.setting.plainness)
    return (len(evidence.waits_s), evidence.effective_load.mean, plainness)
