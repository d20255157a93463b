"""The cost of abandoned saves, the errors of estimates, and the lifetime of agents on a node. The module is pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.messages import CostSample
from gleaner.agent.timing.save_cost import LEAST_FIXED_S, LONGEST_S, SaveCost

ERRORS_KEPT = 20
LATE_FACTOR = 1.5
"""An abandoned save counts as this multiple of the time that it had taken, because its full time is unknown."""


@dataclass(frozen=True, slots=True)
class RateRules:
    """The settings for losses; see `settings.RateSettings`."""

    half_life_s: float
    """The half-life of agents' time and losses."""
    prior_s: float
    """The mean time between losses that is assumed at first."""


def at_least_s(new: CostSample, *, known: SaveCost | None, expected_s: float | None) -> float:
    """Return the time that counts for an abandoned save, in seconds. It is at least the expected time.

    A save that began just before the agent's end had hardly any time, so it does not show how long a whole save takes.

    >>> known = SaveCost(fixed_s=0.0, mib_s=10.0)
    >>> [at_least_s(CostSample(200, took_s), known=known, expected_s=None) for took_s in (0.5, 60.0)]
    [20.0, 90.0]
    """
    before_s = known.time_s(new.mib) if known else 0.0
    return min(max(new.took_s * LATE_FACTOR, before_s, expected_s or 0.0), LONGEST_S)


def with_error(errors: Sequence[float], *, took_s: float, expected_s: float | None) -> list[float]:
    """Return the errors of the latest estimates, with one added.

    An error is the duration of a save divided by its expected duration.

    >>> with_error([1.0], took_s=3.0, expected_s=2.0), with_error([1.0], took_s=3.0, expected_s=None)
    ([1.0, 1.5], [1.0])
    """
    if not expected_s:
        return list(errors)
    return [*errors, round(min(took_s, LONGEST_S) / max(expected_s, LEAST_FIXED_S), 3)][-ERRORS_KEPT:]


def remaining_weight(value: float, *, age_s: float, half_life_s: float) -> float:
    """Return what remains of a weight after `age_s` seconds.

    >>> remaining_weight(8.0, age_s=20, half_life_s=10)
    2.0
    """
    return value * math.pow(0.5, max(age_s, 0.0) / half_life_s)


def mean_time_between_losses_s(*, agents_s: float, losses: float, prior_s: float) -> float:
    """Return the mean time before an agent is lost without notice, in seconds.

    Losses are counted as a Poisson process over the agents' time. With a Gamma(1, `prior_s`) prior on its rate, the
    rate's posterior mean is (losses + 1) / (agents_s + prior_s) (Gelman et al., Bayesian Data Analysis, 3rd ed.,
    section 2.6). This is as if one loss had been seen in an earlier period of `prior_s`. So without a loss, the mean
    time grows with the observed time, and one early loss does not reduce it to minutes.

    >>> mean_time_between_losses_s(agents_s=0, losses=0, prior_s=1000)
    1000.0
    >>> mean_time_between_losses_s(agents_s=9000, losses=4, prior_s=1000)
    2000.0
    """
    return (agents_s + prior_s) / (losses + 1)
