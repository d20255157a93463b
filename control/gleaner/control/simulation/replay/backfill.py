"""Backfilling, which chooses the waiting jobs that start now, and the jobs behind them that can overtake them.

The functions are pure. They take numbers of units (nodes or processors) and times, and return positions in the queue.
Each is a plain function over NumPy arrays, which can be called directly or compiled.

EASY gives a reservation to the first waiting job that does not fit. The job's shadow time is the time at which enough
running jobs have ended if all of them run to their limits. A later job can start at once if it ends by then, or if it
takes no more than the extra units that the reservation does not need (Mu'alem and Feitelson, "Utilization,
Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6),
2001, section 2).

Conservative backfilling (same paper) gives every waiting job a reservation when it is submitted, at the earliest start
at which it delays no other job. Whenever a job has ended, the schedule is compressed. In the order of the queue, each
job's reservation is moved to the earliest start that is possible now, but never to a later one.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GONE = 2**62
"""The units of a job that has left the middle of a queue. No machine has this many, so the job fits nowhere."""
BLOCK = 32
"""The number of jobs in a block, and of blocks in a block of the next level. A block can be passed over as a whole."""
LEVELS = 4
"""The number of levels, whose blocks have 32, 1,024, 32,768 and a million jobs."""


class OwnerShares(NamedTuple):
    """The data for Simultaneous Fair-Share: the owner of each waiting job, by position, and the owners' holdings and
    targets.

    A walk with shares passes over all jobs whose owner has reached its target.
    """

    owner: NDArray[np.int32]
    holds: NDArray[np.int64]
    targets: NDArray[np.float64]


class Timeline(NamedTuple):
    """Instants in ascending order without repetition, with a number of units for each. The first `size[0]` entries
    count.

    The units are either those that are expected to become free at that instant (ends), or those that are free from that
    instant until the next one (a profile).
    """

    at_s: NDArray[np.float64]
    units: NDArray[np.int64]
    size: NDArray[np.int64]


def timeline(room: int) -> Timeline:
    """Return a timeline without entries."""
    return Timeline(np.empty(room), np.empty(room, np.int64), np.zeros(1, np.int64))


class Waiting(NamedTuple):
    """The demands of the waiting jobs in the order of the queue, and room for the positions of those that start.

    `least_units` and `least_limit_s` have one row per level, with a lower bound of the requests of all jobs in each
    block, so that long queues need not be walked. Zeros are always valid, and `easy` raises the bounds where they are
    too low to help.
    """

    units: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    least_units: NDArray[np.int64]
    least_limit_s: NDArray[np.float64]
    starts: NDArray[np.int64]


class Reservation(NamedTuple):
    """The promise to the first job that does not fit: its shadow time, and the units that other jobs can hold past that
    time."""

    shadow_s: float
    extra: int


class Promised(NamedTuple):
    """The demands of the waiting jobs in the order of the queue, and their promises, which are NaN for new jobs.

    No limit can be 0.
    """

    units: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    promised_s: NDArray[np.float64]


def place_of(line: Timeline, at_s: float) -> int:
    """Return the number of earlier entries. NumPy's search would take a tenth of a second to compile."""
    low, high = 0, int(line.size[0])
    while low < high:
        middle = (low + high) // 2
        if line.at_s[middle] < at_s:
            low = middle + 1
        else:
            high = middle
    return low


def insert(line: Timeline, at: int, at_s: float, units: int) -> None:
    """Insert an entry at this place.

    The indices are unsigned, and each array has a separate loop. An index that might be negative would keep the
    compiler from shifting many entries at a time, and 600 entries would take four times as long.
    """
    one, low, entry = np.uint64(1), np.uint64(at), np.uint64(line.size[0])
    while entry > low:
        line.at_s[entry] = line.at_s[entry - one]
        entry -= one
    entry = np.uint64(line.size[0])
    while entry > low:
        line.units[entry] = line.units[entry - one]
        entry -= one
    line.at_s[at] = at_s
    line.units[at] = units
    line.size[0] += 1


def remove(line: Timeline, at: int, entries: int) -> None:
    """Remove this many entries, beginning at this place."""
    line.size[0] -= entries
    one, by, entry, last = np.uint64(1), np.uint64(entries), np.uint64(at), np.uint64(line.size[0])
    while entry < last:
        line.at_s[entry] = line.at_s[entry + by]
        entry += one
    entry = np.uint64(at)
    while entry < last:
        line.units[entry] = line.units[entry + by]
        entry += one


def expect(line: Timeline, end_s: float, units: int) -> None:
    """Add these units to those that are expected at `end_s`."""
    at = place_of(line, end_s)
    if at < line.size[0] and line.at_s[at] == end_s:
        line.units[at] += units
    else:
        insert(line, at, end_s, units)


def forget(line: Timeline, end_s: float, units: int) -> None:
    """Remove these units from those that are expected at `end_s`."""
    at = place_of(line, end_s)
    line.units[at] -= units
    if line.units[at] == 0:
        remove(line, at, 1)


