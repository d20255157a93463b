"""The states of jobs (waiting, running, being saved, or promised units), and the steps between these states. This
module is compiled.

A victim that can be saved holds its units while it is saved, and then waits again in its place in the queue. When the
victim starts again, it first restores and then computes the remaining work. A victim that is killed frees its units at
once and starts over. A victim that has computed nothing since its start needs no save, because its checkpoint still
exists. If it started at this very instant, it counts as not started. Units that a victim frees go to the claim for
which it was preempted, then to the other claims in order. The remaining units are idle.
"""

import math
from typing import NamedTuple

import numpy as np

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.model import Counts, Machine, Stretches, Workload
from gleaner.control.simulation.replay import array_policies
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.records import RecordArray, record_type
from gleaner.control.simulation.settings import OmfsSettings

FIXED = int(JobClass.NON_PREEMPTIBLE)
SAVED = int(JobClass.CHECKPOINTABLE)
TAKEN = -1
"""The mark in the queue for a job that has just left it."""
NOBODY = -1
"""The mark for no job."""

_COUNTS = record_type(integers="idle waiting back running saving claims stretches saves")
"""The idle units, the number of entries in each list (`back` is that of `again`), and the number of saves of jobs so
far."""
_COST = record_type(floats="constant_s node_s shared_s")
"""The parts of `CostSettings.seconds`, namely the constant, the time at the node's bandwidth, and the time at the
shared storage's bandwidth."""
_JOB = record_type(
    integers="units owner job_class",
    floats="submit_s left_s start_s end_s",
    flags="has_image",
    save=_COST,
    restore=_COST,
)
_SAVING = record_type(integers="job claimant", floats="since_s restoring_s saved_from_s until_s")
"""`claimant` is the job for whose claim this job is saved, and `since_s` the beginning of the stretch."""
_CLAIM = record_type(integers="job missing lent of_owner")
"""`missing` is the number of units that the claim does not have yet, of which agents owe `lent`. `of_owner` is the
number of units that count as promised to the claim's owner."""
_RUNNING = np.dtype([*array_policies.RUNNING, ("job", np.int64), ("restoring_s", np.float64), ("until_s", np.float64)])
"""`restoring_s` is the duration of the restore at the beginning of the stretch."""
_STRETCH = record_type(integers="job units", floats="start_s end_s restore_s save_s lost_s")


class OmfsState(NamedTuple):
    """The whole state of a replay. The number of entries in each list is in `counts`."""

    counts: RecordArray
    """One record."""
    jobs: RecordArray
    queue: Counts
    """The waiting jobs, in order of submission."""
    again: Counts
    """The jobs that wait again after this walk over the queue."""
    owners: array_policies.Owners
    running: RecordArray
    """The running jobs, in no order."""
    saving: RecordArray
    claims: RecordArray
    """The claims, in the order in which they were granted."""
    victims: Counts
    """Space for the running entries that a decision preempts."""
    stretches: RecordArray
    """The stretches, in the order of their ends."""
    rules: array_policies.OmfsRules


def at_first(workload: Workload, machine: Machine, settings: OmfsSettings, entitled: Counts) -> OmfsState:
    """Return the initial state, without waiting or running jobs."""
    count = len(workload)
    room = min(count, machine.units) + 1
    counts, jobs = np.zeros(1, _COUNTS), np.zeros(count, _JOB)
    counts["idle"] = machine.units
    jobs["units"] = machine.units_asked(workload.processors)
    jobs["owner"] = workload.group
    jobs["job_class"] = workload.job_class
    jobs["left_s"] = workload.run_s / machine.classes[0].speed
    jobs["start_s"] = jobs["end_s"] = math.nan
    for name, cost in (("save", settings.save), ("restore", settings.restore)):
        jobs[name]["constant_s"] = cost.constant_s
        jobs[name]["node_s"] = workload.memory_mib / cost.node_mib_s if cost.node_mib_s else 0.0
        jobs[name]["shared_s"] = workload.memory_mib / cost.shared_mib_s if cost.shared_mib_s else 0.0
    return OmfsState(
        counts,
        jobs,
        queue=np.empty(count, np.int64),
        again=np.empty(count, np.int64),
        owners=array_policies.Owners(
            np.zeros_like(entitled), np.zeros_like(entitled), np.zeros_like(entitled), entitled
        ),
        running=np.empty(room, _RUNNING),
        saving=np.empty(room, _SAVING),
        claims=np.empty(room, _CLAIM),
        victims=np.empty(room, np.int64),
        stretches=np.empty(count + 2 * room, _STRETCH),
        rules=array_policies.OmfsRules(float(settings.quantum_s), settings.quantum_protects, settings.literal),
    )


