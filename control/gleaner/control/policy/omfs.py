"""Memoryless fair share: the start of a waiting job, and the running jobs that are preempted for it. Pure.

The method is OMFS (Zvi and Oren, "Optimized Memoryless Fair-Share HPC Resources Scheduling using Transparent
Checkpoint-Restart Preemption", 2021). Each owner is entitled to a part of the machine, may use more while others do
not want theirs, and gives it back when they do. Nothing is remembered: only what runs and what waits now counts.

The paper's section II says it twice, in words and as Algorithm 1, and not the same. The words count here; the
listing is an option (`literal`), to study it. What was read how, with the lines of the listing:

- Line 3 starts with no idle CPU and an empty machine would stay empty, since nothing ever ends in the listing. Idle is
  what the caller says; a replay starts with all of it.
- Lines 19 to 21: "preemptable" is whoever may be vacated, by a kill or by a save.
- Line 22: owed by its words, a non-preemptible job runs "up to the entitlement", so what is exactly as large may. The
  listing refuses it. So non-preemptible jobs never hold more than the entitlement, and all that an owner has above it
  can be taken back.
- Line 26: what is idle is enough when it is as much as asked; the listing wants more, and a job exactly as large goes
  on to the test of line 27.
- Line 27: a job that fits what is left of its owner's entitlement, all of the owner's jobs counted, is a claim. Any
  other job runs on what is idle, and may be larger than the entitlement unless it is non-preemptible; but not while
  its owner was promised units that it does not have yet, or it might be vacated before they come.
- Line 32 takes the least prioritised of all that runs: even of an owner within its entitlement, of the claim's own
  owner, or of one that may not be preempted. By the words victims are preemptible or checkpointable jobs "of entities
  utilizing more than their allotment". An owner that falls to its entitlement while victims are chosen is spared.
- Line 32, the order: the queue of running jobs "demotes jobs that have been running uninterruptedly for at least a
  quantum", so those come first. Next, which the paper leaves open, come jobs that push their owner the least below
  its entitlement; then the least priority (line 11 has it count within one user, here it counts for all); then what is
  cheapest to vacate: the time of a save, or what a killed job has computed.
- "Each job is allowed a quantum: a minimal running duration": with `protects` no job is vacated within its quantum, so
  saves are bounded and a claim waits for a quantum at most. Without, such jobs come last, and a claim never waits.
- Line 31 stops as soon as enough is freed. A job is spared again if those chosen after it are enough alone.
- Line 33 drops what cannot be saved. By its words such a job "may be killed": the caller lets it start over.
- Line 36 counts what is vacated as idle at once. A save takes time, so `coming` is what is being freed and is
  promised to nobody: it is not freed a second time.

`walk_of` asks for each waiting job in turn. The caller takes each answer before the next question:

1. The claims, in the order of the queue. When one had others vacated, it asks again for those that had to wait: an
   owner that has just lost a job may have become entitled to another.
2. Then the others, in the order of the queue, unless a claim was told to `WAIT`: what is idle is kept for it. So no
   owner comes above its entitlement while a claim waits, all that is above it has soon run for a quantum, and the
   claim goes on then. The listing knows no such order: with `literal` each job is asked for once, claim or not.

That no claim waits for longer follows by counting. Idle, coming and used units are the whole machine, and entitlements
are no more than that. So if a claim fits its owner's entitlement and what is idle or coming is not enough, another
owner is above its own, and has preemptible jobs there. Nor does it go round in circles. Who claims is within its
entitlement afterwards, and is not vacated before it has taken idle units beyond it. A job that was just vacated is no
claim: its owner was above its entitlement with it.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Queue = TypeVar("Queue")

REFUSE = 0
"""The job is not entitled to a start, and there is not enough idle."""
START = 1
"""The job starts now, on idle units."""
VACATE = 2
"""The job is to have what is idle, what is coming and what its victims free (there may be none). It starts then."""
WAIT = 3
"""The job is entitled to a start, but its possible victims are within their quantum, or there are none."""


class Asked(NamedTuple):
    """The demand of a waiting job."""

    units: int
    """Nodes, or processors."""
    owner: int
    job_class: int
    """0 non-preemptible, 1 preemptible (it is killed), 2 checkpointable (it is saved)."""


class Running(NamedTuple):
    """The running jobs, one entry a job."""

    units: NDArray[np.int64]
    gives: NDArray[np.int64]
    """The units that the waiting job could use: all of them, where units need only be counted."""
    owner: NDArray[np.int64]
    job_class: NDArray[np.int64]
    priority: NDArray[np.int64]
    """More is better."""
    since_s: NDArray[np.float64]
    """The time since which the job runs without a break."""
    cost_s: NDArray[np.float64]
    """The time that a save would take."""


class Owners(NamedTuple):
    """The owners, one entry an owner. Units that are being vacated are not used."""

    used: NDArray[np.int64]
    used_fixed: NDArray[np.int64]
    """Of the used units those of non-preemptible jobs."""
    promised: NDArray[np.int64]
    """Of the used units those of claims that have not started."""
    entitled: NDArray[np.int64]


class Rules(NamedTuple):
    """The quantum, and how it is read; see above."""

    quantum_s: float
    protects: bool
    literal: bool


def is_claim(asked: int, used: int, entitled: int) -> bool:
    """Return True if a job that asks for so many units fits what is left of its owner's entitlement."""
    return asked <= entitled - used


