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


class Timeline(NamedTuple):
    """Instants, ascending and without repetition, and units for each. The first `size[0]` entries count.

    Either the units that are expected to be free from that instant on in addition (ends), or those that are free from
    that instant up to the next one (a profile).
    """

    at_s: NDArray[np.float64]
    units: NDArray[np.int64]
    size: NDArray[np.int64]


def timeline(room: int) -> Timeline:
    """Return a timeline without entries."""
    return Timeline(np.empty(room), np.empty(room, np.int64), np.zeros(1, np.int64))


class Waiting(NamedTuple):
    """The demands of the waiting jobs in the order of the queue, and room for the positions of those that start.

    `least_units` and `least_limit_s`: a row a level, and for each block of it no more than any job of it asks for, so
    that long queues need not be walked. Zeros are always true; `easy` makes them sharper where they let too much pass.
    """

    units: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    least_units: NDArray[np.int64]
    least_limit_s: NDArray[np.float64]
    starts: NDArray[np.int64]


class Reservation(NamedTuple):
    """The promise to the first job that does not fit: its shadow time, and the units that may be held past that."""

    shadow_s: float
    extra: int


class Promised(NamedTuple):
    """The demands of the waiting jobs in the order of the queue, and their promises; NaN where there is none yet.

    No limit may be 0.
    """

    units: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    promised_s: NDArray[np.float64]


def place_of(line: Timeline, at_s: float) -> int:
    """Return how many entries are earlier. NumPy's search would take a tenth of a second to compile."""
    low, high = 0, int(line.size[0])
    while low < high:
        middle = (low + high) // 2
        if line.at_s[middle] < at_s:
            low = middle + 1
        else:
            high = middle
    return low


def insert(line: Timeline, at: int, at_s: float, units: int) -> None:
    """Put an entry at this place.

    The indices are unsigned and each array has a loop of its own: an index that might be negative keeps the compiler
    from shifting many entries at a time (four times slower at 600 entries).
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
    """Remove so many entries from this place on."""
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
    """Expect these units at `end_s`."""
    at = place_of(line, end_s)
    if at < line.size[0] and line.at_s[at] == end_s:
        line.units[at] += units
    else:
        insert(line, at, end_s, units)


def forget(line: Timeline, end_s: float, units: int) -> None:
    """Expect these units at `end_s` no more."""
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

    Return how many start, and the reservation of the first job that does not fit. Where no job is left waiting its
    shadow time is infinite.

    `span`: the queue goes from the first position to before the last. So many from the first on were refused at an
    earlier decision, since which nothing was freed: of them only the first is looked at.

    `ends`: when what runs is expected to end, which may not be before `now_s`. What starts is added, so there must be
    room. Without `overtaking` the queue is first come, first served.

    `shares`: None lets all jobs start. Otherwise, `holds` is brought up to date. `promise`: that of an earlier walk
    over this queue, in which it marked the jobs that it chose as `GONE`; with an infinite shadow time it made none.
    """
    first, last, refused = span
    units, limit_s, least_units, least_limit_s, starts = waiting
    shadow_s, extra = promise
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
    """Write to `promised_s` when each waiting job will start at the latest; those promised `now_s` start now.

    Return the `better_until_s` of the next decision: before this time, apart from what has ended now, an earlier start
    may have become possible since the latest decision. Infinity is always true.

    The profile: the units that are free from each step to the next, after the last all of them, if what runs ends when
    it is expected to and every job keeps its promise. Its first step is not after `now_s`. It changes with the
    promises: there must be room for two more for each job and each end.

    `ended`: what has ended by now, the instants at which it was expected to, in any order, and its units.
    """
    steps_s, steps_free, steps = profile
    passed = 0
    while passed + 1 < steps[0] and steps_s[passed + 1] <= now_s:
        passed += 1
    if passed > 0:
        remove(profile, 0, passed)
    steps_s[0] = now_s

    left_s = -math.inf  # up to when moved jobs have left units to those that were considered before them
    one, many = np.uint64(1), int(ended.size[0])
    for turn in range(-many, len(queue.units)):
        start_s = math.inf
        if turn < 0:  # the rest of its time, as if it were a reservation that is given up
            asked = ended.units[turn + many]
            old_s = now_s
            old_end_s = ended.at_s[turn + many]
        else:
            asked = queue.units[turn]
            old_s = queue.promised_s[turn]
            old_end_s = old_s + queue.limit_s[turn]
            # The earliest start: the first step from which on enough is free for as long as the job may take. From
            # the old promise on its own units are free to it.
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
            if not begin_s < finish_s:  # there was no promise, or it ended when it was expected to, or takes nothing
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
