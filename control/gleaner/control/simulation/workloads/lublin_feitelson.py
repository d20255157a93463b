"""The workload model of Lublin and Feitelson, for its batch jobs.

U. Lublin, D. G. Feitelson: The workload on parallel supercomputers: modeling the characteristics of rigid jobs, JPDC
63(11), 2003. The numbers and their meaning are those of the authors' own program in the Parallel Workloads Archive.
That program shows how `arar` is applied, where the daily cycle begins, and above which limit a run time or a gap is
drawn again. Its sizes are for 128 processors. Here sizes are relative to the machine, as the program's notes recommend.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from gleaner.control.simulation.model import Counts, Seconds

_DAY_S = 86400.0
_BUCKETS = 48
"""The number of half hours in a day."""
_BUCKET_S = _DAY_S / _BUCKETS
_CYCLE_STARTS = 11
"""The bucket in which the gamma distribution of the daily cycle begins. At five in the morning, the fewest jobs
arrive."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The model's numbers. A docstring gives the model's own name for a number if it has one."""

    serial: float = 0.2927
    """The share of jobs with one processor."""
    power_of_two: float = 0.6686
    """The share of all jobs that are parallel and whose size is a power of two."""
    smallest_log2: float = 1.2
    """`ulow`: the least parallel size. The extra 0.2 makes two processors a little less likely."""
    middle_below_largest_log2: float = 2.0
    """`uhi - umed`, where `uhi` is the machine's size, and the two uniform distributions meet at `umed`. For batch
    jobs, `uhi` is 7 and `umed` is 5. The notes call any difference from 1.5 to 3.5 sensible."""
    below_middle: float = 0.875
    """`uprob`: the probability of the lower of the two uniform distributions."""
    short_shape: float = 6.57
    """`a1`, `b1`: the gamma distribution of the natural logarithm of short run times."""
    short_scale: float = 0.823
    long_shape: float = 639.1
    """`a2`, `b2`: the gamma distribution of the natural logarithm of long run times."""
    long_scale: float = 0.0156
    short_per_processor: float = -0.003
    """`pa`, `pb`: the share of short run times is `pa * size + pb`, which decreases with the size."""
    short_share: float = 0.6986
    longest_log_s: float = 12.0
    """The longest run time (about two days). Longer ones are drawn again."""
    gap_shape: float = 6.0415
    """`aarr`, `barr`: the gamma distribution of the natural logarithm of gaps between arrivals in the rush hours of the
    day."""
    gap_scale: float = 0.8531
    all_hours: float = 1.0519
    """`arar`: the factor by which the shape is multiplied, so that the gaps of rush hours become those of all hours."""
    longest_gap_log_s: float = 13.0
    """The longest gap (about five days). Longer ones are drawn again."""
    cycle_shape: float = 6.1271
    """`anum`, `bnum`: the gamma distribution of arrivals over the half hours of a day."""
    cycle_scale: float = 5.2740


BATCH = Parameters()


def sizes(count: int, processors: int, rng: Generator, model: Parameters = BATCH) -> Counts:
    """Return the numbers of processors of `count` jobs. A number is 1, or its log2 is two-stage uniform. Most sizes are
    powers of two."""
    largest = math.log2(processors)
    smallest = min(model.smallest_log2, largest)
    middle = max(largest - model.middle_below_largest_log2, smallest)
    is_low = rng.random(count) < model.below_middle
    log2 = np.where(is_low, rng.uniform(smallest, middle, count), rng.uniform(middle, largest, count))
    kind = rng.random(count)
    # If the machine's size is not a power of two, no job whose size is a power of two fills the machine.
    power = np.minimum(np.floor(log2 + 0.5), math.floor(largest))
    log2 = np.where(kind < model.serial + model.power_of_two, power, log2)
    size = np.where(kind < model.serial, 1.0, np.floor(np.exp2(log2) + 0.5))
    return np.clip(size, 1, processors).astype(np.int64)


def run_times_s(processors: Counts, rng: Generator, model: Parameters = BATCH) -> Seconds:
    """Return run times of jobs with these sizes. Their logarithm is hyper-gamma, and larger jobs run longer."""
    short = np.clip(model.short_per_processor * processors + model.short_share, 0, 1)

    def draw(which: NDArray[np.int64]) -> Seconds:
        is_short = rng.random(len(which)) < short[which]
        shape = np.where(is_short, model.short_shape, model.long_shape)
        return rng.gamma(shape, np.where(is_short, model.short_scale, model.long_scale))

    log_s = _redrawn(len(processors), draw, model.longest_log_s)
    return np.maximum(np.floor(np.exp(log_s)), 1.0)


def gaps_s(count: int, rng: Generator, model: Parameters = BATCH) -> Seconds:
    """Return the times between arrivals before the daily cycle is applied. Their logarithm has a gamma distribution."""

    def draw(which: NDArray[np.int64]) -> Seconds:
        return rng.gamma(model.gap_shape * model.all_hours, model.gap_scale, len(which))

    return np.asarray(np.exp(_redrawn(count, draw, model.longest_gap_log_s)))


def through_the_day_s(gaps: Seconds, model: Parameters = BATCH) -> Seconds:
    """Return the instants at which jobs arrive, in seconds since the first midnight.

    Gaps are shortened in busy half hours, according to their share of the arrivals. The length of a whole day stays the
    same.
    """
    weight = daily_cycle(model)
    borders_s = np.arange(_BUCKETS + 1) * _BUCKET_S
    passed_s = np.concatenate(([0.0], np.cumsum(weight))) * _BUCKET_S
    passed_s[-1] = _DAY_S  # the weights' mean is 1 except for rounding
    day, rest_s = np.divmod(np.cumsum(gaps), _DAY_S)
    return np.asarray(day * _DAY_S + np.interp(rest_s, passed_s, borders_s))


def daily_cycle(model: Parameters = BATCH) -> Seconds:
    """Return the weight of each half hour of a day, which shows how busy it is. The mean is 1."""
    from scipy.special import gammainc  # takes a quarter of a second, and only synthetic workloads need it

    place = np.arange(_CYCLE_STARTS, _CYCLE_STARTS + _BUCKETS)
    edges = (np.append(place, _CYCLE_STARTS + _BUCKETS) - 0.5) / model.cycle_scale
    share = np.diff(gammainc(model.cycle_shape, edges))
    weight = np.empty(_BUCKETS)
    weight[(place - 1) % _BUCKETS] = share
    return np.asarray(weight / weight.mean())


def _redrawn(count: int, draw: Callable[[NDArray[np.int64]], Seconds], at_most: float) -> Seconds:
    """Return drawn values. A value above the limit is drawn again."""
    which = np.arange(count)
    drawn = draw(which)
    while len(which := np.flatnonzero(drawn > at_most)):
        drawn[which] = draw(which)
    return drawn
