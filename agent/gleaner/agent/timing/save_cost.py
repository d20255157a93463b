"""Estimate the cost of saves and restores: fit a line through the measurements, and keep an agent's estimates. Pure.

A save takes a fixed time and a time that grows with the memory. The rate is that of the whole node. For several saves
at the same time, the sum of their memory counts, so each of `n` equal saves takes as long as a single save of `n` times
its size. The errors of earlier estimates are also known, and the upper end of these errors is the safety factor of the
next estimate. On a node without measurements the estimate is pessimistic, and the first saves are made early, because
they are the measurement. Control keeps the measurements of each node for the node's next agents, and also uses this
module where it needs the cost itself.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gleaner.agent.messages import CostSample, NodeRates, Way

MIB = 2**20
MOST_SAMPLES = 20
"""Only this many of the newest measurements count, both of an agent's own and of those that control keeps for a
node."""
EARLIER_MOST = 10.0
"""The largest total weight of earlier agents' measurements, so that an agent's own measurements soon outweigh them."""
LEAST_MIB = 16.0
"""A smaller save or restore counts as one of this size, because its time does not predict that of a large one."""
LONGEST_S = 86_400.0
"""A longer measurement comes from a clock that was set, and reveals nothing about the node."""
FASTEST_MIB_S = 20_480.0
"""No storage is faster than this rate. A faster line comes from saves whose time did not depend on their size."""
SLOWEST_MIB_S = 1 / 1024
"""A line with a smaller rate comes from meaningless measurements."""
LEAST_FIXED_S = 0.5
"""The minimum fixed time of a save, for the engine's calls and the storage's syncs."""
COLD_FIXED_S = 3.0
"""The assumed fixed time of one batch of saves, without measurements.

