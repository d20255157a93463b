"""The recommendation of one of the settings that were tried: a pure function of the evidence.

Candidates are the settings that keep the wait within the limit even at the upper end of its confidence interval. The
candidate with the highest effective load is recommended. Where the seeds do not tell settings apart (the interval of
their paired differences holds 0), the simpler one is taken: no preemption, then the shorter length, then synchronised,
then the larger margin. Without a candidate there is no recommendation, only the setting that is nearest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.control.simulation.metrics.tables import change, duration, percent
from gleaner.control.simulation.tuning.confidence_intervals import Interval, interval


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
    """The figures of one setting under each seed, and beside them those without agents. Loads are shares of 1."""

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
        """Return how much more effective load this setting gives than the other, paired by seed."""
        pairs = zip(self.effective_loads, other.effective_loads, strict=True)
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


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One setting with the reasons for it, or no setting with the reasons why not. The reasons are sentences."""

    setting: Setting | None
    reasons: tuple[str, ...]
    runner_up: Setting | None = None
    """The best setting of another kind: it has another length, ends in another way, or differs in preemption."""
    nearest: Setting | None = None
    """The setting that comes nearest, only where none is recommended: it delays regular jobs least or, where some
    settings are within the limit, gives the most effective load of these."""


def recommend(tried: Sequence[Evidence], limit: WaitLimit) -> Recommendation:
    """Return what to set, from the evidence of at least one setting. The order of the evidence does not matter.

    Raise ValueError if nothing was tried.
    """
    if not tried:
        raise ValueError("nothing was tried, so nothing can be recommended")
    within = [evidence for evidence in tried if limit.holds(evidence)]
    useful = [evidence for evidence in within if evidence.gain.low > 0]
    if not useful:
        return _none(tried, within, limit)
    best = max(useful, key=_rank)
    as_good = [evidence for evidence in useful if best.ahead_of(evidence).low <= 0]
    chosen = min(as_good, key=lambda evidence: evidence.setting.plainness)
    others = [evidence for evidence in useful if evidence.setting.kind != chosen.setting.kind]
    runner_up = max(others, key=_rank) if others else None
    reasons = [_why(chosen, limit), _how_chosen(chosen, best, len(within), len(tried))]
    if runner_up is not None:
        reasons.append(_beside(chosen, runner_up, limit))
    if (beyond := _beyond(chosen, tried, limit)) is not None:
        reasons.append(beyond)
    return Recommendation(chosen.setting, tuple(reasons), None if runner_up is None else runner_up.setting)


def _rank(evidence: Evidence) -> tuple[float, tuple[float, ...]]:
    """Return a key that ranks by mean effective load. Of equal loads the simpler setting ranks higher."""
    return (evidence.effective_load.mean, tuple(-float(part) for part in evidence.setting.plainness))


def _why(chosen: Evidence, limit: WaitLimit) -> str:
    growth, load, gain = limit.growth(chosen), chosen.effective_load, chosen.gain
    return (
        f"With {chosen.setting.said}, the mean wait of regular jobs changes by {_spread(growth, limit)}, within the "
        f"limit of {limit.said}, and the effective load is {percent(load.mean)}, {_points(gain.mean)} more than "
        f"without agents ({_points(gain.low)} to {_points(gain.high)} at {100 * chosen.level:g} % confidence, "
        f"{len(chosen.waits_s)} seeds). Under the worst of the seeds the wait changes by "
        f"{limit.shown(limit.worst(chosen))}."
    )


def _how_chosen(chosen: Evidence, best: Evidence, within: int, tried: int) -> str:
    among = f"Of {tried} settings tried, {within} {'is' if within == 1 else 'are'} within the limit; "
    if best is chosen:
        return among + "of these it has the highest effective load."
    ahead = best.ahead_of(chosen)
    return (
        f"{among}{best.setting.said} had {_points(ahead.mean)} more effective load, which these seeds cannot tell from "
        f"none ({_points(ahead.low)} to {_points(ahead.high)}), so the simpler setting is taken."
    )


def _beside(chosen: Evidence, other: Evidence, limit: WaitLimit) -> str:
    difference = other.ahead_of(chosen).mean
    more = f"{_points(abs(difference))} {'more' if difference > 0 else 'less'} effective load"
    return f"The next other kind is {other.setting.said}: {more}, {limit.shown(limit.growth(other).mean)} wait."


def _beyond(chosen: Evidence, tried: Sequence[Evidence], limit: WaitLimit) -> str | None:
    """Return a sentence on the best setting past the limit that would give more; None if there is none."""
    past = [evidence for evidence in tried if not limit.holds(evidence) and evidence.ahead_of(chosen).low > 0]
    if not past:
        return None
    other = max(past, key=_rank)
    return (
        f"Past the limit, {other.setting.said} would give {_points(other.ahead_of(chosen).mean)} more effective load, "
        f"with {_spread(limit.growth(other), limit)} wait."
    )


def _none(tried: Sequence[Evidence], within: Sequence[Evidence], limit: WaitLimit) -> Recommendation:
    if within:
        best = max(within, key=_rank)
        reason = (
            f"{len(within)} of {len(tried)} settings keep the wait within the limit of {limit.said}, but none of them "
            f"is sure to give more effective load than no agents: the best is {best.setting.said} with "
            f"{_points(best.gain.mean)} ({_points(best.gain.low)} to {_points(best.gain.high)})."
        )
        return Recommendation(None, (reason,), nearest=best.setting)
    nearest = max(tried, key=lambda evidence: (-limit.growth(evidence).high, *_rank(evidence)))
    growth = limit.growth(nearest)
    reasons = [
        f"None of {len(tried)} settings keeps the wait within the limit of {limit.said}. The nearest is "
        f"{nearest.setting.said}, with {_spread(growth, limit)} wait, for "
        f"{_points(nearest.gain.mean)} more effective load."
    ]
    if growth.mean <= limit.most:
        reasons.append("Its mean is within the limit, its interval is not: more seeds or a longer trace may settle it.")
    if not any(evidence.setting.preemption for evidence in tried):
        reasons.append("Agents that Slurm may vacate at once were not tried: --preemption tries them too.")
    return Recommendation(None, tuple(reasons), nearest=nearest.setting)


def _spread(growth: Interval, limit: WaitLimit) -> str:
    return f"{limit.shown(growth.mean)} ({limit.shown(growth.low)} to {limit.shown(growth.high)})"


def _points(share: float) -> str:
    """Return a difference of shares as text, in percentage points.

    >>> _points(0.0123)
    '1.23 points'
    """
    return f"{100 * share:.2f} points"
