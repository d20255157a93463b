"""First come first served and EASY backfilling, on machines whose units need only be counted.

The rule for one instant: first what ends is given back, then what is submitted joins the queue, then one decision is
taken with all of it known. A job that runs for no time at all ends at the instant of its start, after that decision.
"""

import math
from dataclasses import replace

import numpy as np

from gleaner.control.policy import backfill
from gleaner.control.simulation.compiled import compiled
from gleaner.control.simulation.engine.heap import forget, pop, push
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule, no_stretches, uninterrupted
from gleaner.control.simulation.settings import AgentSettings, Discipline, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

easy = compiled(backfill.easy)


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
    speed = machine.classes[0].speed
    units = machine.units_asked(workload.processors).copy()  # as the next: one type, whatever memory they are in
    submit_s = np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()
    start_s, end_s = _replayed(
        submit_s,
        workload.run_s / speed,
        workload.limit_s / speed,
        units,
        machine.units,
        scheduler.kind is not Discipline.FCFS,
        float(scheduler.decide_every_s),
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
def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - one loop; a call for each step would cost more than the step
    submit_s: Seconds,
    run_s: Seconds,
    limit_s: Seconds,
    units: Counts,
    capacity: int,
    overtaking: bool,
    every_s: float,
    until_s: float,
    keep_waiting: int,
) -> tuple[Seconds, Seconds]:
    """When each job starts and ends. With `keep_waiting` it writes to `submit_s` when each entered the queue."""
    jobs = len(units)
    start_s = np.full(jobs, np.nan)
    end_s = np.full(jobs, np.nan)
    queue = units.copy()  # the waiting jobs are queue[head:tail], with gaps where jobs overtook
    head = tail = waiting = 0
    room = min(jobs, capacity) + 1
    heap_s, heap_job, running = np.empty(room), np.empty(room, np.int64), 0
    ends_s, ends_units, ends = np.empty(room), np.empty(room, np.int64), 0
    starts = np.empty(room, np.int64)
    free = capacity
    now_s = 0.0 if keep_waiting > 0 else -np.inf
    decide_s = np.inf  # when the decision is due that the latest events asked for
    refused = 0  # of queue[head:tail], at the latest decision, since which nothing was given back
    while True:
        if keep_waiting > 0:
            next_s = now_s if tail < jobs and waiting < keep_waiting else np.inf
        else:
            next_s = submit_s[tail] if tail < jobs else np.inf
        if running > 0:
            next_s = min(next_s, heap_s[0])
        now_s = min(next_s, decide_s)
        if not now_s < until_s:
            break

        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            ends = forget(ends_s, ends_units, ends, float(start_s[job] + limit_s[job]), int(units[job]))
            free += int(units[job])
            refused = 0
            decide_s = now_s
        while tail < jobs and (waiting < keep_waiting if keep_waiting > 0 else submit_s[tail] <= now_s):
            if keep_waiting > 0:
                submit_s[tail] = now_s
            if units[tail] <= free:
                decide_s = now_s
            tail += 1
            waiting += 1
        if waiting == 0:
            decide_s = np.inf
            continue
        if every_s > 0 and decide_s <= now_s:
            decide_s = np.ceil(now_s / every_s) * every_s
        if decide_s > now_s:
            continue

        decide_s = np.inf
        found, ends, _shadow_s, _extra = easy(
            now_s, free, ends, ends_s, ends_units, queue[head:tail], limit_s[head:tail], refused, overtaking, starts
        )
        for entry in range(found):
            job = head + int(starts[entry])
            start_s[job] = now_s
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
            free -= int(units[job])
            queue[job] = backfill.GONE
        waiting -= found
        while head < tail and queue[head] == backfill.GONE:
            head += 1
        refused = tail - head
    for entry in range(running):
        if heap_s[entry] > until_s:
            end_s[heap_job[entry]] = np.nan
    return start_s, end_s