@inner
def has_room(state: OmfsState) -> bool:
    """Return True if there is room for the stretches of one more instant, at which all running jobs and all saves might
    end."""
    return bool(len(state.stretches) >= state.counts[0].stretches + 2 * len(state.saving))


def stretches_of(state: OmfsState) -> Stretches:
    """Return the stretches, in order of starts."""
    found = state.stretches[: state.counts["stretches"][0]]
    found = found[np.lexsort((found["job"], found["start_s"]))]
    columns = {name: np.ascontiguousarray(found[name]) for name in _STRETCH.fields or ()}
    return Stretches(**columns, node=np.full(len(found), -1, np.int32))


@inner
def hold(state: OmfsState, job: int, units: int) -> None:
    """Count this many more units as used by the job's owner, or fewer if `units` is negative."""
    state.owners.used[state.jobs[job].owner] += units
    if state.jobs[job].job_class == FIXED:
        state.owners.used_fixed[state.jobs[job].owner] += units


@inner
def begin(state: OmfsState, job: int, now_s: float) -> None:
    """Begin to run a job whose units are held. A saved job is restored first, at the same time as all jobs that are
    already being restored."""
    at = state.counts[0].running
    state.counts[0].running += 1
    restore_s = 0.0
    if state.jobs[job].has_image:
        at_once = 1
        for other in range(at):
            if state.running[other].since_s + state.running[other].restoring_s > now_s:
                at_once += 1
        restore_s = state.jobs[job].restore.constant_s + max(
            state.jobs[job].restore.node_s, at_once * state.jobs[job].restore.shared_s
        )
    new = state.running[at]
    new.job = job
    new.units = state.jobs[job].units
    new.owner = state.jobs[job].owner
    new.job_class = state.jobs[job].job_class
    new.priority = -job
    new.since_s = now_s
    new.restoring_s = restore_s
    new.cost_s = state.jobs[job].save.constant_s + max(state.jobs[job].save.node_s, state.jobs[job].save.shared_s)
    new.until_s = now_s + restore_s + state.jobs[job].left_s
    if np.isnan(state.jobs[job].start_s):
        state.jobs[job].start_s = now_s


@inner
def leave(state: OmfsState, at: int) -> None:
    """Remove an entry from the running jobs. The last entry takes its place."""
    state.counts[0].running -= 1
    state.running[at] = state.running[state.counts[0].running]


@inner
def record(  # noqa: PLR0917 - numba takes no keywords
    state: OmfsState, job: int, since_s: float, end_s: float, restore_s: float, save_s: float, lost_s: float
) -> None:
    """Record one more stretch."""
    stretch = state.stretches[state.counts[0].stretches]
    state.counts[0].stretches += 1
    stretch.job = job
    stretch.start_s = since_s
    stretch.end_s = end_s
    stretch.units = state.jobs[job].units
    stretch.restore_s = restore_s
    stretch.save_s = save_s
    stretch.lost_s = lost_s


@inner
def give(state: OmfsState, units: int, first: int) -> None:
    """Give freed units first to the claim of the job `first`, if it has one, then to the other claims in order. The
    rest is idle."""
    claims = state.counts[0].claims
    for turn in range(2 * claims):
        at = turn % claims
        if turn < claims and state.claims[at].job != first:
            continue
        part = min(units, state.claims[at].missing)
        state.claims[at].missing -= part
        state.claims[at].lent = min(state.claims[at].lent, state.claims[at].missing)
        units -= part
    state.counts[0].idle += units


@inner
def repay(state: OmfsState, units: int) -> None:
    """Give the units that agents have freed to the claims to which agents owe units, then to the other claims."""
    for at in range(state.counts[0].claims):
        part = min(units, state.claims[at].lent)
        state.claims[at].lent -= part
        state.claims[at].missing -= part
        units -= part
    give(state, units, NOBODY)


