"""Jobs that wait, run, are being saved or were promised units, and the steps from one state to the other. Compiled.

A victim that can be saved holds its units while it is saved, and then waits again in its place of the queue. When the
victim starts again, it first restores and then computes what was left. A victim that is killed frees its units at once
and starts over. A victim that has computed nothing since its start needs no save: what it was restored from is still
there. If it started at this very instant, nothing has happened. Units that a victim frees go to the claim for which it
was preempted, then to the earlier claims. What is left is idle.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy import omfs
from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.model import Counts, Machine, Seconds, Stretches, Workload
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.settings import CostSettings, EntitlementSettings

Whole = NDArray[np.int64]
"""A table with one row per field and one column per entry: few tables compile much faster than many arrays."""
Times = NDArray[np.float64]
Rows = NDArray[np.float64]
"""One row per stretch: job, start, end, units, and the seconds in restore, in save and lost."""

FIXED = int(JobClass.NON_PREEMPTIBLE)
SAVED = int(JobClass.CHECKPOINTABLE)
TAKEN = -1
"""The mark in the queue for a job that has just left it."""
NOBODY = -1
"""The mark for no job."""


class State(NamedTuple):
    """The whole state of a replay. The constants below name the rows of each table."""

    n: Counts
    job: Whole
    job_s: Times
    queue: Whole
    owner: Whole
    run: Whole
    run_s: Times
    save: Whole
    save_s: Times
    claim: Whole
    victims: Counts
    """Room for the running entries that a decision preempts."""
    rows: Rows
    """The stretches, in the order of their ends."""
    rules: omfs.Rules


# n: the idle units, the number of entries in each list, the number of saves of jobs so far, and the units of the
# smallest claim that was told to wait in this walk.
IDLE, WAITING, BACK, RUNNING, SAVING, CLAIMS, ROWS, SAVES, LEAST_CLAIM = range(9)
# job: the last row says whether the job has been saved.
UNITS, OWNER, CLASS, IMAGE = range(4)
# job_s: the last six rows are the parts of `CostSettings.seconds`: constant, through the node, shared by all at once.
SUBMIT, LEFT, START, END, SAVE, NODE_SAVE, SHARED_SAVE, RESTORE, NODE_RESTORE, SHARED_RESTORE = range(10)
# queue: the jobs in order of submission; and the jobs that wait again once this walk is over.
QUEUE, AGAIN = range(2)
# owner: the units used in all, of these the units of non-preemptible jobs and of claims that wait for more than agents;
# and the units that the owner is entitled to.
USED, USED_FIXED, PROMISED, ENTITLED = range(4)
# run, in no order. The first row is in all three lists.
JOB, RUN_UNITS, RUN_OWNER, RUN_CLASS, RUN_PRIORITY = range(5)
# run_s and save_s: when the stretch began, and how long it restores; then for run_s the time of a save alone, for
# save_s since when it is saved; and the end.
SINCE, RESTORING, COST, UNTIL = range(4)
SAVED_FROM = COST
# save: the job whose claim it is for. claim, in the order in which claims were granted: how many units the claim does
# not have yet, how many of these agents owe the claim, and how many count as promised to the claim's owner.
FOR = 1
MISSING, LENT, OF_OWNER = 1, 2, 3


def at_first(workload: Workload, machine: Machine, settings: EntitlementSettings, entitled: Counts) -> State:
    """Return the state in which nothing waits and nothing runs."""
    count, units = len(workload), machine.units_asked(workload.processors)
    room = min(count, machine.units) + 1
    nothing, never = np.zeros(count), np.full(count, math.nan)
    times_s = [workload.submit_s, workload.run_s / machine.classes[0].speed, never, never]
    return State(
        n=np.array([machine.units, *[0] * 8], np.int64),
        job=np.array([units, workload.group, workload.job_class, nothing], np.int64),
        job_s=np.array([*times_s, *_cost(settings.save, workload), *_cost(settings.restore, workload)]),
        queue=np.empty((2, count), np.int64),
        owner=np.array([*(np.zeros_like(entitled) for _ in range(ENTITLED)), entitled]),
        run=np.empty((5, room), np.int64),
        run_s=np.empty((4, room)),
        save=np.empty((2, room), np.int64),
        save_s=np.empty((4, room)),
        claim=np.empty((4, room), np.int64),
        victims=np.empty(room, np.int64),
        rows=np.empty((count + 2 * room, 7)),
        rules=omfs.Rules(float(settings.quantum_s), settings.quantum_protects, settings.literal),
    )


@inner
def has_room(state: State) -> bool:
    """Return True if the stretches of one more instant have room: as many as run or are being saved may end."""
    return bool(len(state.rows) >= state.n[ROWS] + 2 * state.run.shape[1])


def _cost(cost: CostSettings, workload: Workload) -> list[Seconds]:
    """Return the three parts of `CostSettings.seconds` for each job."""
    memory_mib, nothing = workload.memory_mib, np.zeros(len(workload))
    return [
        nothing + cost.constant_s,
        memory_mib / cost.node_mib_s if cost.node_mib_s else nothing,
        memory_mib / cost.shared_mib_s if cost.shared_mib_s else nothing,
    ]


def stretches_of(state: State) -> Stretches:
    """Return the stretches, in order of starts."""
    rows = state.rows[: state.n[ROWS]]
    rows = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    job, start_s, end_s, units, restore_s, save_s, lost_s = (np.ascontiguousarray(column) for column in rows.T)
    nowhere = np.full(len(rows), -1, np.int32)
    return Stretches(job.astype(np.int64), start_s, end_s, units.astype(np.int64), restore_s, save_s, lost_s, nowhere)


@inner
def hold(state: State, job: int, units: int) -> None:
    """Count this many more units as used by the job's owner; fewer if `units` is negative."""
    state.owner[USED, state.job[OWNER, job]] += units
    if state.job[CLASS, job] == FIXED:
        state.owner[USED_FIXED, state.job[OWNER, job]] += units


