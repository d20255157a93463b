"""Linear priority and Simultaneous Fair-Share, on machines whose units need only be counted.

The rule for one instant is that of `queueing`: first what ends is given back, then what is submitted joins the queue,
then one decision is taken with all of it known, or at the next multiple of `decide_every_s`. Where nothing came or
ended since a decision there is no other. Of equal priorities the job that was submitted first goes first. Agents too
are treated as they are there: with a promise they keep clear of it, else none start while the first job waits for
agents alone.

All priorities grow alike with time (see `policy.priority`), so the queue is kept in one order for good.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy import fairshare, priority
from gleaner.control.simulation.compiled import compiled, inner, making
from gleaner.control.simulation.engine.agents import close, decide, held, held_past, next_s, release
from gleaner.control.simulation.engine.counted import forget_released, refuse_strangers, schedule, stopped, submissions
from gleaner.control.simulation.engine.heap import expect, forget, pop, push
from gleaner.control.simulation.engine.layer import Finite, grown, is_full, layer_of
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.settings import (
    AgentSettings,
    Backfill,
    Discipline,
    SchedulerSettings,
    ShareSettings,
)
from gleaner.control.simulation.workload import Codes, Counts, Seconds, Workload

choose = making(fairshare.core)


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

    Raises `BadScenario` for a target of somebody who is not among the workload's users, and where nobody has one.
    """
    if scheduler.kind is Discipline.SFS:
        owner, targets = workload.user, targets_of(workload, scheduler.sfs)
    else:  # nobody is below a target of 0, so one owner will do
        owner, targets = np.zeros(len(workload), np.int32), np.zeros(1)
    speed = machine.classes[0].speed
    weights = scheduler.priority
    units = machine.units_asked(workload.processors)
    submit_s = submissions(workload, keep_waiting)
    since_s = np.zeros(len(workload)) if keep_waiting else workload.submit_s
    limit_s = workload.limit_s  # as it was asked for, whatever the speed of the machine
    key = priority.core(0.0, since_s, units, limit_s, weights.per_second, weights.per_unit, weights.per_limit_s)
    layer, finite = layer_of(agents, machine)
    replayed = _replayed(
        submit_s,
        workload.run_s / speed,
        workload.limit_s / speed,
        units,
        key,
        weights.per_second,
        owner,
        targets,
        machine.units,
        0 if weights.backfill is Backfill.NONE else 1,
        float(scheduler.decide_every_s),
        math.inf if until_s is None else float(until_s),
        keep_waiting,
        layer,
        finite,
    )
    return schedule(
        workload,
        machine,
        scheduler,
        replayed,
        units=units,
        submit_s=submit_s,
        until_s=until_s,
        keep_waiting=keep_waiting,
        layer=layer,
        finite=finite,
    )


def targets_of(workload: Workload, share: ShareSettings) -> NDArray[np.float64]:
    """The target throughput of each of the workload's users, in units."""
    refuse_strangers("scheduler.sfs.targets", "user", share.targets, workload.users, workload.name)
    targets = share.factor * np.array([share.targets.get(user, share.others) for user in workload.users])
    if not np.any(targets > 0):
        raise BadScenario("scheduler.sfs: nobody has a target throughput; set `targets` or `others`")
    return targets