Saves of 25 MB took 3 to 5 s on nodes whose processors were shared with other work.
"""
ASSUMED_MIB_S = {Way.SHIM: 150.0, Way.CRIU: 150.0, Way.SELF: 20.0}
"""The assumed rate without measurements, in MiB saved and published per second by all jobs, for each way of saving."""
SAFETY_QUANTILE = 0.9
UNKNOWN_SAFETY = 4.0
"""The safety factor without measurements. The assumed rate and fixed time can be wrong by this factor."""
LEAST_SAFETY = 1.2
"""The minimum safety factor, however good the estimates were. Storage never takes the same time twice."""
BORROWED_SAFETY = 2.0
"""The safety factor if there are only measurements of other nodes of the same type."""
MEASURED_SAFETY = 1.5
"""The safety factor with measurements of this node, but fewer than `ENOUGH_ERRORS` errors of estimates."""
ENOUGH_ERRORS = 5
FAR_OFF = 2.0
"""If saves take this many times as long as estimated, the estimate is worth little."""
MOST_SAFETY = 4.0
"""The largest safety factor. One save that hung for minutes must not make a node useless."""
FULL_SPEED_FOR = 8
"""Storage is assumed to serve this many savers as fast as one. With more savers, they share its rate."""
MOST_CROWDING = 4.0


@dataclass(frozen=True, slots=True)
class SaveCost:
    """The cost of a save, or of a restore, which is `fixed_s` plus its MiB divided by `mib_s`."""

    fixed_s: float
    mib_s: float

    def time_s(self, mib: float) -> float:
        """Return the time of one save or restore of this size."""
        return self.fixed_s + mib / self.mib_s

    def all_s(self, sizes_mib: Sequence[float], *, at_once: int) -> float:
        """Return the time to save jobs of these sizes, `at_once` at a time, without the safety factor.

        >>> SaveCost(0.5, 100).all_s([100, 100, 100], at_once=2)
        4.0
        """
        batches = math.ceil(len(sizes_mib) / at_once)
        return max(self.fixed_s * batches + sum(sizes_mib) / self.mib_s, LEAST_FIXED_S * batches)


def size_mib(size_bytes: int) -> float:
    """Return the size of a save or restore, in MiB, for measurements and estimates."""
    return max(size_bytes / MIB, LEAST_MIB)


def sample(size_bytes: int, *, at_once: int, took_s: float) -> CostSample:
    """Return the measurement of one of `at_once` saves or restores. Each takes as long as all of them together.

    >>> sample(100 * MIB, at_once=4, took_s=2.0)
    CostSample(mib=400.0, took_s=2.0)
    """
    return CostSample(size_mib(size_bytes) * at_once, min(took_s, LONGEST_S))


def fit(samples: Sequence[CostSample], earlier: Sequence[CostSample] = ()) -> SaveCost | None:
    """Return the least-squares line, without a negative fixed time or rate, or None without measurements.

    All of `earlier` together count as at most `EARLIER_MOST` measurements. If all measurements have nearly the same
    size, the fixed part of the time cannot be determined. In that case all of the time counts as growing with the size,
    so that a larger save starts early enough.

    >>> fit([CostSample(100, 1.0), CostSample(300, 2.0)]), fit([CostSample(100, 1.0)] * 2), fit([])
    (SaveCost(fixed_s=0.5, mib_s=200.0), SaveCost(fixed_s=0.0, mib_s=100.0), None)
    """
    all_samples = [*samples, *earlier]
    if not all_samples:
        return None
    weights = [1.0] * len(samples) + [min(1.0, EARLIER_MOST / max(len(earlier), 1))] * len(earlier)
    mib, s = fmean([mib for mib, _ in all_samples], weights), fmean([s for _, s in all_samples], weights)
    mib_mib = fmean([mib * mib for mib, _ in all_samples], weights)
    mib_s = fmean([mib * s for mib, s in all_samples], weights)
    spread, least = mib_mib - mib**2, 1 / FASTEST_MIB_S
    slope = max((mib_s - mib * s) / spread, least) if spread > (0.05 * mib) ** 2 else math.inf
    fixed_s = s - slope * mib
    if fixed_s < 0:  # through the origin instead
        fixed_s, slope = 0.0, max(mib_s / mib_mib, least)
    return SaveCost(fixed_s, max(1 / slope, SLOWEST_MIB_S))


def safety(errors: Sequence[float], *, at_least: float) -> float:
    """Return the safety factor of an estimate, which is the upper end of the errors of earlier estimates.

    An error is the time that all saves at an agent's end took together, divided by the estimate. `at_least` applies
    while there are few errors. It is `UNKNOWN_SAFETY`, `BORROWED_SAFETY` or `MEASURED_SAFETY`.

    >>> safety([], at_least=1.5), safety([0.5], at_least=1.5), safety([2.5, 1.0], at_least=1.5)
    (1.5, 1.5, 2.5)
    >>> safety([0.5, 0.9, 1.3, 0.8, 1.0], at_least=1.5), safety([0.5] * 5, at_least=1.5)
    (1.3, 1.2)
    """
    ratios = sorted(errors)
    floor = LEAST_SAFETY if len(ratios) >= ENOUGH_ERRORS else at_least
    if not ratios:
        return floor
    at = min(len(ratios), math.ceil(SAFETY_QUANTILE * (len(ratios) + 1)))
    return min(max(ratios[at - 1], floor), MOST_SAFETY)


def is_far_off(errors: Sequence[float]) -> bool:
    """Return True if half of the latest estimates were too low by the factor `FAR_OFF` or more.

    >>> is_far_off([]), is_far_off([1.0, 3.0, 1.2]), is_far_off([1.0, 1.0, 1.0, 2.5, 3.0, 2.0])
    (False, False, True)
    """
    latest = sorted(errors[-ENOUGH_ERRORS:])
    return bool(latest) and latest[len(latest) // 2] >= FAR_OFF


def crowding_factor(saves_elsewhere: int) -> float:
    """Return how many times longer a save takes while other nodes also save, if that was never measured.

    >>> crowding_factor(0), crowding_factor(15), crowding_factor(5000)
    (1.0, 2.0, 4.0)
    """
    return min(max((1 + saves_elsewhere) / FULL_SPEED_FOR, 1.0), MOST_CROWDING)


@dataclass(frozen=True, slots=True)
class Load:
    """One save to be estimated. `way` is `SELF` for a job that saves itself."""

    memory_bytes: int
    way: Way

    @property
    def mib(self) -> float:
        """The size of the job in estimates."""
        return size_mib(self.memory_bytes)


@dataclass(slots=True)
class SaveEstimates:
    """One agent's estimates of its saves, from control's measurements of the node and from its own saves."""

    way: Way
    """The way in which this node saves memory."""
    at_once: int
    """The number of simultaneous saves."""
    assumed_mib_s: float | None = None
    """The rate that replaces `ASSUMED_MIB_S` if the site sets one."""
    _node: NodeRates = field(default_factory=NodeRates)
    """The measurements of earlier agents."""
    _began_as_guess: bool = True
    """False once control has sent measurements that can be trusted."""
    _own: dict[Way, list[CostSample]] = field(default_factory=dict[Way, list[CostSample]])

    def learn(self, rates: NodeRates) -> None:
        """Use control's measurements of the node."""
        self._node = rates
        self._began_as_guess = self.is_guess

    def is_representative(self, way: Way, *, is_full: bool) -> bool:
        """Return True if the time of a save predicts that of the next one.

        A full save takes longer than the next, which writes only what has changed. So it counts only if there are too
        few other measurements.
        """
        return not is_full or way is Way.SELF or self._began_as_guess

    def note(self, load: Load, *, at_once: int, took_s: float) -> None:
        """Record the time of another save."""
        new = sample(load.memory_bytes, at_once=at_once, took_s=took_s)
        self._own[load.way] = [*self._own.get(load.way, []), new][-MOST_SAMPLES:]

    @property
    def is_guess(self) -> bool:
        """True if saves of memory must be measured before the end, because there are too few measurements."""
        if self._own.get(self.way):
            return False
        node = self._node
        return not node.saves or node.borrowed or node.late or is_far_off(node.errors)

    def knows(self, way: Way) -> bool:
        """Return True if an estimate is based on measurements."""
        return bool(self._own.get(way)) or (way is not Way.SELF and bool(self._node.saves))

    def expected_s(self, load: Load, *, at_once: int = 1) -> float:
        """Return the expected time of one of `at_once` saves of about this size, without the safety factor."""
        return self.cost(load.way).all_s([load.mib] * at_once, at_once=at_once)

    def all_s(self, loads: Iterable[Load], *, with_safety: bool = True) -> float:
        """Return the time to save all these jobs at the agent's end, with or without the safety factor."""
        by_way: dict[Way, list[float]] = {}
        for load in loads:
            by_way.setdefault(load.way, []).append(load.mib)
        # Jobs that save themselves do so at the same time.
        return max((self._all_s(way, sizes, with_safety) for way, sizes in by_way.items()), default=0.0)

    def _all_s(self, way: Way, sizes_mib: list[float], with_safety: bool) -> float:
        at_once = len(sizes_mib) if way is Way.SELF else self.at_once
        expected_s = self.cost(way).all_s(sizes_mib, at_once=at_once)
        if not with_safety:
            return expected_s
        # Earlier measurements of this node include the load of other nodes' saves.
        crowding = 1.0 if self._node.saves else crowding_factor(self._node.saves_elsewhere)
        return expected_s * self._safety(way) * crowding

    def _safety(self, way: Way) -> float:
        node = self._node
        errors = () if way is Way.SELF else node.errors
        # How long a workload takes to save itself cannot be measured in advance.
        if self._own.get(way) or way is Way.SELF or (node.saves and not node.borrowed):
            return safety(errors, at_least=MEASURED_SAFETY)
        return safety(errors, at_least=BORROWED_SAFETY if node.saves else UNKNOWN_SAFETY)

    def cost(self, way: Way) -> SaveCost:
        """Return the cost of a save, as far as it is currently known."""
        own = self._own.get(way, [])
        # Measurements of other nodes do not count once this node has been measured.
        is_of_use = way is not Way.SELF and not (self._node.borrowed and own)
        assumed_mib_s = ASSUMED_MIB_S[way] if self.assumed_mib_s is None else self.assumed_mib_s
        assumed = SaveCost(LEAST_FIXED_S if way is Way.SELF else COLD_FIXED_S, assumed_mib_s)
        return fit(own, self._node.saves if is_of_use else ()) or assumed
