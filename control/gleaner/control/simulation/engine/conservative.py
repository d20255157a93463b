"""Conservative backfilling, on machines whose units need only be counted.

The rule for one instant is that of `queueing`. What ends compresses the schedule; after that what is submitted gets
its reservations, in the order of the queue; then every job whose promise is due starts.
"""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy import backfill
from gleaner.control.simulation.compiled import compiled
from gleaner.control.simulation.engine.heap import pop, push
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule, no_stretches, uninterrupted
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

Number = TypeVar("Number", np.float64, np.int64)

conservative = compiled(backfill.conservative)


def run(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Replay a workload that fits the machine; see `replay`, which checks that and has the same arguments."""
    if scheduler.decide_every_s:
        raise BadScenario("conservative backfilling decides whenever a job comes or ends: decide_every_s must be 0")
    speed = machine.classes[0].speed
    units = machine.units_asked(workload.processors).copy()  # as the next: one type, whatever memory they are in
    submit_s = np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()
    start_s, end_s = _replayed(
        submit_s,
        workload.run_s / speed,
        np.where(workload.limit_s > 0, workload.limit_s / speed, 1.0),  # nobody can be promised no time at all
        units,
        machine.units,
        math.inf if until_s is None else float(until_s),
        keep_waiting,
    )
    return Schedule(
        workload=replace(workload, submit_s=submit_s) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=start_s,
        end_s=end_s,
        jobs=uninterrupted(workload, units, start_s, end_s, until_s),
        agents=no_stretches(),
    )


@compiled
def _doubled(array: NDArray[Number]) -> NDArray[Number]:
    """The same with as much room again."""
    return np.concatenate((array, array))


@compiled
def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - one loop; a call for each step would cost more than the step
    submit_s: Seconds,
    run_s: Seconds,
    limit_s: Seconds,
    units: Counts,
    capacity: int,
    until_s: float,
    keep_waiting: int,
) -> tuple[Seconds, Seconds]:
    """When each job starts and ends. With `keep_waiting` it writes to `submit_s` when each entered the queue."""
    jobs = len(units)
    start_s = np.full(jobs, np.nan)
    end_s = np.full(jobs, np.nan)
    known = 0  # how many have been submitted
    queue, queue_units = np.empty(8, np.int64), np.empty(8, np.int64)  # the jobs that wait, without gaps
    queue_limit_s, promised_s = np.empty(8), np.empty(8)
    waiting = 0
    room = min(jobs, capacity) + 1
    heap_s, heap_job, running = np.empty(room), np.empty(room, np.int64), 0
    ended_s, ended_units = np.empty(room), np.empty(room, np.int64)
    steps_s, steps_free, steps = np.zeros(2 * room + 16), np.full(2 * room + 16, capacity), 1
    now_s = 0.0
    next_promise_s = np.inf
    better_until_s = -np.inf
    if keep_waiting == 0:
        steps_s[0] = -np.inf
    while True:
        if keep_waiting > 0:
            next_s = now_s if known < jobs and waiting < keep_waiting else np.inf
        else:
            next_s = submit_s[known] if known < jobs else np.inf
        if running > 0:
            next_s = min(next_s, heap_s[0])
        now_s = min(next_s, next_promise_s)
        if not now_s < until_s:
            break

        ended = 0
        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            ended_s[ended] = start_s[job] + limit_s[job]
            ended_units[ended] = units[job]
            ended += 1
        first = 0 if ended > 0 else waiting
        while known < jobs and (waiting < keep_waiting if keep_waiting > 0 else submit_s[known] <= now_s):
            if keep_waiting > 0:
                submit_s[known] = now_s
            if waiting == len(queue):
                queue, queue_units = _doubled(queue), _doubled(queue_units)
                queue_limit_s, promised_s = _doubled(queue_limit_s), _doubled(promised_s)
            queue[waiting] = known
            queue_units[waiting] = units[known]
            queue_limit_s[waiting] = limit_s[known]
            promised_s[waiting] = np.nan
            waiting += 1
            known += 1

        while 2 * (running + ended + waiting) + 4 > len(steps_s):
            steps_s, steps_free = _doubled(steps_s), _doubled(steps_free)
        steps, left_s = conservative(
            now_s,
            steps,
            steps_s,
            steps_free,
            ended_s[:ended],
            ended_units[:ended],
            queue_units[first:waiting],
            queue_limit_s[first:waiting],
            promised_s[first:waiting],
            better_until_s,
        )
        if ended > 0:
            better_until_s = left_s
        if ended > 0 or next_promise_s <= now_s:  # promises may have changed, or are due: all are looked through
            first = 0
            next_promise_s = np.inf
        left = first
        for entry in range(first, waiting):
            job = int(queue[entry])
            if promised_s[entry] > now_s:
                next_promise_s = min(next_promise_s, promised_s[entry])
                if left < entry:
                    queue[left] = job
                    queue_units[left] = queue_units[entry]
                    queue_limit_s[left] = queue_limit_s[entry]
                    promised_s[left] = promised_s[entry]
                left += 1
                continue
            start_s[job] = now_s
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
        waiting = left
    for entry in range(running):
        if heap_s[entry] > until_s:
            end_s[heap_job[entry]] = np.nan
    return start_s, end_s
