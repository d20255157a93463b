"""The cost of saves and restores: a line through what was measured, and what an agent expects of its saves. Pure.

A save takes a fixed time and a time that grows with the memory. The rate is the whole node's: of several saves at once,
the sum of their memory counts, so one of `n` takes as long as one of `n` times its size. How far the estimate was off
is kept too, and the upper end of that is the safety of the next. On a node of which nothing is known the estimate is
pessimistic, and the first saves are made early: they are the measurement. Control keeps the measurements of each node
for its next agents. Where it needs the cost itself, it fits them here, too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gleaner.agent.messages import CostSample, NodeRates, Way

MIB = 2**20
KEPT = 20
"""The newest so many measurements count: an agent's own, and those that control keeps of a node."""
EARLIER_MOST = 10.0
"""The measurements of earlier agents count as so many at most, so that an agent's own soon outweigh them."""
LEAST_MIB = 16.0
"""A smaller save or restore counts as one of this size: its time says nothing of a large one."""
LONGEST_S = 86_400.0
"""A longer measurement comes from a clock that was set, and says nothing of the node."""
FASTEST_MIB_S = 20_480.0
"""No storage here is faster; a line that says so was drawn through saves whose time did not depend on their size."""
SLOWEST_MIB_S = 1 / 1024
"""A line with a smaller rate was drawn through nonsense."""
LEAST_FIXED_S = 0.5
"""The engine's calls and the storage's syncs take so long even for a save of nothing."""
COLD_FIXED_S = 3.0
"""As long as nothing was measured: what one batch of saves costs besides its bytes. Saves of 25 MB took 3 to 5 s on
nodes whose processors were shared with other work."""
ASSUMED_MIB_S = {Way.SHIM: 150.0, Way.CRIU: 150.0, Way.SELF: 20.0}
"""Until something was measured, by the way of saving: memory saved and published per second, all jobs together."""
SAFETY_QUANTILE = 0.9
UNKNOWN_SAFETY = 4.0
"""While nothing was measured at all: constants are wrong by such a factor."""
LEAST_SAFETY = 1.2
"""The least safety, however good the estimates were: storage is never quite the same twice."""
BORROWED_SAFETY = 2.0
"""While only other nodes of the same type were measured."""
MEASURED_SAFETY = 1.5
"""While saves were measured on this node, but fewer than `ENOUGH_ERRORS` ends have shown how good estimates are."""
ENOUGH_ERRORS = 5
FAR_OFF = 2.0
"""Saves that take so many times as long as estimated say that the estimate is worth little."""
MOST_SAFETY = 4.0
"""A single save that hung for minutes must not keep a node from being used at all."""
FULL_SPEED_FOR = 8
"""Storage of a cluster is taken to serve this many savers as fast as one; more of them share it."""
MOST_CROWD = 4.0


@dataclass(frozen=True, slots=True)
class SaveCost:
    """The cost of a save, or of a restore: `fixed_s` plus its MiB over `mib_s`."""

    fixed_s: float
    mib_s: float

    def time_s(self, mib: float) -> float:
        """Return the time of one save or restore of this size, as the line says it."""
        return self.fixed_s + mib / self.mib_s

    def all_s(self, sizes_mib: Sequence[float], *, at_once: int) -> float:
        """Return the time to save jobs of these sizes, `at_once` at a time, without safety.

        >>> SaveCost(0.5, 100).all_s([100, 100, 100], at_once=2)
        4.0
        """
        batches = math.ceil(len(sizes_mib) / at_once)
        return max(self.fixed_s * batches + sum(sizes_mib) / self.mib_s, LEAST_FIXED_S * batches)


def counted_mib(size_bytes: int) -> float:
    """Return the size of a save or restore in measurements and estimates."""
    return max(size_bytes / MIB, LEAST_MIB)


def sample(size_bytes: int, *, at_once: int, took_s: float) -> CostSample:
    """Return one of `at_once` saves or restores as a measurement: each takes as long as all of them together.

    >>> sample(100 * MIB, at_once=4, took_s=2.0)
    CostSample(mib=400.0, took_s=2.0)
    """
    return CostSample(counted_mib(size_bytes) * at_once, min(took_s, LONGEST_S))


def fit(samples: Sequence[CostSample], earlier: Sequence[CostSample] = ()) -> SaveCost | None:
    """Return the line of least squares, with no negative fixed time or rate; None without measurements.

    All of `earlier` together count as `EARLIER_MOST` measurements at most. Where all had nearly the same size, which
    part of the time was fixed cannot be known: all of it counts as growing with the size, so that a larger one is not
    begun too late.

    >>> fit([CostSample(100, 1.0), CostSample(300, 2.0)]), fit([CostSample(100, 1.0)] * 2), fit([])
    (SaveCost(fixed_s=0.5, mib_s=200.0), SaveCost(fixed_s=0.0, mib_s=100.0), None)
    """
    measured = [*samples, *earlier]
    if not measured:
        return None
    weights = [1.0] * len(samples) + [min(1.0, EARLIER_MOST / max(len(earlier), 1))] * len(earlier)
    mib, s = fmean([mib for mib, _ in measured], weights), fmean([s for _, s in measured], weights)
    mib_mib = fmean([mib * mib for mib, _ in measured], weights)
    mib_s = fmean([mib * s for mib, s in measured], weights)
    spread, least = mib_mib - mib**2, 1 / FASTEST_MIB_S
    slope = max((mib_s - mib * s) / spread, least) if spread > (0.05 * mib) ** 2 else math.inf
    fixed_s = s - slope * mib
    if fixed_s < 0:  # through the origin instead
        fixed_s, slope = 0.0, max(mib_s / mib_mib, least)
    return SaveCost(fixed_s, max(1 / slope, SLOWEST_MIB_S))


