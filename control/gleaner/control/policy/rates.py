"""What saves and restores cost on a node, and how long nodes last: sums that forget, and figures from them. Pure."""

import math
from dataclasses import dataclass

MIB = 1024 * 1024
FASTEST_MIB_S = 20_480.0
"""No storage here is faster; a fit that says so has only seen saves whose time did not depend on their size."""

LEAST_MIB = 16.0
"""A save or restore of less counts as one of so much, as with the agents: it says nothing of a large one."""

LONGEST_S = 86_400.0
"""What says that it took longer, tells of a clock that was set, and of no node."""


@dataclass(frozen=True, slots=True)
class RateRules:
    """How fast what was seen is forgotten; see `settings.RateSettings`."""

    half_life: float
    """In measurements."""
    half_life_s: float
    """For agents' time and losses."""
    prior_s: float
    """The mean time between losses that is assumed at first."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Decayed sums over measurements of (MiB, seconds), enough for a straight line through them."""

    count: float = 0.0
    mib: float = 0.0
    s: float = 0.0
    mib_mib: float = 0.0
    mib_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed_s` plus a size over `mib_s` is what it takes."""

    fixed_s: float
    mib_s: float


def added(sums: Sums, *, size_bytes: int, at_once: int, took_s: float, half_life: float) -> Sums:
    """The sums with one more measurement; those before lose half their weight every `half_life` measurements.

    Of several at once each takes as long as all together, so the line is of the node: the size is that of all.

    >>> round(added(Sums(count=1.0), size_bytes=MIB, at_once=1, took_s=1.0, half_life=1).count, 3)
    1.5
    """
    keep = 0.5 ** (1 / half_life)
    mib = max(size_bytes / MIB, LEAST_MIB) * at_once
    took_s = min(took_s, LONGEST_S)
    return Sums(
        count=sums.count * keep + 1,
        mib=sums.mib * keep + mib,
        s=sums.s * keep + took_s,
        mib_mib=sums.mib_mib * keep + mib * mib,
        mib_s=sums.mib_s * keep + mib * took_s,
    )


def line(sums: Sums) -> Line | None:
    """The line of least squares, with neither a negative fixed time nor a negative rate; None without measurements.

    Where all had nearly the same size, which part of the time was fixed cannot be known: all of it counts as growing
    with the size, so that a larger one is not begun too late.

    >>> sums = Sums()
    >>> for mib in (100, 200, 400):
    ...     sums = added(sums, size_bytes=mib * MIB, at_once=1, took_s=0.5 + mib / 200, half_life=20)
    >>> found = line(sums)
    >>> round(found.fixed_s, 6), round(found.mib_s, 6)
    (0.5, 200.0)
    """
    if sums.count <= 0 or sums.mib <= 0:
        return None
    mean_mib, mean_s = sums.mib / sums.count, sums.s / sums.count
    spread = sums.mib_mib / sums.count - mean_mib**2
    least = 1 / FASTEST_MIB_S
    if spread <= (0.05 * mean_mib) ** 2:
        return Line(0.0, 1 / max(mean_s / mean_mib, least))
    slope = max((sums.mib_s / sums.count - mean_mib * mean_s) / spread, least)
    fixed_s = mean_s - slope * mean_mib
    if fixed_s < 0:  # through the origin instead
        return Line(0.0, 1 / max(sums.mib_s / sums.mib_mib, least))
    return Line(fixed_s, 1 / slope)


def faded(value: float, *, age_s: float, half_life_s: float) -> float:
    """What is left of a weight.

    >>> faded(8.0, age_s=20, half_life_s=10)
    2.0
    """
    return value * math.pow(0.5, max(age_s, 0.0) / half_life_s)


def mean_time_between_losses_s(*, agents_s: float, losses: float, prior_s: float) -> float:
    """How long an agent lasts on average before it is lost without notice.

    Losses are counted as a Poisson process over the agents' time. With a Gamma(1, `prior_s`) prior on its rate, the
    rate's posterior mean is (losses + 1) / (agents_s + prior_s) (Gelman et al., Bayesian Data Analysis, 3rd ed.,
    section 2.6): as if one loss had been seen in `prior_s` before. So without a loss it grows with what was observed,
    and one early loss does not make it minutes.

    >>> mean_time_between_losses_s(agents_s=0, losses=0, prior_s=1000)
    1000.0
    >>> mean_time_between_losses_s(agents_s=9000, losses=4, prior_s=1000)
    2000.0
    """
    return (agents_s + prior_s) / (losses + 1)
