"""Which waiting jobs start now, and which of those behind them may overtake: backfilling.

Pure: counts of units (nodes, or processors) and times come in, positions in the queue go out. Each core is one plain
function over NumPy arrays, which the simulator compiles and live control calls as it is.

EASY gives the first waiting job that does not fit a reservation: the shadow time, at which enough of what runs has
ended if all run to their limits. A later job may start at once if it ends by then, or if it takes no more than the
extra units that the reservation leaves over (Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User
Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001, section 2).
"""

import math

import numpy as np
from numpy.typing import NDArray

GONE = 2**62
"""Units of a job that left the middle of a queue: more than there ever are, so it fits nowhere."""


def easy(  # noqa: PLR0912, PLR0915, PLR0917 - one function, since the compiled one may call no other; numba takes no keywords
    now_s: float,
    free: int,
    running: int,
    ends_s: NDArray[np.float64],
    ends_units: NDArray[np.int64],
    units: NDArray[np.int64],
    limit_s: NDArray[np.float64],
    refused: int,
    overtaking: bool,
    starts: NDArray[np.int64],
) -> tuple[int, int, float, int]:
    """Write to `starts` the positions of the waiting jobs that start now, in the order in which they were chosen.

    The answer: how many start, the new `running`, the shadow time of the first job that does not fit, and the units
    that may be held past it. Where no job is left waiting the shadow time is infinite.

    `ends_s`: at which instants what runs is expected to end, without repetition, ascending; `ends_units`: what each
    gives back. Their first `running` entries count, and what starts is added to them, so there must be room. Nothing
    may be expected to end before `now_s`.

    `units` and `limit_s`: what the waiting jobs ask for, in the order of the queue, the first of them not `GONE`.
    `refused`: so many from the first on were refused at an earlier decision, since which nothing was given back: of
    them only the first is looked at. Without `overtaking` the queue is first come, first served.
    """
    found = 0
    shadow_s = math.inf
    extra = free
    is_blocked = False
    position = 0
    while position < len(units):
        asked = units[position]
        end_s = now_s + limit_s[position]
        if asked > free:
            if not is_blocked and asked != GONE:
                is_blocked = True
                at = 0
                extra = free + ends_units[0]
                while extra < asked:
                    at += 1
                    extra += ends_units[at]
                shadow_s = ends_s[at]
                extra -= asked
                if free == 0 or not overtaking:
                    break
                position = max(position, refused - 1)
            position += 1
            continue
        if is_blocked and end_s > shadow_s:
            if asked > extra:
                position += 1
                continue
            extra -= asked
        free -= asked
        starts[found] = position
        found += 1
        low = 0
        high = running
        while low < high:
            middle = (low + high) // 2
            if ends_s[middle] < end_s:
                low = middle + 1
            else:
                high = middle
        if low < running and ends_s[low] == end_s:
            ends_units[low] += asked
        else:
            for entry in range(running, low, -1):
                ends_s[entry] = ends_s[entry - 1]
                ends_units[entry] = ends_units[entry - 1]
            ends_s[low] = end_s
            ends_units[low] = asked
            running += 1
        if is_blocked and free == 0:
            break
        position += 1
    if not is_blocked:
        extra = free
    return found, running, shadow_s, extra
