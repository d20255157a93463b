"""The recommendation of one of the settings that were tried: a pure function of the evidence.

Candidates are the settings that keep the wait within the limit even at the upper end of its confidence interval. The
candidate with the highest effective load is recommended. Where the seeds do not tell settings apart (the interval of
their paired differences holds 0), the simpler one is taken: no preemption, then the shorter length, then synchronised,
then the larger margin. Without a candidate there is no recommendation, only the setting that is nearest. The last
sentence says how sure all this is: see `contest`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gleaner.control.simulation.metrics.tables import percent
from gleaner.control.simulation.tuning.contest import Contest, contest, first_rival, seeds_needed
from gleaner.control.simulation.tuning.evidence import Evidence, Interval, Setting, WaitLimit, rank

_MANY_SEEDS = 1e6


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
    is_settled: bool = False
    """True if no further seeds can be expected to change the answer."""
    seeds_needed: float = 0
    """About how many seeds would settle it; infinity if none would."""


def recommend(tried: Sequence[Evidence], limit: WaitLimit) -> Recommendation:
    """Return what to set, from the evidence of at least one setting. The order of the evidence does not matter.

    Raise ValueError if nothing was tried.
    """
    if not tried:
        raise ValueError("nothing was tried, so nothing can be recommended")
    within = [evidence for evidence in tried if limit.holds(evidence)]
    useful = [evidence for evidence in within if evidence.gain.low > 0]
    race = contest(tried, limit)
    if not useful:
        return _none(tried, within, limit, race)
    best = max(useful, key=rank)
    as_good = [one for one in useful if len(one.waits_s) == len(best.waits_s) and best.ahead_of(one).low <= 0]
    chosen = min(as_good, key=lambda evidence: evidence.setting.plainness)
    others = [evidence for evidence in useful if evidence.setting.kind != chosen.setting.kind]
    runner_up = max(others, key=rank) if others else None
    reasons = [_why(chosen, limit), _how_chosen(chosen, best, len(within), len(tried))]
    if runner_up is not None:
        reasons.append(_beside(chosen, runner_up, limit))
    if (beyond := _beyond(chosen, tried, limit)) is not None:
        reasons.append(beyond)
    needed = seeds_needed(chosen, race.contenders, limit)
    reasons.append(_how_sure(chosen, race, useful, needed))
    return Recommendation(
        chosen.setting,
        tuple(reasons),
        None if runner_up is None else runner_up.setting,
        is_settled=race.is_settled,
        seeds_needed=needed,
    )


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
    other = max(past, key=lambda evidence: evidence.ahead_of(chosen).mean)
    return (
        f"Past the limit, {other.setting.said} would give {_points(other.ahead_of(chosen).mean)} more effective load, "
        f"with {_spread(limit.growth(other), limit)} wait."
    )


def _how_sure(chosen: Evidence, race: Contest, useful: Sequence[Evidence], needed: float) -> str:
    """Return a sentence on how sure the choice is, and on the seeds that would settle it where it is not settled."""
    at = f"at {100 * chosen.level:g} % confidence for all settings together"
    if race.is_settled:
        others = [evidence for evidence in useful if evidence.setting != chosen.setting]
        if not others:
            return f"This is settled {at}: no other setting is within the limit and gives more than no agents."
        (first,) = race.contenders
        behind = {other.setting: replace(chosen, level=first.level).ahead_of(other) for other in others}
        nearest = min(behind, key=lambda setting: behind[setting].mean)
        found = behind[nearest]
        return (
            f"This is settled {at}: the next is {nearest.said}, with {_points(found.mean)} less effective load "
            f"({_points(found.low)} to {_points(found.high)})."
        )
    rival = first_rival(chosen, race.contenders)
    if rival is None:
        return f"No other setting is in the race {at}, but the wait is not yet surely within the limit{_would(needed)}."
    count = sum(one.setting != chosen.setting for one in race.contenders)
    if count == 1:
        return f"One other setting is not told apart from this one {at}: {rival.setting.said}{_would(needed)}."
    return (
        f"{count} other settings are not told apart from this one {at}. The first of them is "
        f"{rival.setting.said}{_would(needed)}."
    )


def _would(needed: float) -> str:
    """Return the rest of a sentence, on the seeds that would settle it.

    >>> _would(1234.5), _would(float("inf"))
    ('; about 1,300 seeds would settle it', '; no number of seeds would settle it')
    """
    if needed > _MANY_SEEDS:
        return "; no number of seeds would settle it"
    digits = max(0, len(str(math.ceil(needed))) - 2)
    return f"; about {math.ceil(needed / 10**digits) * 10**digits:,} seeds would settle it"


def _none(tried: Sequence[Evidence], within: Sequence[Evidence], limit: WaitLimit, race: Contest) -> Recommendation:
    needed = seeds_needed(None, race.contenders, limit)
    level = f"at {100 * tried[0].level:g} % confidence for all settings together"
    if race.is_settled:
        sure = f"This is settled {level}."
    else:
        number = "One setting" if len(race.contenders) == 1 else f"{len(race.contenders)} settings"
        sure = f"{number} may still prove good {level}{_would(needed)}."
    if within:
        best = max(within, key=rank)
        reason = (
            f"{len(within)} of {len(tried)} settings keep the wait within the limit of {limit.said}, but none of them "
            f"is sure to give more effective load than no agents: the best is {best.setting.said} with "
            f"{_points(best.gain.mean)} ({_points(best.gain.low)} to {_points(best.gain.high)})."
        )
        return Recommendation(
            None, (reason, sure), nearest=best.setting, is_settled=race.is_settled, seeds_needed=needed
        )
    nearest = max(tried, key=lambda evidence: (-limit.growth(evidence).high, *rank(evidence)))
    growth = limit.growth(nearest)
    reasons = [
        f"None of {len(tried)} settings keeps the wait within the limit of {limit.said}. The nearest is "
        f"{nearest.setting.said}, with {_spread(growth, limit)} wait, for "
        f"{_points(nearest.gain.mean)} more effective load."
    ]
    if growth.mean <= limit.most:
        reasons.append("Its mean is within the limit, its interval is not.")
    reasons.append(sure)
    if not any(evidence.setting.preemption for evidence in tried):
        reasons.append("Agents that Slurm may vacate at once were not tried: --preemption tries them too.")
    return Recommendation(
        None, tuple(reasons), nearest=nearest.setting, is_settled=race.is_settled, seeds_needed=needed
    )


def _spread(growth: Interval, limit: WaitLimit) -> str:
    return f"{limit.shown(growth.mean)} ({limit.shown(growth.low)} to {limit.shown(growth.high)})"


def _points(share: float) -> str:
    """Return a difference of shares as text, in percentage points.

    >>> _points(0.0123)
    '1.23 points'
    """
    return f"{100 * share:.2f} points"
