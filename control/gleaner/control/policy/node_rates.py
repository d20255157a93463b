"""The cost of saves and restores on a node, and the lifetime of agents: sums that fade, and figures from them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.timing.deadlines import LEAST_FIXED_S
from gleaner.agent.timing.least_squares import LEAST_MIB, MIB, Sums, line

ERRORS_KEPT = 20
LATE_FACTOR = 1.5
"""A save that was abandoned counts as so many times the time it had taken, since its full time is unknown."""
LONGEST_S = 86_400.0
"""A longer measurement comes from a clock that was set, and says nothing of the node."""


@dataclass(frozen=True, slots=True)
class RateRules:
    """The rate at which measurements fade; see `settings.RateSettings`."""

    half_life: float
    """The half-life of a save or restore, in measurements."""
    half_life_s: float
    """The half-life of agents' time and losses."""
    prior_s: float
    """The mean time between losses that is assumed at first."""


def added(sums: Sums, *, size_bytes: int, at_once: int, took_s: float, half_life: float) -> Sums:
    """Return the sums with one more measurement. Earlier ones lose half their weight every `half_life` measurements.

    Each of several saves at once takes as long as all of them together. So the line describes the node, and a
    measurement counts with the size of all these saves. A size below `LEAST_MIB` counts as `LEAST_MIB`.

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


def at_least_s(sums: Sums, *, size_bytes: int, at_once: int, took_s: float, expected_s: float | None) -> float:
    """Return the time that counts for a save abandoned after `took_s`, in seconds: no less than was expected of it.

    A save that began just before the end had hardly any time, which says nothing of its full time.

    >>> known = added(Sums(), size_bytes=100 * MIB, at_once=1, took_s=10.0, half_life=20)
    >>> [at_least_s(known, size_bytes=200 * MIB, at_once=1, took_s=s, expected_s=None) for s in (0.5, 60.0)]
    [20.0, 90.0]
    """
    known = line(sums)
    mib = max(size_bytes / MIB, LEAST_MIB) * at_once
    before_s = known.fixed_s + mib / known.mib_s if known else 0.0
    return max(took_s * LATE_FACTOR, before_s, expected_s or 0.0)


def with_error(errors: Sequence[float], *, took_s: float, expected_s: float | None) -> list[float]:
    """Return the errors of the latest estimates with one more. An error is the time of a save over the expected time.

    >>> with_error([1.0], took_s=3.0, expected_s=2.0), with_error([1.0], took_s=3.0, expected_s=None)
    ([1.0, 1.5], [1.0])
    """
    if not expected_s:
        return list(errors)
    return [*errors, round(min(took_s, LONGEST_S) / max(expected_s, LEAST_FIXED_S), 3)][-ERRORS_KEPT:]


def faded(value: float, *, age_s: float, half_life_s: float) -> float:
    """Return the rest of a weight after `age_s`.

    >>> faded(8.0, age_s=20, half_life_s=10)
    2.0
    """
    return value * math.pow(0.5, max(age_s, 0.0) / half_life_s)


def mean_time_between_losses_s(*, agents_s: float, losses: float, prior_s: float) -> float:
    """Return the mean time before an agent is lost without notice, in seconds.

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
