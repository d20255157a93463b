"""The race of the settings, and the recommendation of one of them: pure functions of the evidence.

The sweep tries all settings on a few seeds, and then only the contenders on more (a race; Maron and Moore, Hoeffding
Races, 1993). A setting leaves the race if it is surely past the limit, if it surely wins nothing, or if the best
setting within the limit surely gives more effective load. It comes back if that best setting leaves. "Surely" holds for
all settings and all looks at the evidence together (Bonferroni): each single comparison is made at a level so high that
the chance of any error in the whole race is what the user asked for.

Candidates are the settings that keep the wait within the limit even at the upper end of its confidence interval. The
candidate with the highest effective load is recommended. Where the seeds do not tell settings apart (the interval of
their paired differences holds 0), the simpler one is taken: no preemption, then the shorter length, then synchronised,
then the larger margin. Without a candidate there is no recommendation, only the setting that is nearest. The last
sentence says how sure all this is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gleaner.control.simulation.metrics.tables import percent
from gleaner.control.simulation.tuning.evidence import Evidence, Interval, Setting, WaitLimit, rank

FIRST_SEEDS = 4
"""The number of seeds at the first look. Fewer say too little about their own spread."""
_GROWTH = 1.5
MOST_LOOKS = 20
"""The race ends after this look, at 9,000 seeds and more."""


def looks() -> Iterator[int]:
    """Yield the number of seeds at each look.

    >>> list(looks())[:6]
    [4, 6, 9, 14, 21, 32]
    """
    seeds = FIRST_SEEDS
    for _ in range(MOST_LOOKS):
        yield seeds
        seeds = math.ceil(seeds * _GROWTH)


@dataclass(frozen=True, slots=True)
class Contest:
    """The state of the race. All evidence in it has the level at which a comparison is sure."""

    contenders: tuple[Evidence, ...]
    is_settled: bool
    """True if one contender is left and is surely within the limit, or if no contender is left."""


def contest(tried: Sequence[Evidence], limit: WaitLimit) -> Contest:
    """Return who is still in the race. The evidence has the level of a single comparison."""
    within = [one for one in tried if limit.holds(one) and one.gain.low > 0]
    best = max(within, key=rank, default=None)
    sure = [_surely(one, len(tried)) for one in tried]
    leader = None if best is None else _surely(best, len(tried))
    contenders = tuple(one for one in sure if _is_open(one, limit) and not _is_behind(one, leader))
    if len(contenders) > 1:
        return Contest(contenders, is_settled=False)
    return Contest(contenders, all(limit.holds(one) and one.gain.low > 0 for one in contenders))


def _surely(one: Evidence, settings: int) -> Evidence:
    return replace(one, level=1 - (1 - one.level) / (settings * MOST_LOOKS))


def _is_open(one: Evidence, limit: WaitLimit) -> bool:
    """Return False if this setting is surely past the limit or surely wins nothing."""
    return limit.growth(one).low <= limit.most and one.gain.high > 0


def _is_behind(one: Evidence, leader: Evidence | None) -> bool:
    return leader is not None and one.setting != leader.setting and leader.ahead_of(one).low > 0


def seeds_needed(chosen: Evidence | None, contenders: Sequence[Evidence], limit: WaitLimit) -> float:
    """Return about how many seeds settle the answer if means and spreads stay as they are; infinity if none would.

    With a chosen setting, these are the seeds that tell it from the first of the others. Without one, they are those
    that tell every contender from the limit. An interval of n seeds that is too wide by a factor f needs n f² seeds.
    """
    if chosen is not None:
        rival = first_rival(chosen, contenders)
        contenders = [one for one in contenders if one.setting in {chosen.setting, rival and rival.setting}]
    return max((_needed(one, chosen, limit) for one in contenders), default=0)


def first_rival(chosen: Evidence, contenders: Sequence[Evidence]) -> Evidence | None:
    """Return the contender with the highest effective load beside the chosen setting."""
    return max((one for one in contenders if one.setting != chosen.setting), key=rank, default=None)


def _needed(one: Evidence, chosen: Evidence | None, limit: WaitLimit) -> float:
    count, growth = len(one.waits_s), limit.growth(one)
    for_limit = _until_clear_of(limit.most, growth, count)
    if chosen is None or one.setting == chosen.setting:
        return max(for_limit, _until_clear_of(0, one.gain, count))
    behind = replace(chosen, level=one.level).ahead_of(one)
    for_load = _until_clear_of(0, behind, min(count, len(chosen.waits_s)))
    if growth.mean > limit.most:  # it leaves for its wait or for its load, whichever comes first
        return min(for_limit, for_load) if behind.mean > 0 else for_limit
    return for_load if behind.mean > 0 else max(for_limit, for_load)


def _until_clear_of(value: float, found: Interval, count: int) -> float:
    """Return the number of seeds at which an interval no longer holds the value.

    >>> _until_clear_of(0.0, Interval(1.0, -1.0, 3.0), 10)
    40.0
    """
    distance, half = abs(found.mean - value), (found.high - found.low) / 2
    if distance == 0:
        return math.inf if half else count
    return max(float(count), count * (half / distance) ** 2)


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
        nearest = max(within, key=rank)
        reasons = [
            f"{len(within)} of {len(tried)} settings keep the wait within the limit of {limit.said}, but none of them "
            f"is sure to give more effective load than no agents: the best is {nearest.setting.said} with "
            f"{_points(nearest.gain.mean)} ({_points(nearest.gain.low)} to {_points(nearest.gain.high)})."
        ]
    else:
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
    if not (within or any(evidence.setting.preemption for evidence in tried)):
        reasons.append(
            "Agents that leave for regular jobs, as shipped, were not tried (--preemption, where nodes are alike)."
        )
    reasons.append(_cure(tried, limit))
    return Recommendation(
        None, tuple(reasons), nearest=nearest.setting, is_settled=race.is_settled, seeds_needed=needed
    )


def _cure(tried: Sequence[Evidence], limit: WaitLimit) -> str:
    """Return a sentence with the least limit, in whole per cent or seconds, under which these figures recommend one."""
    useful = [one for one in tried if one.gain.low > 0]
    if not useful:
        return "No other --wait-limit changes this, since no setting is sure to win more than no agents."
    nearest = min(useful, key=lambda one: limit.growth(one).high)
    scale, unit = (100, "%") if limit.is_share else (1, "s")
    least = math.floor(scale * limit.growth(nearest).high) + 1
    setting = recommend(tried, replace(limit, most=least / scale)).setting or nearest.setting
    return f"With --wait-limit {least}{unit}, {setting.said} would be recommended."


def _spread(growth: Interval, limit: WaitLimit) -> str:
    return f"{limit.shown(growth.mean)} ({limit.shown(growth.low)} to {limit.shown(growth.high)})"


def _points(share: float) -> str:
    """Return a difference of shares as text, in percentage points.

    >>> _points(0.0123)
    '1.23 points'
    """
    return f"{100 * share:.2f} points"
