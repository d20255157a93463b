"""The difference between the node's clock and control's, from requests that control has answered. Pure.

Control reads its clock between a request and its answer. So each answer bounds the difference, and a slow network only
makes the bounds wide: it never looks like a wrong clock.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

EXCHANGES = 10
"""The newest so many answers count: a clock that was mended is in order soon."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. Instants are seconds since the epoch: two by the node's clock, one by control's."""

    sent_s: float
    control_s: float
    received_s: float


def least_ahead_s(exchanges: Sequence[Exchange]) -> float:
    """Return how far the node's clock is ahead of control's at least; below 0 if it is behind, 0 if they may agree.

    `exchanges` are in the order of time. Those before a clock was set do not count.

    >>> least_ahead_s([Exchange(107.0, 105.0, 107.5), Exchange(117.0, 115.0, 125.0)])
    2.0
    >>> least_ahead_s([Exchange(100.0, 105.0, 109.0)])
    0.0
    """
    low_s, high_s = -math.inf, math.inf
    for each in reversed(exchanges):
        lower_s = max(low_s, each.sent_s - each.control_s)
        upper_s = min(high_s, each.received_s - each.control_s)
        if lower_s > upper_s:
            break
        low_s, high_s = lower_s, upper_s
    return min(max(0.0, low_s), high_s)