@inner
def begin(state: State, job: int, now_s: float) -> None:
    """Begin to run a job whose units are held. A saved job restores first, beside all jobs that restore already."""
    at = state.n[RUNNING]
    state.n[RUNNING] += 1
    restore_s = 0.0
    if state.job[IMAGE, job]:
        at_once = 1
        for other in range(at):
            if state.run_s[SINCE, other] + state.run_s[RESTORING, other] > now_s:
                at_once += 1
        restore_s = state.job_s[RESTORE, job] + max(
            state.job_s[NODE_RESTORE, job], at_once * state.job_s[SHARED_RESTORE, job]
        )
    state.run[JOB, at] = job
    state.run[RUN_UNITS, at] = state.job[UNITS, job]
    state.run[RUN_OWNER, at] = state.job[OWNER, job]
    state.run[RUN_CLASS, at] = state.job[CLASS, job]
    state.run[RUN_PRIORITY, at] = -job
    state.run_s[SINCE, at] = now_s
    state.run_s[RESTORING, at] = restore_s
    state.run_s[COST, at] = state.job_s[SAVE, job] + max(state.job_s[NODE_SAVE, job], state.job_s[SHARED_SAVE, job])
    state.run_s[UNTIL, at] = now_s + restore_s + state.job_s[LEFT, job]
    if np.isnan(state.job_s[START, job]):
        state.job_s[START, job] = now_s


@inner
def moved(whole: Whole, times_s: Times, to: int, at: int) -> None:
    """Copy entry `at` of a list to entry `to`."""
    for row in range(len(whole)):
        whole[row, to] = whole[row, at]
    for row in range(len(times_s)):
        times_s[row, to] = times_s[row, at]


@inner
def record(  # noqa: PLR0917 - numba takes no keywords
    state: State, job: int, since_s: float, end_s: float, restore_s: float, save_s: float, lost_s: float
) -> None:
    """Record one more stretch."""
    rows, at = state.rows, state.n[ROWS]
    state.n[ROWS] += 1
    rows[at, 0] = job
    rows[at, 1] = since_s
    rows[at, 2] = end_s
    rows[at, 3] = state.job[UNITS, job]
    rows[at, 4] = restore_s
    rows[at, 5] = save_s
    rows[at, 6] = lost_s


@inner
def give(state: State, units: int, first: int) -> None:
    """Give freed units to the claim of the job `first`, if any, then to the other claims in order. The rest is idle."""
    claims = state.n[CLAIMS]
    for turn in range(2 * claims):
        at = turn % claims
        if turn < claims and state.claim[JOB, at] != first:
            continue
        part = min(units, state.claim[MISSING, at])
        state.claim[MISSING, at] -= part
        state.claim[LENT, at] = min(state.claim[LENT, at], state.claim[MISSING, at])
        units -= part
    state.n[IDLE] += units


@inner
def repay(state: State, units: int) -> None:
    """Give units that agents have freed first to the claims to which agents owe them, then to the other claims."""
    for at in range(state.n[CLAIMS]):
        part = min(units, state.claim[LENT, at])
        state.claim[LENT, at] -= part
        state.claim[MISSING, at] -= part
        units -= part
    give(state, units, NOBODY)


@inner
def vacate(  # noqa: PLR0917 - numba takes no keywords
    state: State, at: int, now_s: float, at_once: int, claimant: int, drops: bool
) -> None:
    """Preempt the running entry `at` for the job `claimant`. With `drops` a job that cannot be saved never returns."""
    n = state.n
    job = state.run[JOB, at]
    since_s = state.run_s[SINCE, at]
    restored_s = min(state.run_s[RESTORING, at], now_s - since_s)
    computed_s = now_s - since_s - restored_s
    can_be_saved = state.job[CLASS, job] == SAVED
    hold(state, job, -state.job[UNITS, job])
    n[RUNNING] -= 1
    moved(state.run, state.run_s, at, n[RUNNING])
    if can_be_saved and computed_s > 0:
        entry = n[SAVING]
        state.save[JOB, entry] = job
        state.save[FOR, entry] = claimant
        state.save_s[SINCE, entry] = since_s
        state.save_s[RESTORING, entry] = restored_s
        state.save_s[SAVED_FROM, entry] = now_s
        shared_s = at_once * state.job_s[SHARED_SAVE, job]
        state.save_s[UNTIL, entry] = now_s + state.job_s[SAVE, job] + max(state.job_s[NODE_SAVE, job], shared_s)
        n[SAVING] += 1
        n[SAVES] += 1
        state.job_s[LEFT, job] -= computed_s
        state.job[IMAGE, job] = 1
        return
    if now_s > since_s:
        record(state, job, since_s, now_s, restored_s, 0.0, computed_s)
    elif state.job_s[START, job] == now_s:
        state.job_s[START, job] = np.nan
    if can_be_saved or not drops:
        state.queue[AGAIN, n[BACK]] = job
        n[BACK] += 1
    give(state, state.job[UNITS, job], claimant)