def easy(  # noqa: PLR0912, PLR0915, PLR0917 - one pass over the queue; numba takes no keywords
    waiting: Waiting,
    span: tuple[int, int, int],
    ends: Timeline,
    shares: OwnerShares | None,
    now_s: float,
    free: int,
    overtaking: bool,
    promise: Reservation,
) -> tuple[int, Reservation]:
    """Write to `starts` the positions of the waiting jobs that start now, in the order in which they were chosen.

    Return the number of jobs that start, and the reservation of the first job that does not fit. If there is no such
    job, the shadow time is infinite.

    `span` is the first position of the queue, the position after its end, and the number of jobs at its head that an
    earlier decision refused. No units have been freed since then, so only the first of these jobs is checked.

    `ends` are the expected ends of running work, none of which can be before `now_s`. The ends of the jobs that start
    are added, so there must be room for them. Without `overtaking`, the queue is first come, first served.

    If `shares` is None, all jobs can start. Otherwise, `holds` is updated. `promise` is the reservation from an earlier
    walk over this queue, whose chosen jobs have been marked as `GONE`. An infinite shadow time means that there is
    none.
    """
    first, last, refused = span
    units, limit_s, least_units, least_limit_s, starts = waiting
    shadow_s, extra = promise
    found = 0
    is_blocked = shadow_s < math.inf
    if not is_blocked:
        extra = free
    position = first
    block_units, block_limit_s, whole_from = GONE, math.inf, first // BLOCK * BLOCK  # jobs before the first are gone
    none_whole = -2 * BLOCK  # a block before any position
    passed = 0  # the level of the block that was just passed over
    is_entered = is_blocked  # True if the current block has not been checked
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
                if passed < level and at > 0:  # the bounds in the block before might be higher now
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
                extra = free + ends.units[0]
                while extra < asked:
                    at += 1
                    extra += ends.units[at]
                shadow_s = ends.at_s[at]
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
        expect(ends, end_s, asked)
        if is_blocked and free == 0:
            break
        position += 1
    if not is_blocked:
        extra = free
    return found, Reservation(shadow_s, extra)


def conservative(  # noqa: PLR0912, PLR0915 - as above
    queue: Promised, profile: Timeline, ended: Timeline, now_s: float, better_until_s: float
) -> float:
    """Write to `promised_s` the latest start of each waiting job. A job starts now if its promise is `now_s`.

    Return the `better_until_s` of the next decision. An earlier start can have become possible only before this time,
    apart from starts on the units in `ended`. Infinity is always valid.

    `profile` has the units that are free from each step to the next, if running work ends as expected and every job
    keeps its promise. After the last step, all units are free. The first step is at `now_s` or earlier. The profile
    changes with the promises, so there must be room for two more steps for each job and each end.

    `ended` has the expected ends of the work that has ended by now, in any order, and its units.
    """
    steps_s, steps_free, steps = profile
    passed = 0
    while passed + 1 < steps[0] and steps_s[passed + 1] <= now_s:
        passed += 1
    if passed > 0:
        remove(profile, 0, passed)
    steps_s[0] = now_s

    left_s = -math.inf  # moved jobs have left units up to this time to the jobs before them
    one, many = np.uint64(1), int(ended.size[0])
    for turn in range(-many, len(queue.units)):
        start_s = math.inf
        if turn < 0:  # free the rest of its time, like a reservation that is cancelled
            asked = ended.units[turn + many]
            old_s = now_s
            old_end_s = ended.at_s[turn + many]
        else:
            asked = queue.units[turn]
            old_s = queue.promised_s[turn]
            old_end_s = old_s + queue.limit_s[turn]
            # The earliest start is the first step from which enough units stay free for the job's limit. From the old
            # promise on, the job can use its own units.
            is_new = math.isnan(old_s)
            reach_s = math.inf if is_new else old_s
            last_s = math.inf if is_new else min(old_s, better_until_s)
            is_found = False
            step, end = np.uint64(0), np.uint64(steps[0])
            while step < end and not is_found and steps_s[step] < last_s:
                if steps_free[step] >= asked:
                    start_s = steps_s[step]
                    until_s = min(reach_s, start_s + queue.limit_s[turn])
                    while step < end and steps_s[step] < until_s and steps_free[step] >= asked:
                        step += one
                    is_found = step == end or steps_s[step] >= until_s
                step += one
            if not is_found:
                continue
            queue.promised_s[turn] = start_s
        # First the old reservation is released, then the new one is taken.
        for is_new in (False, True):
            if is_new and turn < 0:
                break
            begin_s = start_s if is_new else old_s
            finish_s = start_s + queue.limit_s[turn] if is_new else old_end_s
            if not begin_s < finish_s:  # there was no promise, or it has no time left
                continue
            if not is_new:
                better_until_s = max(better_until_s, finish_s)
                left_s = max(left_s, finish_s) if turn >= 0 else left_s
            for edge_s in (finish_s, begin_s):
                at = place_of(profile, edge_s)
                if at == steps[0] or steps_s[at] > edge_s:
                    insert(profile, at, edge_s, steps_free[at - 1])
            past = at = place_of(profile, begin_s)
            while steps_s[past] < finish_s:
                steps_free[past] += -asked if is_new else asked
                past += 1
            for seam in (past, at):
                if seam > 0 and steps_free[seam] == steps_free[seam - 1]:
                    remove(profile, seam, 1)
    return left_s
