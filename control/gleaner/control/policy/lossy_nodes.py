"""Nodes that lose unusually many slices. The module is pure.

Such a node meets three conditions. It has lost at least three slices, because one or two losses can be chance. It has
lost at least a quarter of its slices, because a lost slice costs at most a round, and a smaller part is not worth an
alarm. Its lost fraction is at least three times the median of the other nodes, because a failing network or storage
system affects all nodes. The median is used so that one bad node does not hide another.
"""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_LOST = 3
LEAST_PART = 0.25
TIMES_OTHERS = 3.0


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """The slices of a node that ended in some period. `lost` is the number of those whose computing time was lost."""

    slices: int = 0
    lost: int = 0

    @property
    def lost_part(self) -> float:
        """Return the fraction of the slices that were lost."""
        return self.lost / self.slices if self.slices else 0.0


def conspicuous(counts: Mapping[str, SliceCounts]) -> tuple[str, ...]:
    """Return the nodes that lose unusually many slices, the worst first.

    >>> well = {f"n{number}": SliceCounts(40, 1) for number in range(5)}
    >>> conspicuous(well | {"n7": SliceCounts(40, 12)}), conspicuous({"n7": SliceCounts(4, 2)})
    (('n7',), ())
    """
    parts = {node: count.lost_part for node, count in counts.items() if count.slices}
    ordered = sorted(parts.values())
    bad = {
        node: part
        for node, part in parts.items()
        if counts[node].lost >= LEAST_LOST
        and part >= LEAST_PART
        and part >= TIMES_OTHERS * _median_of_others(ordered, part)
    }
    return tuple(sorted(bad, key=lambda node: (-bad[node], node)))


def _median_of_others(ordered: Sequence[float], part: float) -> float:
    """Return the median of all fractions except this one, or 0 if there are no others.

    `ordered` is sorted, so the median follows from the position of `part`.
    """
    place, others = bisect_left(ordered, part), len(ordered) - 1
    if not others:
        return 0.0
    middle = (ordered[at + (at >= place)] for at in ((others - 1) // 2, others // 2))
    return statistics.fmean(middle)