@inner
def grant(  # noqa: PLR0917 - numba takes no keywords
    state: State, job: int, victims: Counts, lent: int, now_s: float, drops: bool
) -> None:
    """Promise a job its units: idle units, coming units, and the units that the victims (running entries) free.

    `lent` units that count as idle are lent to agents. A job that misses no other units starts as if on idle units: its
    owner is promised nothing.
    """
    n, units = state.n, state.job[UNITS, job]
    taken = min(n[IDLE], units)
    missing = units - taken
    promised = units if lent < missing else 0
    n[IDLE] -= taken
    hold(state, job, units)
    claim = n[CLAIMS]
    state.claim[JOB, claim] = job
    state.claim[MISSING, claim] = missing
    state.claim[LENT, claim] = min(lent, missing)
    state.claim[OF_OWNER, claim] = promised
    state.owner[PROMISED, state.job[OWNER, job]] += promised
    n[CLAIMS] += 1
    at_once = n[SAVING]
    for at in victims:
        if state.run[RUN_CLASS, at] == SAVED and now_s > state.run_s[SINCE, at] + state.run_s[RESTORING, at]:
            at_once += 1
    for at in range(n[RUNNING] - 1, -1, -1):  # the last entry takes the place of an entry that leaves
        for victim in victims:
            if victim == at:
                vacate(state, at, now_s, at_once, job, drops)
    begin_complete(state, now_s)


@inner
def begin_complete(state: State, now_s: float) -> None:
    """Start the claims that have all of their units."""
    kept = 0
    for at in range(state.n[CLAIMS]):
        if state.claim[MISSING, at] == 0:
            job = state.claim[JOB, at]
            state.owner[PROMISED, state.job[OWNER, job]] -= state.claim[OF_OWNER, at]
            begin(state, job, now_s)
        else:
            state.claim[JOB, kept] = state.claim[JOB, at]
            state.claim[MISSING, kept] = state.claim[MISSING, at]
            state.claim[LENT, kept] = state.claim[LENT, at]
            state.claim[OF_OWNER, kept] = state.claim[OF_OWNER, at]
            kept += 1
    state.n[CLAIMS] = kept


@inner
def wait_again(state: State) -> None:
    """Remove from the queue the jobs that left it, and put the jobs that wait again into it, in order of submission."""
    n, queue = state.n, state.queue
    kept = 0
    for place in range(n[WAITING]):
        if queue[QUEUE, place] != TAKEN:
            queue[QUEUE, kept] = queue[QUEUE, place]
            kept += 1
    for entry in range(n[BACK]):
        job = queue[AGAIN, entry]
        place = kept
        while place > 0 and queue[QUEUE, place - 1] > job:
            queue[QUEUE, place] = queue[QUEUE, place - 1]
            place -= 1
        queue[QUEUE, place] = job
        kept += 1
    n[WAITING] = kept
    n[BACK] = 0


@inner
def end_due(state: State, now_s: float) -> bool:
    """Free the units of jobs and saves that end by now; a saved job is to wait again. Return True if any ended."""
    n = state.n
    was = n[ROWS]
    for at in range(n[RUNNING] - 1, -1, -1):
        job, end_s = state.run[JOB, at], state.run_s[UNTIL, at]
        if end_s <= now_s:
            record(state, job, state.run_s[SINCE, at], end_s, state.run_s[RESTORING, at], 0.0, 0.0)
            state.job_s[END, job] = end_s
            hold(state, job, -state.job[UNITS, job])
            n[RUNNING] -= 1
            moved(state.run, state.run_s, at, n[RUNNING])
            give(state, state.job[UNITS, job], job)
    kept = 0
    for at in range(n[SAVING]):
        job, end_s = state.save[JOB, at], state.save_s[UNTIL, at]
        if end_s <= now_s:
            save_s = end_s - state.save_s[SAVED_FROM, at]
            record(state, job, state.save_s[SINCE, at], end_s, state.save_s[RESTORING, at], save_s, 0.0)
            state.queue[AGAIN, n[BACK]] = job
            n[BACK] += 1
            give(state, state.job[UNITS, job], state.save[FOR, at])
        else:
            moved(state.save, state.save_s, kept, at)
            kept += 1
    n[SAVING] = kept
    return bool(n[ROWS] > was)