def safety(errors: Sequence[float], *, at_least: float) -> float:
    """Return the factor for an estimate: the upper end of how far the estimates of earlier ends were off.

    An error is how many times as long as estimated all saves of an agent's end took together. `at_least` counts as long
    as there are few: `UNKNOWN_SAFETY`, `BORROWED_SAFETY` or `MEASURED_SAFETY`.

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
    """Return True if the latest estimates were of little worth: half of them too low by `FAR_OFF` or more.

    >>> is_far_off([]), is_far_off([1.0, 3.0, 1.2]), is_far_off([1.0, 1.0, 1.0, 2.5, 3.0, 2.0])
    (False, False, True)
    """
    latest = sorted(errors[-ENOUGH_ERRORS:])
    return bool(latest) and latest[len(latest) // 2] >= FAR_OFF


def crowd(saves_elsewhere: int) -> float:
    """Return how many times longer a save takes while other nodes save too, where that was never measured.

    >>> crowd(0), crowd(15), crowd(5000)
    (1.0, 2.0, 4.0)
    """
    return min(max((1 + saves_elsewhere) / FULL_SPEED_FOR, 1.0), MOST_CROWD)


@dataclass(frozen=True, slots=True)
class Load:
    """One job that would have to be saved. `way` is `SELF` for one that saves itself."""

    memory_bytes: int
    way: Way

    @property
    def mib(self) -> float:
        """The size of the job in estimates."""
        return counted_mib(self.memory_bytes)


@dataclass(slots=True)
class SaveEstimates:
    """One agent's estimates of its saves. They learn from each save, on top of what control knows of the node."""

    way: Way
    """The way in which this node saves memory."""
    at_once: int
    """So many are saved at once."""
    assumed_mib_s: float | None = None
    """Used in place of `ASSUMED_MIB_S`; None if the site does not say."""
    _node: NodeRates = field(default_factory=NodeRates)
    """The measurements of earlier agents."""
    _began_as_guess: bool = True
    """False once control has sent measurements to trust."""
    _own: dict[Way, list[CostSample]] = field(default_factory=dict[Way, list[CostSample]])

    def learn(self, rates: NodeRates) -> None:
        """Take in what control knows of the node."""
        self._node = rates
        self._began_as_guess = self.is_guess

    def is_telling(self, way: Way, *, wrote_all: bool) -> bool:
        """Return True if what a save took tells what the next one will take.

        One that wrote all that a job has takes longer than the next, which writes only what has changed. So it counts
        only where too little else is known.
        """
        return not wrote_all or way is Way.SELF or self._began_as_guess

    def note(self, load: Load, *, at_once: int, took_s: float) -> None:
        """Record the cost of one more save."""
        new = sample(load.memory_bytes, at_once=at_once, took_s=took_s)
        self._own[load.way] = [*self._own.get(load.way, []), new][-KEPT:]

    @property
    def is_guess(self) -> bool:
        """True if saves of memory had better be measured before the end: too little is known of them here."""
        if self._own.get(self.way):
            return False
        node = self._node
        return not node.saves or node.borrowed or node.late or is_far_off(node.errors)

    def knows(self, way: Way) -> bool:
        """Return True if something was measured on which an estimate stands."""
        return bool(self._own.get(way)) or (way is not Way.SELF and bool(self._node.saves))

    def expected_s(self, load: Load, *, at_once: int = 1) -> float:
        """Return the expected time of one save while `at_once` of about its size go on, without safety."""
        return self.cost(load.way).all_s([load.mib] * at_once, at_once=at_once)

    def all_s(self, loads: Iterable[Load], *, with_safety: bool = True) -> float:
        """Return the time to save all these jobs at the agent's end, with the safety or without it."""
        by_way: dict[Way, list[float]] = {}
        for load in loads:
            by_way.setdefault(load.way, []).append(load.mib)
        # Those that save themselves do so meanwhile.
        return max((self._all_s(way, sizes, with_safety) for way, sizes in by_way.items()), default=0.0)

    def _all_s(self, way: Way, sizes_mib: list[float], with_safety: bool) -> float:
        at_once = len(sizes_mib) if way is Way.SELF else self.at_once
        expected_s = self.cost(way).all_s(sizes_mib, at_once=at_once)
        if not with_safety:
            return expected_s
        # Earlier measurements of this node include the load of other nodes' saves.
        return expected_s * self._safety(way) * (1.0 if self._node.saves else crowd(self._node.saves_elsewhere))

    def _safety(self, way: Way) -> float:
        node = self._node
        errors = () if way is Way.SELF else node.errors
        # How long a workload takes to save itself is its own affair, and nobody can measure it before.
        if self._own.get(way) or way is Way.SELF or (node.saves and not node.borrowed):
            return safety(errors, at_least=MEASURED_SAFETY)
        return safety(errors, at_least=BORROWED_SAFETY if node.saves else UNKNOWN_SAFETY)

    def cost(self, way: Way) -> SaveCost:
        """Return the cost of a save, as far as it is known by now."""
        own = self._own.get(way, [])
        # What was borrowed from other nodes counts for nothing once this one was measured.
        is_of_use = way is not Way.SELF and not (self._node.borrowed and own)
        assumed_mib_s = ASSUMED_MIB_S[way] if self.assumed_mib_s is None else self.assumed_mib_s
        assumed = SaveCost(LEAST_FIXED_S if way is Way.SELF else COLD_FIXED_S, assumed_mib_s)
        return fit(own, self._node.saves if is_of_use else ()) or assumed
