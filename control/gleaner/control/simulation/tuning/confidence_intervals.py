"""Confidence intervals over the variants of a workload (see `variants`).

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
