"""The instant at which an agent starts to save, from what must be written and what saves have cost here before. Pure.

A save takes a fixed time and a time that grows with the memory: `fixed_s + bytes / rate`. The rate is the whole
node's: of several saves at once, the sum of their memory counts, so one of `n` takes as long as one of `n` times
its size. How far the estimate was off is kept too, and the upper end of that is the safety of the next. On a node of
which nothing is known the estimate is pessimistic, and the first saves are made early: they are the measurement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.messages import NodeRates
from gleaner.agent.timing.least_squares import MIB, Sums, line

KEPT = 20
"""The newest so many of an agent's own measurements count."""
LEAST_FIXED_S = 0.5
"""The engine's calls and the storage's syncs take so long even for a save of nothing."""
COLD_FIXED_S = 3.0
"""As long as nothing was measured: what one batch of saves costs besides its bytes. Saves of 25 MB took 3 to 5 s on
nodes whose processors were shared with other work."""
SLOWEST = 1024.0
"""The least rate, in bytes per second. A line with a smaller one was drawn through nonsense."""
_TOLD_AT = (64 * MIB, 1024 * MIB)
"""The figures that control tells of a node count as measurements at these sizes,"""
_TOLD_MOST = 10.0
"""and as so many at most, so that an agent's own soon outweigh them."""
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
LAST_WORDS_S = 3.0
"""So long before it has to be gone an agent waits for nothing any more; a call that hangs is left behind."""
FULL_SPEED_FOR = 8
"""Storage of a cluster is taken to serve this many savers as fast as one; more of them share it."""
MOST_CROWD = 4.0


@dataclass(frozen=True, slots=True)
class Save:
    """The cost of one save. `memory_bytes` is the memory of all jobs that were saved at once."""

    memory_bytes: int
    took_s: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """A save of `bytes` takes `fixed_s + bytes / rate`, `LEAST_FIXED_S` at least; the rate is in bytes per second."""

    fixed_s: float
    rate: float

    def save_s(self, memory_bytes: int, *, at_once: int = 1) -> float:
        """Return the time of one save while `at_once` of about its size go on, without safety.

        >>> Line(0.5, 100 * MIB).save_s(100 * MIB), Line(0.5, 100 * MIB).save_s(100 * MIB, at_once=3)
        (1.5, 3.5)
        """
        return max(self.fixed_s + memory_bytes * at_once / self.rate, LEAST_FIXED_S)

    def all_s(self, memory_bytes: Sequence[int], *, at_once: int) -> float:
        """Return the time to save jobs of these sizes, `at_once` at a time, without safety.

        >>> Line(0.5, 100 * MIB).all_s([100 * MIB] * 3, at_once=2)
        4.0
        """
        batches = math.ceil(len(memory_bytes) / at_once)
        return max(self.fixed_s * batches + sum(memory_bytes) / self.rate, LEAST_FIXED_S * batches)


def told(rates: NodeRates | None) -> list[Save]:
    """Return what control has kept of this node's earlier agents, as measurements."""
    if rates is None or not rates.saves or rates.save_mib_s is None:
        return []
    line = Line(rates.save_fixed_s or 0.0, max(rates.save_mib_s * MIB, SLOWEST))
    weight = min(rates.saves, _TOLD_MOST) / len(_TOLD_AT)
    return [Save(size, line.save_s(size), weight) for size in _TOLD_AT]


def fitted(saves: Sequence[Save], *, assumed: float, fixed_s: float = COLD_FIXED_S) -> Line:
    """Return the line of least squares through the saves; without any, this fixed time and rate in bytes per second.

    >>> fitted([Save(size * MIB, 1.0 + size / 200) for size in (100, 200, 400)], assumed=1)
    Line(fixed_s=1.0, rate=209715200.0)
    >>> fitted([], assumed=100 * MIB).rate / MIB
    100.0
    """
    seen = [(save.weight, save.memory_bytes / MIB, save.took_s) for save in saves]
    found = line(
        Sums(
            count=sum(weight for weight, _, _ in seen),
            mib=sum(weight * mib for weight, mib, _ in seen),
            s=sum(weight * s for weight, _, s in seen),
            mib_mib=sum(weight * mib * mib for weight, mib, _ in seen),
            mib_s=sum(weight * mib * s for weight, mib, s in seen),
        )
    )
    if found is None:
        return Line(fixed_s, assumed)
    return Line(round(found.fixed_s, 6), round(max(found.mib_s * MIB, SLOWEST), 3))


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


@dataclass(frozen=True, slots=True)
class AtStake:
    """One job that is to be saved at the end: the work that is lost without its save, and the cost of the save."""

    core_s: float
    """Processor time since it was last saved, or since it began."""
    save_s: float


def saving_order(jobs: Sequence[AtStake]) -> list[int]:
    """Return the order of saves, as positions: first the job that loses most for each second of its save.

    If time runs out at an unknown instant, this loses least (Smith's rule for weighted completion times: W. E. Smith,
    "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956, 59-66). Jobs that
    have as much to lose are saved in the order of their size, the smallest first.

    >>> saving_order([AtStake(60, 4), AtStake(60, 1), AtStake(600, 4)])
    [2, 1, 0]
    """
    return sorted(range(len(jobs)), key=lambda at: -jobs[at].core_s / max(jobs[at].save_s, 1e-3))


def crowd(saves_elsewhere: int) -> float:
    """Return how many times longer a save takes while other nodes save too, where that was never measured.

    >>> crowd(0), crowd(15), crowd(5000)
    (1.0, 2.0, 4.0)
    """
    return min(max((1 + saves_elsewhere) / FULL_SPEED_FOR, 1.0), MOST_CROWD)


def save_point_s(*, gone_s: float, margin_s: float, save_s: float) -> float:
    """Return the instant at which saving has to begin, seconds since the epoch.

    >>> save_point_s(gone_s=1000, margin_s=20, save_s=30)
    950
    """
    return gone_s - margin_s - save_s


def gone_s(end_s: float, *, now_s: float, kill_wait_s: float) -> float:
    """Return the instant at which an agent plans to be gone: Slurm's kill wait before its end `end_s`.

    A process that a stuck storage call holds has then been killed long before Slurm looks whether all have ended; one
    that Slurm finds makes it drain the node. If the kill wait is more than half of the time that is left (a short grace
    time), half of that time is used.

    >>> gone_s(1000, now_s=0, kill_wait_s=30), gone_s(1000, now_s=960, kill_wait_s=30)
    (970, 980.0)
    """
    return end_s - min(kill_wait_s, max(end_s - now_s, 0) / 2)


def last_words_s(gone_s: float, *, now_s: float) -> float:
    """Return how long before it has to be gone an agent waits for nothing any more: a fifth of what is left, or 3 s.

    >>> last_words_s(1000, now_s=0), round(last_words_s(1000, now_s=996.7), 2)
    (3.0, 0.66)
    """
    return min(LAST_WORDS_S, max(gone_s - now_s, 0.0) / 5)