def would_exceed(asked: int, job_class: int, used_fixed: int, entitled: int, literal: bool) -> bool:
    """Return True if the non-preemptible jobs of an owner would be more than its entitlement with this job."""
    return job_class == 0 and used_fixed + asked > entitled - int(literal)


def walk_of(
    places: Callable[[Queue], int], claim: Callable[[Queue, int], int], others: Callable[[Queue], None]
) -> Callable[[Queue, bool], bool]:
    """Return the walk that asks with these functions. The compiler needs to know them when it compiles the walk.

    `places` begins a walk over the queue and returns its length. `claim` asks for the job at a place, takes the answer
    and returns it; `REFUSE` for a job that is no claim. `others` asks for every other job.
    """

    def walk(queue: Queue, literal: bool) -> bool:
        """Ask for the claims until they preempt no more jobs, then for the others; with `literal` only for the others.

        Return True if the others were not asked, since idle units are kept for a claim that was told to `WAIT`.
        """
        is_vacated, is_waiting = not literal, False
        while is_vacated:
            is_vacated, is_waiting = False, False
            for place in range(places(queue)):
                answer = claim(queue, place)
                is_vacated = is_vacated or answer == VACATE
                is_waiting = is_waiting or answer == WAIT
        if not is_waiting:
            others(queue)
        return is_waiting

    return walk


def decide(  # noqa: PLR0917 - numba takes no keywords
    job: Asked,
    running: Running,
    owners: Owners,
    idle: int,
    coming: int,
    now_s: float,
    rules: Rules,
    victims: NDArray[np.int64],
) -> tuple[int, int]:
    """Return the answer for one waiting job, and how many running jobs are to be preempted.

    `idle` units can be had now, `coming` units soon. The positions of the running jobs to preempt are written to
    `victims`, in the order chosen. There must be room for all running jobs.
    """
    asked, owner, job_class = job
    entitled, is_enough = owners.entitled[owner], idle >= asked
    if would_exceed(asked, job_class, owners.used_fixed[owner], entitled, rules.literal):
        return REFUSE, 0
    owed = is_claim(asked, owners.used[owner], entitled)
    is_room = idle + coming > asked if rules.literal else is_enough and (owed or owners.promised[owner] == 0)
    if is_room or (owed and idle + coming >= asked):
        return (START if is_enough else VACATE), 0
    if not owed:
        return REFUSE, 0
    found = _choose(running, owners, asked - idle - coming, now_s, rules, victims)
    if found == 0:
        return (REFUSE if rules.literal else WAIT), 0
    return VACATE, found


def _choose(  # noqa: PLR0917 - numba takes no keywords
    running: Running, owners: Owners, missing: int, now_s: float, rules: Rules, victims: NDArray[np.int64]
) -> int:
    """Write to `victims` the running jobs that free the missing units; return how many. 0 if there are too few."""
    left = owners.used.copy()
    is_chosen = np.zeros(len(running.units), np.bool_)
    found = 0
    surplus = -missing
    while surplus < 0:
        best = _next_victim(running, owners.entitled, left, is_chosen, now_s, rules)
        if best < 0:
            return 0
        is_chosen[best] = True
        left[running.owner[best]] -= running.units[best]
        victims[found] = best
        found += 1
        surplus += running.gives[best]
    if rules.literal:
        return found
    # Those chosen first may not be needed beside those chosen last; who was the last to be chosen is spared first.
    for turn in range(found - 1, -1, -1):
        at = victims[turn]
        if running.gives[at] <= surplus:
            surplus -= running.gives[at]
            is_chosen[at] = False
    kept = 0
    for turn in range(found):
        if is_chosen[victims[turn]]:
            victims[kept] = victims[turn]
            kept += 1
    return kept


def _next_victim(  # noqa: PLR0917 - numba takes no keywords
    running: Running,
    entitled: NDArray[np.int64],
    left: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
    now_s: float,
    rules: Rules,
) -> int:
    """Return the running job that is preempted next, where the owners have so many units left; -1 if there is none."""
    best = -1
    best_is_young = False
    best_below = 0
    best_cost_s = 0.0
    for at in range(len(running.units)):
        owner = running.owner[at]
        is_young = now_s < running.since_s[at] + rules.quantum_s
        below = 0
        lost_s = 0.0
        if is_chosen[at] or running.gives[at] == 0:
            continue
        if not rules.literal:
            if running.job_class[at] == 0 or left[owner] <= entitled[owner] or (rules.protects and is_young):
                continue
            below = max(0, entitled[owner] - (left[owner] - running.units[at]))
            lost_s = running.cost_s[at] if running.job_class[at] == 2 else now_s - running.since_s[at]
        if best >= 0:
            if is_young != best_is_young:
                is_better = best_is_young
            elif below != best_below:
                is_better = below < best_below
            elif running.priority[at] != running.priority[best]:
                is_better = running.priority[at] < running.priority[best]
            else:
                is_better = lost_s < best_cost_s
            if not is_better:
                continue
        best = at
        best_is_young = is_young
        best_below = below
        best_cost_s = lost_s
    return best
