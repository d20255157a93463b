"""Disciplines that keep one queue, on machines whose units need only be counted: first come, first served, EASY and
conservative backfilling, linear priority and Simultaneous Fair-Share. They share one loop, which is compiled for each
of three queues.

The rule for one instant: first, what ends frees its units. Then what is submitted joins the queue. Then one decision is
taken with all of it known, or at the next multiple of `decide_every_s`. Without an arrival or an end since a decision
there is no other decision. A job that runs for no time at all ends at the instant of its start, after that decision.

In a queue by arrival, the queue is the workload itself, and `policy.backfill` decides. In a queue by rank, the order is
by priority, of equal priorities by arrival, and `policy.fair_share` decides. All priorities grow alike with time (see
`fair_share.priorities`), so a job's place does not change.

In a queue by promise (`conservative`) there is a decision at every instant, and each promise is an instant of its own.

Agents (`agents`) start last. To the scheduler, agents are work with a known end. With preemption, the scheduler sees no
agents: it decides as though their nodes were free, and what it starts on these nodes waits for the agents' saves.
Agents delay no promise. Without a promise, no agent starts while the first job waits for agents alone.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy import backfill, fair_share
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.replay import conservative
from gleaner.control.simulation.replay.agent_starts import close, decide, held, held_past, next_s, release
from gleaner.control.simulation.replay.agents import AgentLog, Finite, is_full, larger_log, layer_of, stretches
from gleaner.control.simulation.replay.compiler import compiled, inner, loop, making
from gleaner.control.simulation.replay.conservative import ByPromise, due, end_released, enter, hold, idle_units, leave
from gleaner.control.simulation.replay.heap import expect, forget, pop, push
from gleaner.control.simulation.schedule import Schedule, no_stretches, uninterrupted
from gleaner.control.simulation.settings import AgentSettings, Backfill, Discipline, SchedulerSettings, ShareSettings
from gleaner.control.simulation.workload import Codes, Counts, Seconds, Workload, refuse_strangers

easy = inner(backfill.easy)
choose = making(fair_share.core)


class _Jobs(NamedTuple):
    """The workload on this machine. The replay fills `start_s` and `end_s`, and with `keep_waiting` also `submit_s`."""

    submit_s: Seconds
    run_s: Seconds
    limit_s: Seconds
    units: Counts
    start_s: Seconds
    end_s: Seconds


class _ByArrival(NamedTuple):
    """A queue in which a job's place is its number. A job that overtook others leaves a gap."""

    units: Counts
    """`backfill.GONE` for a job that has started."""
    least_units: Counts
    least_limit_s: Seconds


class _ByRank(NamedTuple):
    """A queue by descending priority, without gaps."""

    queue: Counts
    key: Seconds
    """The priority that each job would have at time 0; with `keep_waiting`, if the job had entered the queue at 0."""
    per_second: float
    owner: Codes
    targets: NDArray[np.float64]
    holds: Counts
    """The units of each owner's running jobs."""


class _Place(NamedTuple):
    """Room for the running jobs, the expected ends, and the jobs that a decision starts."""

    heap_s: Seconds
    heap_job: Counts
    ends_s: Seconds
    ends_units: Counts
    starts: Counts


class _Rules(NamedTuple):
    overtaking: bool
    every_s: float
    until_s: float
    keep_waiting: int


class _Progress(NamedTuple):
    """The state of a replay between two instants."""

    head: int
    tail: int
    """The end of the queue, which is also the number of jobs that have been submitted."""
    waiting: int
    running: int
    ends: int
    """The number of expected ends, or with promises of the profile's steps."""
    free: int
    refused: int
    """The number of jobs, from the queue's head on, that the latest decision refused; 0 if units were freed since."""
    now_s: float
    decide_s: float
    """The instant of the decision for which the latest events asked, or with promises of the next promise."""
    better_until_s: float
    """The time before which a promise may have become better (see `backfill.conservative`)."""


_Fields: TypeAlias = tuple[int, int, int, int, int, int, int, float, float, float]
"""The fields of `_Progress`. Compiled code returns a plain tuple. To make a named one, compiled code would call Python,
where Ctrl-C may interrupt the call, and numba (0.68) does not check whether the call was interrupted."""