@inner
def vacate(  # noqa: PLR0917 - numba takes no keywords
    state: OmfsState, at: int, now_s: float, at_once: int, claimant: int, drops: bool
) -> None:
    """Preempt the running entry `at` for the job `claimant`. With `drops`, a job that cannot be saved never returns."""
    n = state.counts[0]
    job = state.running[at].job
    since_s = state.running[at].since_s
    restored_s = min(state.running[at].restoring_s, now_s - since_s)
    computed_s = now_s - since_s - restored_s
    can_be_saved = state.jobs[job].job_class == SAVED
    hold(state, job, -state.jobs[job].units)
    leave(state, at)
    if can_be_saved and computed_s > 0:
        entry = n.saving
        state.saving[entry].job = job
        state.saving[entry].claimant = claimant
        state.saving[entry].since_s = since_s
        state.saving[entry].restoring_s = restored_s
        state.saving[entry].saved_from_s = now_s
        shared_s = at_once * state.jobs[job].save.shared_s
        state.saving[entry].until_s = (
            now_s + state.jobs[job].save.constant_s + max(state.jobs[job].save.node_s, shared_s)
        )
        n.saving += 1
        n.saves += 1
        state.jobs[job].left_s -= computed_s
        state.jobs[job].has_image = True
        return
    if now_s > since_s:
        record(state, job, since_s, now_s, restored_s, 0.0, computed_s)
    elif state.jobs[job].start_s == now_s:
        state.jobs[job].start_s = np.nan
    if can_be_saved or not drops:
        state.again[n.back] = job
        n.back += 1
    give(state, state.jobs[job].units, claimant)


@inner
def grant(  # noqa: PLR0917 - numba takes no keywords
    state: OmfsState, job: int, victims: Counts, lent: int, now_s: float, drops: bool
) -> None:
    """Promise a job its units, from the idle units, the units that will soon be free, and those of the victims (running
    entries).

    Of the units that count as idle, `lent` are lent to agents. If the job lacks no other units, it starts as if on idle
    units, and no units count as promised to its owner.
    """
    n, units = state.counts[0], state.jobs[job].units
    taken = min(n.idle, units)
    missing = units - taken
    promised = units if lent < missing else 0
    n.idle -= taken
    hold(state, job, units)
    claim = n.claims
    state.claims[claim].job = job
    state.claims[claim].missing = missing
    state.claims[claim].lent = min(lent, missing)
    state.claims[claim].of_owner = promised
    state.owners.promised[state.jobs[job].owner] += promised
    n.claims += 1
    at_once = n.saving
    for at in victims:
        if state.running[at].job_class == SAVED and now_s > state.running[at].since_s + state.running[at].restoring_s:
            at_once += 1
    for at in range(n.running - 1, -1, -1):  # backwards, because the last entry replaces a removed one
        for victim in victims:
            if victim == at:
                vacate(state, at, now_s, at_once, job, drops)
    begin_complete(state, now_s)


@inner
def begin_complete(state: OmfsState, now_s: float) -> None:
    """Start the jobs whose claims have all of their units."""
    kept = 0
    for at in range(state.counts[0].claims):
        if state.claims[at].missing == 0:
            job = state.claims[at].job
            state.owners.promised[state.jobs[job].owner] -= state.claims[at].of_owner
            begin(state, job, now_s)
        else:
            state.claims[kept] = state.claims[at]
            kept += 1
    state.counts[0].claims = kept


@inner
def wait_again(state: OmfsState) -> None:
    """Remove the jobs that have left from the queue, and insert the jobs that wait again, in order of submission."""
    n, queue = state.counts[0], state.queue
    kept = 0
    for place in range(n.waiting):
        if queue[place] != TAKEN:
            queue[kept] = queue[place]
            kept += 1
    for entry in range(n.back):
        job = state.again[entry]
        place = kept
        while place > 0 and queue[place - 1] > job:
            queue[place] = queue[place - 1]
            place -= 1
        queue[place] = job
        kept += 1
    n.waiting = kept
    n.back = 0


@inner
def end_due(state: OmfsState, now_s: float) -> bool:
    """Free the units of jobs and saves that have ended by now. A saved job will wait again. Return True if any of them
    ended."""
    n = state.counts[0]
    was = n.stretches
    for at in range(n.running - 1, -1, -1):
        if state.running[at].until_s <= now_s:
            job, end_s = state.running[at].job, state.running[at].until_s
            record(state, job, state.running[at].since_s, end_s, state.running[at].restoring_s, 0.0, 0.0)
            state.jobs[job].end_s = end_s
            hold(state, job, -state.jobs[job].units)
            leave(state, at)
            give(state, state.jobs[job].units, job)
    kept = 0
    for at in range(n.saving):
        job, end_s = state.saving[at].job, state.saving[at].until_s
        if end_s <= now_s:
            save_s = end_s - state.saving[at].saved_from_s
            record(state, job, state.saving[at].since_s, end_s, state.saving[at].restoring_s, save_s, 0.0)
            state.again[n.back] = job
            n.back += 1
            give(state, state.jobs[job].units, state.saving[at].claimant)
        else:
            state.saving[kept] = state.saving[at]
            kept += 1
    n.saving = kept
    return bool(n.stretches > was)
