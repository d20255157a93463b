"""Simultaneous Fair-Share over a whole queue: which waiting jobs start now, and which are promised a start.

Priorities say what goes first, targets say who (Steffen, "A Better Way of Scheduling Jobs on HPC Systems: Simultaneous
Fair-Share", HPCSYSPROS 2019). A target is the throughput that somebody ought to have (allocation over its period,
times a factor), in units held at one instant. Nothing is remembered: only what runs and what waits now counts.

- `priorities` makes the list of priorities: by the linear sum of a job's traits, as in Slurm's multi-factor priority.
- Pass one walks down this list, and passes over all jobs whose owner holds its target or more. A job may
  bring its owner above the target; the owner's next job is passed over.
- Pass two walks down the same list, whoever owns the jobs.

A walk ends at the first job that it may choose and that does not fit. With reservations it goes on: that job is
promised the first instant at which enough is expected to be free, and those behind it start if they delay no promise.
Pass one promises first. With all targets 0 there is only pass two: the plain walk of a list of priorities.

`choose` is one plain function over NumPy arrays, which can be called as it is or compiled.
"""

import math

import numpy as np
from numpy.typing import NDArray


def priorities(
    since_s: NDArray[np.float64],
    units: NDArray[np.int64],
    limit_s: NDArray[np.float64],
    *,
    now_s: float,
    per_second: float,
    per_unit: float,
    per_limit_s: float,
) -> NDArray[np.float64]:
    """Return the priority of each job that waits since `since_s`. A job with a higher priority goes first.

    P = A x_a + B x_b + C x_c with the job's age, size and limit (Steffen, Simultaneous Fair-Share, HPCSYSPROS 2019,
    "Linear Priority Job Scheduling"; Slurm, Multifactor Priority Plugin). Slurm also cuts the age at
    `PriorityMaxAge`; here it grows without end. So every priority grows alike, and the order of two jobs is the same
    at any `now_s`.
    """
    return per_second * (now_s - since_s) + per_unit * units + per_limit_s * limit_s


def choose(  # noqa: PLR0912, PLR0915, PLR0917 - its passes share many values; numba takes no keywords
    queue: NDArray[np.int64],
    units: NDArray[np.int64],
    owner: NDArray[np.int32],
    limit_s: NDArray[np.float64],
    holds: NDArray[np.int64],
    targets: NDArray[np.float64],
    free: int,
    reservations: int,
    now_s: float,
    ends_s: NDArray[np.float64],
    ends_units: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the jobs that start now, in the order in which they were chosen, and the promises to other jobs.

    The second array has the promised start of each such job. The third has the units that may be held past that
    instant beside the job.

    `queue` has the waiting jobs by descending priority, as indices into `units`, `owner` and `limit_s`. `holds` and
    `targets` have one entry an owner: the units of its running jobs, and the units that it should have. At most
    `reservations` jobs are promised a start; with 0, times and ends do not matter and may be empty. `ends_s` has the
    expected ends of running jobs, ascending, and `ends_units` the units that become free then. A job that should have
    ended by now counts as one that is about to end.

    With one reservation and targets of 0 this is EASY backfilling (`replay.backfill`) in the order of `queue`.
    """
    held = holds.copy()
    places = np.empty(len(queue), np.int64)  # in the queue, of the jobs that start
    found = 0
    promised = np.empty(reservations, np.int64)  # places of the jobs with a reservation
    shadow_s = np.empty(reservations, np.float64)  # when each is to start
    spare = np.empty(reservations, np.int64)  # what is free at that instant, once it has started
    made = 0
    for is_second in (False, True):
        if not is_second:
            is_anybody_below = False
            for who in range(len(held)):
                is_anybody_below = is_anybody_below or held[who] < targets[who]
            if not is_anybody_below:
                continue
        found_before = found
        met = 0
        for place in range(len(queue)):
            if free <= 0:
                break
            job = queue[place]
            if is_second and met < found_before and places[met] == place:
                met += 1
                continue
            if units[job] > free and 0 < reservations == made:  # most of a long queue
                continue
            if not is_second and held[owner[job]] >= targets[owner[job]]:
                continue
            # What is expected to be free falls only where a promised job starts: enough there is enough between.
            fits = units[job] <= free
            for other in range(made):
                if shadow_s[other] < now_s + limit_s[job] and units[job] > spare[other]:
                    fits = False
            if fits:
                for other in range(made):
                    if shadow_s[other] < now_s + limit_s[job]:
                        spare[other] -= units[job]
                free -= int(units[job])
                held[owner[job]] += units[job]
                places[found] = place
                found += 1
                continue
            if reservations == 0:
                break
            is_promised = made == reservations
            for other in range(made):
                is_promised = is_promised or promised[other] == place
            if is_promised:
                continue
            # The ends of what was chosen in this decision, and both ends of the promises, in order of time.
            turns = 0
            turn_s = np.empty(found + 2 * made, np.float64)
            turn_units = np.empty(found + 2 * made, np.int64)
            for entry in range(found + 2 * made):
                if entry < found:
                    other = queue[places[entry]]
                    at_s = now_s + limit_s[other]
                    change = units[other]
                else:
                    which = (entry - found) // 2
                    other = queue[promised[which]]
                    is_end = (entry - found) % 2 == 1
                    at_s = shadow_s[which] + (limit_s[other] if is_end else 0.0)
                    change = units[other] if is_end else -units[other]
                at = turns
                while at > 0 and turn_s[at - 1] > at_s:
                    turn_s[at] = turn_s[at - 1]
                    turn_units[at] = turn_units[at - 1]
                    at -= 1
                turn_s[at] = at_s
                turn_units[at] = change
                turns += 1
            # The first instant from which on it fits, beside what runs and what was promised.
            level = free
            start_s = now_s
            end = 0
            turn = 0
            while True:
                fits = units[job] <= level
                for other in range(made):
                    if start_s < shadow_s[other] < start_s + limit_s[job] and units[job] > spare[other]:
                        fits = False
                if fits or (end == len(ends_s) and turn == turns):
                    break
                next_s = math.inf
                if end < len(ends_s):
                    next_s = ends_s[end]
                if turn < turns:
                    next_s = min(next_s, turn_s[turn])
                start_s = max(start_s, next_s)
                while end < len(ends_s) and ends_s[end] <= start_s:
                    level += ends_units[end]
                    end += 1
                while turn < turns and turn_s[turn] <= start_s:
                    level += turn_units[turn]
                    turn += 1
            if fits:  # else it is larger than all that will ever be free: nobody waits for it
                for other in range(made):
                    if start_s <= shadow_s[other] < start_s + limit_s[job]:
                        spare[other] -= units[job]
                promised[made] = place
                shadow_s[made] = start_s
                spare[made] = level - units[job]
                made += 1
    for entry in range(found):
        places[entry] = queue[places[entry]]
    return places[:found], shadow_s[:made], spare[:made]