def run(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Replay a workload that fits the machine; see `replay`, which checks that and has the same arguments.

    Raise `BadScenario` for a target of somebody who is not among the workload's users, where nobody has a target, and
    for `decide_every_s` with conservative backfilling, which does not have it.
    """
    speed = machine.classes[0].speed
    units = machine.units_asked(workload.processors).copy()  # copied, as below: one type, whatever memory it is in
    submit_s = np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()
    run_s, limit_s = workload.run_s / speed, workload.limit_s / speed
    if scheduler.kind is Discipline.CONSERVATIVE:
        if scheduler.decide_every_s:
            raise BadScenario("conservative backfilling decides whenever a job comes or ends: decide_every_s must be 0")
        limit_s = np.where(limit_s > 0, limit_s, 1.0)  # a promise cannot last for no time at all
    jobs = _Jobs(submit_s, run_s, limit_s, units, *np.full((2, len(workload)), math.nan))
    layer, finite = layer_of(agents, machine)
    by_arrival, by_rank, by_promise, overtaking = None, None, None, scheduler.kind is Discipline.EASY
    from_s = 0.0 if keep_waiting > 0 else -math.inf
    if scheduler.kind in {Discipline.PRIORITY, Discipline.SFS}:
        by_rank = _by_rank(workload, scheduler, units, keep_waiting)
        overtaking = scheduler.priority.backfill is not Backfill.NONE
    elif scheduler.kind is Discipline.CONSERVATIVE:
        by_promise = conservative.by_promise(len(workload), machine.units, from_s, has_agents=layer is not None)
        overtaking = True
    else:
        by_arrival = _ByArrival(units.copy(), _least(units, backfill.GONE), _least(limit_s, math.inf))
    place = _at_first(len(workload), machine.units, has_agents=layer is not None, has_promises=by_promise is not None)
    rules = _Rules(
        overtaking, float(scheduler.decide_every_s), math.inf if until_s is None else float(until_s), keep_waiting
    )
    steps = 0 if by_promise is None else 1
    progress = _Progress(0, 0, 0, 0, steps, machine.units, 0, from_s, math.inf, -math.inf)
    replayed = _by_arrival_replayed if by_rank is None else _by_rank_replayed
    stop_s = math.nan
    while math.isnan(stop_s):
        stop_s, fields = replayed(jobs, by_arrival, by_rank, by_promise, place, progress, rules, layer, finite)
        progress = _Progress(*fields)
        if layer is not None and math.isnan(stop_s):
            layer = larger_log(layer)
    return Schedule(
        workload=replace(workload, submit_s=submit_s) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=jobs.start_s,
        end_s=jobs.end_s,
        jobs=uninterrupted(workload, units, jobs.start_s, jobs.end_s, until_s),
        agents=no_stretches() if layer is None else stretches(layer, layer.log, stop_s),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )


def _by_rank(workload: Workload, scheduler: SchedulerSettings, units: Counts, keep_waiting: int) -> _ByRank:
    if scheduler.kind is Discipline.SFS:
        owner, targets = workload.user, targets_of(workload, scheduler.sfs)
    else:  # nobody is below a target of 0, so one owner will do
        owner, targets = np.zeros(len(workload), np.int32), np.zeros(1)
    weights = scheduler.priority
    since_s = np.zeros(len(workload)) if keep_waiting else workload.submit_s
    limit_s = workload.limit_s  # as users asked for it, whatever the speed of the machine
    key = fair_share.priorities(
        since_s,
        units,
        limit_s,
        now_s=0.0,
        per_second=weights.per_second,
        per_unit=weights.per_unit,
        per_limit_s=weights.per_limit_s,
    )
    return _ByRank(
        queue=np.empty(len(workload), np.int64),
        key=key,
        per_second=float(weights.per_second),
        owner=owner,
        targets=targets,
        holds=np.zeros(len(targets), np.int64),
    )


def targets_of(workload: Workload, share: ShareSettings) -> NDArray[np.float64]:
    """Return the target throughput of each of the workload's users, in units."""
    refuse_strangers("scheduler.sfs.targets", "user", share.targets, workload.users, workload.name)
    targets = share.factor * np.array([share.targets.get(user, share.others) for user in workload.users])
    if not np.any(targets > 0):
        raise BadScenario("scheduler.sfs: nobody has a target throughput; set `targets` or `others`")
    return targets


def _at_first(jobs: int, capacity: int, *, has_agents: bool, has_promises: bool) -> _Place:
    room = min(jobs, capacity) + 1
    most_ends = capacity + 1 if has_agents else room
    return _Place(
        np.empty(room),
        np.empty(room, np.int64),
        np.empty(most_ends),
        np.empty(most_ends, np.int64),
        np.empty(jobs if has_promises else room, np.int64),  # due jobs that wait for agents may ask for more units
    )


def _least(values: Counts | Seconds, nothing: float) -> Any:
    """Return for each block of the queue the least of its jobs' values, one row per level.

    Jobs that are yet to be submitted count too.
    """
    least = np.full((backfill.LEVELS, len(values) // backfill.BLOCK + 1), nothing, values.dtype)
    for level in range(backfill.LEVELS):
        values = np.minimum.reduceat(values, np.arange(0, len(values), backfill.BLOCK))
        least[level, : len(values)] = values
    return least


def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - one loop; a call for each step would cost more than the step
    jobs: _Jobs,
    by_arrival: _ByArrival | None,
    by_rank: _ByRank | None,
    by_promise: ByPromise | None,
    place: _Place,
    progress: _Progress,
    rules: _Rules,
    layer: AgentLog | None,
    finite: Finite | None,
) -> tuple[float, _Fields]:
    """Return when the replay stopped, and how far it is. NaN if the log of agents must be larger to go on.

    One of the three queues is given. The code for the other two is not compiled, nor is the code for agents where there
    is no layer: hence the many questions whether there is one.
    """
    submit_s, run_s, limit_s, units, start_s, end_s = jobs
    heap_s, heap_job, ends_s, ends_units, _starts = place
    overtaking, every_s, until_s, keep_waiting = rules
    head, tail, waiting, _running, ends, _free, refused, now_s, decide_s, better_until_s = progress
    running: int = progress.running  # declared, as are `free` and others, since a type checker loses track of them
    free: int = progress.free
    extra: int
    preemption = False
    if layer is not None:
        preemption = bool(layer.rules[0].preemption)
    while True:
        if keep_waiting > 0:
            event_s = now_s if tail < len(units) and waiting < keep_waiting else np.inf
        else:
            event_s = submit_s[tail] if tail < len(units) else np.inf
        if running > 0:
            event_s = min(event_s, heap_s[0])
        agents_s = np.inf
        if layer is not None:
            if event_s == np.inf and waiting == 0 and until_s == np.inf:
                break
            if is_full(layer):
                return np.nan, (head, tail, waiting, running, ends, free, refused, now_s, decide_s, better_until_s)
            agents_s = next_s(layer, finite)
        now_s = min(event_s, decide_s, agents_s)
        if not now_s < until_s:
            break

        is_news = False
        ended = 0
        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            free += int(units[job])
            refused = 0
            is_news = True
            if by_promise is not None:
                by_promise.ended_s[ended] = by_promise.kept_s[job] + limit_s[job]
                by_promise.ended_units[ended] = units[job]
                ended += 1
            else:
                ends = forget(ends_s, ends_units, ends, float(start_s[job] + limit_s[job]), int(units[job]))
            if by_rank is not None:
                by_rank.holds[by_rank.owner[job]] -= units[job]
        lent = 0
        if layer is not None:
            if agents_s <= now_s:
                free += release(layer, finite, now_s)
                is_news = True
                if not preemption:
                    refused = 0
                    if by_promise is not None:
                        ended = end_released(by_promise, layer, ended)
                    else:
                        ends = _forget_released(layer, ends_s, ends_units, ends)
            if preemption:
                lent = held(layer)
        waited = waiting
        while tail < len(units) and (waiting < keep_waiting if keep_waiting > 0 else submit_s[tail] <= now_s):
            if keep_waiting > 0:
                submit_s[tail] = now_s
            if by_rank is not None:
                if keep_waiting > 0:
                    by_rank.key[tail] -= by_rank.per_second * now_s
                _enter(by_rank.queue, head, tail, by_rank.key)
                is_news = True
            elif by_promise is not None:
                enter(by_promise, waiting, tail, int(units[tail]), float(limit_s[tail]))
            elif units[tail] <= free + lent or (
                layer is not None and waiting == 0
            ):  # agents must not delay the first job that waits
                is_news = True
            tail += 1
            waiting += 1
        if by_promise is None:
            if waiting == 0 and layer is None:
                decide_s = np.inf
                continue
            if is_news and decide_s == np.inf:
                decide_s = np.ceil(now_s / every_s) * every_s if every_s > 0 else now_s
            if decide_s > now_s:
                continue
            decide_s = np.inf

        starts: Counts = place.starts
        found, shadow_s, is_promised = 0, np.inf, overtaking
        extra = free
        if by_promise is not None:
            found, ends, better_until_s, decide_s = due(
                by_promise, starts, now_s, ends, ended, waited, waiting, refused, better_until_s, decide_s
            )
        elif by_rank is not None:
            chosen: tuple[Counts, Seconds, Counts] = choose(
                by_rank.queue[head:tail],
                units,
                by_rank.owner,
                limit_s,
                by_rank.holds,
                by_rank.targets,
                free + lent,
                int(overtaking),
                now_s,
                ends_s[:ends],
                ends_units[:ends],
            )
            starts, shadows_s, spare = chosen
            found = len(starts)
            is_promised = len(shadows_s) > 0
            if is_promised:
                shadow_s, extra = float(shadows_s[0]), int(spare[0])
        elif by_arrival is not None and waiting > 0:
            found, ends, shadow_s, extra = easy(
                now_s,
                free + lent,
                ends,
                ends_s,
                ends_units,
                by_arrival.units,
                limit_s,
                by_arrival.least_units,
                by_arrival.least_limit_s,
                head,
                tail,
                refused,
                overtaking,
                place.starts,
            )
        there = waiting
        owed = 0  # units, to jobs that wait for agents to be saved
        for entry in range(found):
            job = int(starts[entry])
            job_ends_s = float(now_s + limit_s[job])
            if units[job] > free or (owed > 0 and not overtaking):
                if by_arrival is not None:
                    ends = forget(ends_s, ends_units, ends, job_ends_s, int(units[job]))
                owed += int(units[job])
                continue
            start_s[job] = now_s
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
            free -= int(units[job])
            waiting -= 1
            if by_rank is not None:
                ends = expect(ends_s, ends_units, ends, job_ends_s, int(units[job]))
                by_rank.holds[by_rank.owner[job]] += units[job]
            elif by_arrival is not None:
                by_arrival.units[job] = backfill.GONE
        if by_rank is not None:
            head = _close_gaps(by_rank.queue, head, tail - waiting, start_s)
        elif by_promise is not None:
            if waiting < there:
                leave(by_promise, there, now_s, start_s)
            refused = waiting if owed == 0 else 0
        elif by_arrival is not None:
            while head < tail and by_arrival.units[head] == backfill.GONE:
                head += 1
            refused = tail - head if owed == 0 else 0
        if layer is not None:
            if by_promise is not None:
                shadow_s, extra = now_s, idle_units(by_promise, ends, layer, finite, now_s, free)
            else:
                if not is_promised:
                    if running == 0 and waiting > 0 and not preemption:
                        continue  # the first job waits for agents alone
                    shadow_s, extra = np.inf, free
                if preemption and shadow_s < np.inf:
                    extra -= held_past(layer, finite, float(shadow_s))
            given: tuple[int, float] = decide(layer, finite, now_s, free, owed, shadow_s, extra)
            taken, gone_s = given
            if taken > 0:
                free -= taken
                if not preemption and by_promise is not None:
                    ends = hold(by_promise, ends, gone_s, taken)
                elif not preemption:
                    ends = expect(ends_s, ends_units, ends, gone_s, taken)
    stop_s = _stopped(now_s, until_s, heap_s, heap_job, running, end_s)
    if layer is not None:
        close(layer, finite, stop_s)
    return stop_s, (head, tail, waiting, running, ends, free, refused, now_s, decide_s, better_until_s)


_by_arrival_replayed = loop(_replayed)
_by_rank_replayed = compiled(_replayed)  # its decision makes arrays


@inner
def _forget_released(layer: AgentLog, ends_s: Seconds, ends_units: Counts, ends: int) -> int:
    """Forget the expected ends of agents that have just been released; return how many expected ends are left."""
    for entry in range(layer.state[0].freed):
        gone = layer.freed[entry]
        ends = forget(ends_s, ends_units, ends, float(gone.end_s), int(gone.units))
    return ends


@inner
def _stopped(  # noqa: PLR0917 - numba takes no keywords
    now_s: float, until_s: float, heap_s: Seconds, heap_job: Counts, running: int, end_s: Seconds
) -> float:
    """Return when the replay stopped. Take the ends from jobs that still run then."""
    for entry in range(running):
        if heap_s[entry] > until_s:
            end_s[heap_job[entry]] = np.nan
    return now_s if until_s == np.inf else until_s


@inner
def _enter(queue: Counts, head: int, job: int, key: Seconds) -> None:
    """Put a job into the queue behind all jobs whose priority is not lower. The queue ends at the place `job`."""
    low = head
    high = job
    while low < high:
        middle = (low + high) // 2
        if key[queue[middle]] >= key[job]:
            low = middle + 1
        else:
            high = middle
    for place in range(job, low, -1):
        queue[place] = queue[place - 1]
    queue[low] = job


@inner
def _close_gaps(queue: Counts, head: int, new_head: int, start_s: Seconds) -> int:
    """Remove the jobs that have started from the queue; return the new head.

    As many jobs have started as lie between the old head and the new head.
    """
    last = head
    left = new_head - head
    while left > 0:
        if not np.isnan(start_s[queue[last]]):
            left -= 1
        last += 1
    to = last
    for place in range(last - 1, head - 1, -1):
        if np.isnan(start_s[queue[place]]):
            to -= 1
            queue[to] = queue[place]
    return new_head
