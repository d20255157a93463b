"""The settings that further seeds may still make the answer: a pure function of the evidence.

The sweep tries all settings on a few seeds, and then only the contenders on more (a race; Maron and Moore, Hoeffding
Races, 1993). A setting leaves the race if it is surely past the limit, if it surely wins nothing, or if the best
setting within the limit surely gives more effective load. It comes back if that best setting leaves. "Surely" holds for
all settings and all looks at the evidence together (Bonferroni): each single comparison is made at a level so high that
the chance of any error in the whole race is what the user asked for.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gleaner.control.simulation.tuning.evidence import Evidence, Interval, WaitLimit, rank

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