@compiled
def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - one loop; a call for each step would cost more than the step
    submit_s: Seconds,
    run_s: Seconds,
    limit_s: Seconds,
    units: Counts,
    key: Seconds,
    per_second: float,
    owner: Codes,
    targets: NDArray[np.float64],
    capacity: int,
    reservations: int,
    every_s: float,
    until_s: float,
    keep_waiting: int,
    layer: Any,
    finite: Finite | None,
) -> tuple[Seconds, Seconds, Any, float]:
    """When each job starts and ends, the log of agents, and when the replay stopped.

    With `keep_waiting` it writes to `submit_s` when each entered the queue. Without a layer what is said of agents is
    not compiled: hence the many questions whether there is one.

    `key`: the priority that each job would have at time 0; with `keep_waiting`, if it had entered then.
    """
    jobs = len(units)
    start_s = np.full(jobs, np.nan)
    end_s = np.full(jobs, np.nan)
    queue = np.empty(jobs, np.int64)  # the waiting jobs are queue[head:tail], by descending priority
    head = tail = come = 0
    room = min(jobs, capacity) + 1
    heap_s, heap_job, running = np.empty(room), np.empty(room, np.int64), 0
    agents = layer
    most_ends = room
    preemption = False
    if layer is not None:
        most_ends = capacity + 1
        preemption = bool(layer.rules[0].preemption)
    ends_s, ends_units, ends = np.empty(most_ends), np.empty(most_ends, np.int64), 0
    holds = np.zeros(len(targets), np.int64)
    free = capacity
    now_s = 0.0 if keep_waiting > 0 else -np.inf
    decide_s = np.inf  # when the decision is due that the latest events asked for
    while True:
        if keep_waiting > 0:
            event_s = now_s if come < jobs and tail - head < keep_waiting else np.inf
        else:
            event_s = submit_s[come] if come < jobs else np.inf
        if running > 0:
            event_s = min(event_s, heap_s[0])
        agents_s = np.inf
        if layer is not None:
            if event_s == np.inf and head == tail and until_s == np.inf:
                break
            if is_full(agents):
                agents = grown(agents)
            agents_s = next_s(agents, finite)
        now_s = min(event_s, decide_s, agents_s)
        if not now_s < until_s:
            break

        is_news = False
        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            ends = forget(ends_s, ends_units, ends, float(start_s[job] + limit_s[job]), int(units[job]))
            free += int(units[job])
            holds[owner[job]] -= units[job]
            is_news = True
        lent = 0
        if layer is not None:
            if agents_s <= now_s:
                free += release(agents, finite, now_s)
                is_news = True
                if not preemption:
                    ends = forget_released(agents, ends_s, ends_units, ends)
            if preemption:
                lent = held(agents)
        while come < jobs and (tail - head < keep_waiting if keep_waiting > 0 else submit_s[come] <= now_s):
            if keep_waiting > 0:
                submit_s[come] = now_s
                key[come] -= per_second * now_s
            tail = _queued(queue, head, tail, key, come)
            come += 1
            is_news = True
        if head == tail and layer is None:
            decide_s = np.inf
            continue
        if is_news and decide_s == np.inf:
            decide_s = np.ceil(now_s / every_s) * every_s if every_s > 0 else now_s
        if decide_s > now_s:
            continue

        decide_s = np.inf
        waiting, due_s, due_units = queue[head:tail], ends_s[:ends], ends_units[:ends]
        chosen, shadows_s, spare = choose(
            waiting, units, owner, limit_s, holds, targets, free + lent, reservations, now_s, due_s, due_units
        )
        started = 0
        owed = 0  # to jobs that wait for agents to be saved
        for entry in range(len(chosen)):
            job = int(chosen[entry])
            if units[job] > free or (owed > 0 and reservations == 0):
                owed += int(units[job])
                continue
            start_s[job] = now_s
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
            ends = expect(ends_s, ends_units, ends, float(now_s + limit_s[job]), int(units[job]))
            free -= int(units[job])
            holds[owner[job]] += units[job]
            started += 1
        head = _without(queue, head, started, start_s)
        if layer is not None:
            shadow_s, extra = np.inf, free
            if len(shadows_s) > 0:
                shadow_s, extra = float(shadows_s[0]), int(spare[0])
                if preemption:
                    extra -= held_past(agents, finite, shadow_s)
            elif running == 0 and head < tail and not preemption:
                continue  # the first job waits for agents alone
            taken, gone_s = decide(agents, finite, now_s, free, owed, shadow_s, extra)
            if taken > 0:
                free -= taken
                if not preemption:
                    ends = expect(ends_s, ends_units, ends, gone_s, taken)
    stop_s = stopped(now_s, until_s, heap_s, heap_job, running, end_s)
    if layer is None:
        return start_s, end_s, None, stop_s
    close(agents, finite, stop_s)
    return start_s, end_s, agents.log, stop_s


@inner
def _queued(queue: Counts, head: int, tail: int, key: Seconds, job: int) -> int:
    """The queue's end with this job in its place: behind all whose priority is not lower."""
    low = head
    high = tail
    while low < high:
        middle = (low + high) // 2
        if key[queue[middle]] >= key[job]:
            low = middle + 1
        else:
            high = middle
    for place in range(tail, low, -1):
        queue[place] = queue[place - 1]
    queue[low] = job
    return tail + 1


@inner
def _without(queue: Counts, head: int, started: int, start_s: Seconds) -> int:
    """The queue's beginning without the jobs that have started, so many of them."""
    last = head
    left = started
    while left > 0:
        if not np.isnan(start_s[queue[last]]):
            left -= 1
        last += 1
    to = last
    for place in range(last - 1, head - 1, -1):
        if np.isnan(start_s[queue[place]]):
            to -= 1
            queue[to] = queue[place]
    return head + started
