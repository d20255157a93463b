"""One agent's estimates of its saves, which learn from each save; `timing.deadlines` has the formulas."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gleaner.agent.messages import NodeRates, Way
from gleaner.agent.timing.deadlines import (
    BORROWED_SAFETY,
    COLD_FIXED_S,
    KEPT,
    LEAST_FIXED_S,
    MEASURED_SAFETY,
    UNKNOWN_SAFETY,
    Line,
    Save,
    crowd,
    fitted,
    is_far_off,
    safety,
    told,
)
from gleaner.agent.timing.least_squares import LEAST_MIB, MIB

ASSUMED_MIB_S = {Way.SHIM: 150.0, Way.CRIU: 150.0, Way.SELF: 20.0}
"""Until something was measured, by the way of saving: memory saved and published per second, all jobs together."""


@dataclass(frozen=True, slots=True)
class Load:
    """One job that would have to be saved. `way` is `SELF` for one that saves itself."""

    memory_bytes: int
    way: Way

    @property
    def counted_bytes(self) -> int:
        """The size of the job in measurements and estimates."""
        return max(self.memory_bytes, int(LEAST_MIB) * MIB)


@dataclass(slots=True)
class SaveEstimates:
    """The measurements of one agent, on top of what control knows of its node."""

    way: Way
    """The way in which this node saves memory."""
    at_once: int
    """So many are saved at once."""
    assumed_mib_s: float | None = None
    """Used in place of `ASSUMED_MIB_S`; None if the site does not say."""
    _told: list[Save] = field(default_factory=list[Save])
    _told_errors: tuple[float, ...] = ()
    _is_borrowed: bool = False
    _was_late: bool = False
    _crowd: float = 1.0
    _began_as_guess: bool = True
    """False once control has told what to trust."""
    _own: dict[Way, list[Save]] = field(default_factory=dict[Way, list[Save]])

    def learn(self, rates: NodeRates | None) -> None:
        """Take in what control knows. Earlier measurements of this node include the load of other nodes' saves."""
        self._told = told(rates)
        self._crowd = crowd(rates.saves_elsewhere) if rates and not self._told else 1.0
        if rates is not None:
            self._told_errors, self._is_borrowed, self._was_late = rates.errors, rates.borrowed, rates.late
        self._began_as_guess = self.is_guess

    def is_telling(self, way: Way, *, wrote_all: bool) -> bool:
        """Return True if what a save took tells what the next one will take.

        One that wrote all that a job has takes longer than the next, which writes only what has changed. So it counts
        only where too little else is known.
        """
        return not wrote_all or way is Way.SELF or self._began_as_guess

    def note(self, load: Load, *, at_once: int, took_s: float) -> None:
        """Record the cost of one more save."""
        new = Save(memory_bytes=load.counted_bytes * at_once, took_s=took_s)
        self._own[load.way] = [*self._own.get(load.way, []), new][-KEPT:]

    @property
    def is_guess(self) -> bool:
        """True if saves of memory had better be measured before the end: too little is known of them here."""
        if self._own.get(self.way):
            return False
        return not self._told or self._is_borrowed or self._was_late or is_far_off(self._told_errors)

    def knows(self, way: Way) -> bool:
        """Return True if something was measured on which an estimate stands."""
        return bool(self._own.get(way)) or (way is not Way.SELF and bool(self._told))

    def expected_s(self, load: Load, *, at_once: int = 1) -> float:
        """Return the expected time of one save. The save is as likely to take longer as shorter."""
        return self.line(load.way).save_s(load.counted_bytes, at_once=at_once)

    def all_s(self, loads: Iterable[Load], *, with_safety: bool = True) -> float:
        """Return the time to save all these jobs at the agent's end, with the safety or without it."""
        by_way: dict[Way, list[int]] = {}
        for load in loads:
            by_way.setdefault(load.way, []).append(load.counted_bytes)
        # Those that save themselves do so meanwhile.
        return max((self._all_s(way, sizes, with_safety) for way, sizes in by_way.items()), default=0.0)

    def _all_s(self, way: Way, sizes: list[int], with_safety: bool) -> float:
        at_once = len(sizes) if way is Way.SELF else self.at_once
        expected_s = self.line(way).all_s(sizes, at_once=at_once)
        return expected_s * self._safety(way) * self._crowd if with_safety else expected_s

    def _safety(self, way: Way) -> float:
        own = self._own.get(way, [])
        errors = () if way is Way.SELF else self._told_errors
        # How long a workload takes to save itself is its own affair, and nobody can measure it before.
        if own or way is Way.SELF or (self._told and not self._is_borrowed):
            return safety(errors, at_least=MEASURED_SAFETY)
        return safety(errors, at_least=BORROWED_SAFETY if self._told else UNKNOWN_SAFETY)

    def line(self, way: Way) -> Line:
        """Return the cost of a save, as far as it is known by now."""
        # What was borrowed from other nodes counts for nothing once this one was measured.
        is_of_use = way is not Way.SELF and not (self._is_borrowed and self._own.get(way))
        before = self._told if is_of_use else []
        assumed_mib_s = ASSUMED_MIB_S[way] if self.assumed_mib_s is None else self.assumed_mib_s
        fixed_s = LEAST_FIXED_S if way is Way.SELF else COLD_FIXED_S
        return fitted([*before, *self._own.get(way, [])], assumed=assumed_mib_s * MIB, fixed_s=fixed_s)
