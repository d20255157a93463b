"""Memoryless fair share: whether a waiting job starts, and who is vacated for it. Pure.

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

A caller asks for each waiting job in turn, and takes each answer before it asks for the next:

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

import numpy as np
from numpy.typing import NDArray

REFUSE = 0
"""It is not entitled to a start, and there is not enough idle."""
START = 1
"""It starts now, on idle units."""
VACATE = 2
"""It is to have what is idle, what is coming and what the victims give (there may be none), and starts when it has."""
WAIT = 3
"""It is entitled to a start, but those who must give way are within their quantum, or there are none."""


def decide(  # noqa: PLR0912, PLR0915, PLR0917 - one function: the compiled one may call no other, numba takes no keywords
    asked: int,
    owner: int,
    job_class: int,
    now_s: float,
    units: NDArray[np.int64],
    gives: NDArray[np.int64],
    owners: NDArray[np.int64],
    classes: NDArray[np.int64],
    priority: NDArray[np.int64],
    since_s: NDArray[np.float64],
    cost_s: NDArray[np.float64],
    used: NDArray[np.int64],
    used_fixed: NDArray[np.int64],
    promised: NDArray[np.int64],
    entitled: NDArray[np.int64],
    idle: int,
    coming: int,
    quantum_s: float,
    protects: bool,
    literal: bool,
) -> tuple[int, NDArray[np.int64]]:
    """What becomes of one waiting job, and the positions of the running jobs to vacate for it, in the order chosen.

    The job asks for `asked` units (nodes, or processors). Classes are 0 non-preemptible, 1 preemptible (it is killed),
    2 checkpointable (it is saved). `units` to `cost_s` have one entry a running job: what it holds, what of that this
    job could use (all of it, where units need only be counted), whose it is, its priority (more is better), since when
    it runs without a break, and what saving it would take. `used`, of it `used_fixed` (by non-preemptible jobs) and
    `promised` (to claims that have not started), and `entitled` have one entry an owner; what is being vacated is not
    used. `idle` units can be had now, `coming` ones soon.
    """
    victims = np.empty(0, np.int64)
    is_fixed = job_class == 0
    if literal:
        if is_fixed and used_fixed[owner] + asked >= entitled[owner]:
            return REFUSE, victims
        is_room = idle + coming > asked
    else:
        if is_fixed and used_fixed[owner] + asked > entitled[owner]:
            return REFUSE, victims
        is_claim = asked <= entitled[owner] - used[owner]
        is_room = idle >= asked and (is_claim or promised[owner] == 0)
    if is_room:
        return (START if idle >= asked else VACATE), victims
    if asked > entitled[owner] - used[owner]:
        return REFUSE, victims
    if idle + coming >= asked:
        return (START if idle >= asked else VACATE), victims

    victims = np.empty(len(units), np.int64)
    left = used.copy()
    is_chosen = np.zeros(len(units), np.bool_)
    found = 0
    freed = 0
    while idle + coming + freed < asked:
        best = -1
        best_is_young = False
        best_below = 0
        best_cost_s = 0.0
        for at in range(len(units)):
            whose = owners[at]
            is_young = now_s < since_s[at] + quantum_s
            below = 0
            lost_s = 0.0
            if is_chosen[at] or gives[at] == 0:
                continue
            if not literal:
                if classes[at] == 0 or left[whose] <= entitled[whose] or (protects and is_young):
                    continue
                below = max(0, entitled[whose] - (left[whose] - units[at]))
                lost_s = cost_s[at] if classes[at] == 2 else now_s - since_s[at]
            if best >= 0:
                if is_young != best_is_young:
                    is_better = best_is_young
                elif below != best_below:
                    is_better = below < best_below
                elif priority[at] != priority[best]:
                    is_better = priority[at] < priority[best]
                else:
                    is_better = lost_s < best_cost_s
                if not is_better:
                    continue
            best = at
            best_is_young = is_young
            best_below = below
            best_cost_s = lost_s
        if best < 0:
            return (REFUSE if literal else WAIT), victims[:0]
        is_chosen[best] = True
        left[owners[best]] -= units[best]
        victims[found] = best
        found += 1
        freed += gives[best]
    if literal:
        return VACATE, victims[:found]
    # Those chosen first may not be needed beside those chosen last; who was the last to be chosen is spared first.
    surplus = idle + coming + freed - asked
    for turn in range(found - 1, -1, -1):
        at = victims[turn]
        if gives[at] <= surplus:
            surplus -= gives[at]
            is_chosen[at] = False
    kept = 0
    for turn in range(found):
        if is_chosen[victims[turn]]:
            victims[kept] = victims[turn]
            kept += 1
    return VACATE, victims[:kept]
