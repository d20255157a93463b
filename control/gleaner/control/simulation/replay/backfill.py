"""Backfilling: the waiting jobs that start now, and the jobs behind them that may overtake.

Pure: counts of units (nodes, or processors) and times come in, positions in the queue go out. Each is one plain
function over NumPy arrays, which can be called as it is or compiled.

EASY gives the first waiting job that does not fit a reservation: the shadow time, at which enough of what runs has
ended if all run to their limits. A later job may start at once if it ends by then, or if it takes no more than the
extra units that the reservation leaves over (Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User
Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001, section 2).

Conservative backfilling (the same) gives every waiting job a reservation when it comes: the earliest start at which it
delays nobody. Whenever something has ended the schedule is compressed: in the order of the queue, each job's
reservation is moved to the earliest start that there is now, never to a later one.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GONE = 2**62
"""Units of a job that left the middle of a queue: more than there ever are, so it fits nowhere."""
BLOCK = 32
"""Jobs of a queue that are passed over together, and blocks of them, and blocks of those."""
LEVELS = 4
"""Of blocks: of 32 jobs, of 1,024, of 32,768 and of a million."""


class OwnerShares(NamedTuple):
    """Simultaneous Fair-Share: the owner of each waiting job, by position, and what owners hold and should have.

    A walk with shares passes over all jobs whose owner holds its target or more.
    """

    owner: NDArray[np.int32]
    holds: NDArray[np.int64]
    targets: NDArray[np.float64]


def easy(  # noqa: PLR0912, PLR0915, PLR0917 - one pass over the queue; numba takes no keywords
    now_s: float,
    free: int,
    running: int,
    ends_s: NDArray[np.float64],
    ends_units: NDArray[np.int64],
    units: NDArray[np.int64],
    limit_s: NDArray[np.float64],
    least_units: NDArray[np.int64],
    least_limit_s: NDArray[np.float64],
    first: int,
    last: int,
    refused: int,
    overtaking: bool,
    starts: NDArray[np.int64],
    shares: OwnerShares | None,
    shadow_s: float,
    extra: int,
) -> tuple[int, int, float, int]:
    """Write to `starts` the positions of the waiting jobs that start now, in the order in which they were chosen.

    The answer: how many start, the new `running`, the shadow time of the first job that does not fit, and the units
    that may be held past it. Where no job is left waiting the shadow time is infinite.

    `ends_s`: at which instants what runs is expected to end, without repetition, ascending; `ends_units`: the units
    that each frees. Their first `running` entries count, and what starts is added to them, so there must be room.
    Nothing may be expected to end before `now_s`.

    `units` and `limit_s`: what the waiting jobs ask for, in the order of the queue, which goes from `first` to before
    `last`. `refused`: so many from the first on were refused at an earlier decision,
    since which nothing was freed: of them only the first is looked at. Without `overtaking` the queue is first
    come, first served.

    `least_units` and `least_limit_s`: a row a level, and for each block of it no more than any job of it asks for, so
    that long queues need not be walked. Zeros are always true; the bounds are made sharper where they let too much
    pass.

    `shares`: None lets all jobs start. Otherwise, `holds` is brought up to date. `shadow_s` and `extra`: the promise of
    an earlier walk over this queue, in which it marked the jobs that it chose as `GONE`; infinite if it made none.
    """
    found = 0
    is_blocked = shadow_s < math.inf
    if not is_blocked:
        extra = free
    position = first
    block_units, block_limit_s, whole_from = GONE, math.inf, first // BLOCK * BLOCK  # before the first all are gone
    none_whole = -2 * BLOCK  # a block before any position
    passed = 0  # the level of the block that was passed over just now
    is_entered = is_blocked  # a block of which nothing was asked yet
    while position < last:
        if is_entered or (is_blocked and position % BLOCK == 0):
            is_entered = False
            at = position // BLOCK
            if whole_from == position - BLOCK:
                least_units[0, at - 1], least_limit_s[0, at - 1] = block_units, block_limit_s
            level, width = 0, BLOCK
            while level + 1 < LEVELS and at % BLOCK == 0:
                level += 1
                width *= BLOCK
                at //= BLOCK
                if passed < level and at > 0:  # what the block before consists of may be sharper now
                    block_units, block_limit_s = GONE, math.inf
                    for part in range((at - 1) * BLOCK, at * BLOCK):
                        block_units = min(block_units, least_units[level - 1, part])
                        block_limit_s = min(block_limit_s, least_limit_s[level - 1, part])
                    least_units[level, at - 1], least_limit_s[level, at - 1] = block_units, block_limit_s
            passed = -1
            while level >= 0 and passed < 0:
                in_time = now_s + least_limit_s[level, at] <= shadow_s
                if least_units[level, at] > free or (least_units[level, at] > extra and not in_time):
                    passed = level
                    position = (at + 1) * width
                level -= 1
                width //= BLOCK
                at *= BLOCK
            if passed >= 0:
                whole_from = none_whole
                continue
            if position % BLOCK == 0:
                block_units, block_limit_s, whole_from = GONE, math.inf, position
        asked = units[position]
        if asked != GONE:
            block_units, block_limit_s = min(block_units, asked), min(block_limit_s, limit_s[position])
        if shares is not None and shares.holds[shares.owner[position]] >= shares.targets[shares.owner[position]]:
            position += 1
            continue
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
                is_entered = True
                if position < first + refused - 1:
                    position = first + refused - 1
                    whole_from = none_whole
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
        if shares is not None:
            shares.holds[shares.owner[position]] += asked
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
            one, entry = np.uint64(1), np.uint64(running)  # unsigned indices: compiled, they move many at a time
            while entry > np.uint64(low):
                ends_s[entry] = ends_s[entry - one]
                entry -= one
            entry = np.uint64(running)
            while entry > np.uint64(low):
                ends_units[entry] = ends_units[entry - one]
                entry -= one
            ends_s[low] = end_s
            ends_units[low] = asked
            running += 1
        if is_blocked and free == 0:
            break
        position += 1
    if not is_blocked:
        extra = free
    return found, running, shadow_s, extra


def conservative(  # noqa: PLR0912, PLR0915, PLR0917 - as above
    now_s: float,
    steps: int,
    steps_s: NDArray[np.float64],
    steps_free: NDArray[np.int64],
    ended_s: NDArray[np.float64],
    ended_units: NDArray[np.int64],
    units: NDArray[np.int64],
    limit_s: NDArray[np.float64],
    promised_s: NDArray[np.float64],
    better_until_s: float,
) -> tuple[int, float]:
    """Write to `promised_s` when each waiting job will start at the latest; those promised `now_s` start now.

    The answer: the new `steps`, and the `better_until_s` of the next decision.

    The profile: from `steps_s[k]` to the next step `steps_free[k]` units are free, after the last all of them, if what
    runs ends when it is expected to and every job keeps its promise. It has `steps` entries, the first not after
    `now_s`, and changes with the promises: there must be room for two more for each job and each end.

    `ended_s` and `ended_units`: what has ended by now, the instants at which it was expected to, and its units.

    `units`, `limit_s` and `promised_s` go in the order of the queue; a job that has no promise yet has NaN. No limit
    may be 0. `better_until_s`: before this time, apart from what has ended now, an earlier start may have become
    possible since the latest decision. Infinity is always true.
    """
    passed = 0
    while passed + 1 < steps and steps_s[passed + 1] <= now_s:
        passed += 1
    one = np.uint64(1)  # unsigned indices: compiled, they move many at a time
    if passed > 0:
        steps -= passed
        by, entry = np.uint64(passed), np.uint64(0)
        while entry < np.uint64(steps):
            steps_s[entry] = steps_s[entry + by]
            entry += one
        entry = np.uint64(0)
        while entry < np.uint64(steps):
            steps_free[entry] = steps_free[entry + by]
            entry += one
    steps_s[0] = now_s

    left_s = -math.inf  # up to when moved jobs have left units to those that were considered before them
    for turn in range(-len(ended_s), len(units)):
        start_s = math.inf
        if turn < 0:  # the rest of its time, as if it were a reservation that is given up
            asked = ended_units[turn + len(ended_s)]
            old_s = now_s
            old_end_s = ended_s[turn + len(ended_s)]
        else:
            asked = units[turn]
            old_s = promised_s[turn]
            old_end_s = old_s + limit_s[turn]
            # The earliest start: the first step from which on enough is free for as long as the job may take. From
            # the old promise on its own units are free to it.
            is_new = math.isnan(old_s)
            reach_s = math.inf if is_new else old_s
            last_s = math.inf if is_new else min(old_s, better_until_s)
            is_found = False
            step, end = np.uint64(0), np.uint64(steps)
            while step < end and not is_found and steps_s[step] < last_s:
                if steps_free[step] >= asked:
                    start_s = steps_s[step]
                    until_s = min(reach_s, start_s + limit_s[turn])
                    while step < end and steps_s[step] < until_s and steps_free[step] >= asked:
                        step += one
                    is_found = step == end or steps_s[step] >= until_s
                step += one
            if not is_found:
                continue
            promised_s[turn] = start_s
        # First the old reservation is released, then the new one is taken.
        for is_new in (False, True):
            if is_new and turn < 0:
                break
            begin_s = start_s if is_new else old_s
            finish_s = start_s + limit_s[turn] if is_new else old_end_s
            if not begin_s < finish_s:  # there was no promise, or it ended when it was expected to, or takes nothing
                continue
            if not is_new:
                better_until_s = max(better_until_s, finish_s)
                left_s = max(left_s, finish_s) if turn >= 0 else left_s
            for edge_s in (finish_s, begin_s):
                at = np.searchsorted(steps_s[:steps], edge_s)
                if at == steps or steps_s[at] > edge_s:
                    entry = np.uint64(steps)
                    while entry > np.uint64(at):
                        steps_s[entry] = steps_s[entry - one]
                        entry -= one
                    entry = np.uint64(steps)
                    while entry > np.uint64(at):
                        steps_free[entry] = steps_free[entry - one]
                        entry -= one
                    steps_s[at] = edge_s
                    steps_free[at] = steps_free[at - 1]
                    steps += 1
            past = at = int(np.searchsorted(steps_s[:steps], begin_s))
            while steps_s[past] < finish_s:
                steps_free[past] += -asked if is_new else asked
                past += 1
            for seam in (past, at):
                if seam > 0 and steps_free[seam] == steps_free[seam - 1]:
                    steps -= 1
                    entry = np.uint64(seam)
                    while entry < np.uint64(steps):
                        steps_s[entry] = steps_s[entry + one]
                        entry += one
                    entry = np.uint64(seam)
                    while entry < np.uint64(steps):
                        steps_free[entry] = steps_free[entry + one]
                        entry += one
    return steps, left_s
