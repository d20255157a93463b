"""First come first served and EASY backfilling, on machines whose units need only be counted.

The rule for one instant: first what ends is given back, then what is submitted joins the queue, then one decision is
taken with all of it known. A job that runs for no time at all ends at the instant of its start, after that decision.

Agents (`agents`) start last. To the scheduler they are work that ends when they do; with preemption they are nothing:
it decides as though their nodes were free, and what it starts on those waits for their saves.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gleaner.control.policy import backfill
from gleaner.control.simulation.compiled import inner, loop
from gleaner.control.simulation.engine.agents import close, decide, held, held_past, next_s, release
from gleaner.control.simulation.engine.counted import forget_released, schedule, stopped, submissions
from gleaner.control.simulation.engine.heap import expect, forget, pop, push
from gleaner.control.simulation.engine.layer import Finite, Layer, is_full, larger_log, layer_of
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.settings import AgentSettings, Discipline, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

easy = inner(backfill.easy)

_Progress: TypeAlias = tuple[int, int, int, int, int, int, int, float, float]
"""Of the queue its head, its tail and how many wait; what runs, the expected ends, what is free; of the queue how many
were refused at the latest decision, since which nothing was given back; the instant, and when the decision is due that
the latest events asked for."""


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
    submit_s, run_s, limit_s = submissions(workload, keep_waiting), workload.run_s / speed, workload.limit_s / speed
    start_s, end_s = np.full((2, len(workload)), math.nan)
    layer, finite = layer_of(agents, machine)
    place = _at_first(len(workload), machine.units, layer is not None)
    queue, least_units, least_limit_s = units.copy(), _least(units, backfill.GONE), _least(limit_s, math.inf)
    progress = (0, 0, 0, 0, 0, machine.units, 0, 0.0 if keep_waiting > 0 else -math.inf, math.inf)
    stop_s = math.nan
    while math.isnan(stop_s):
        stop_s, progress = _replayed(
            submit_s,
            run_s,
            limit_s,
            units,
            start_s,
            end_s,
            queue,
            least_units,
            least_limit_s,
            place,
            progress,
            machine.units,
            scheduler.kind is not Discipline.FCFS,
            float(scheduler.decide_every_s),
            math.inf if until_s is None else float(until_s),
            keep_waiting,
            layer,
            finite,
        )
        if layer is not None and math.isnan(stop_s):
            layer = larger_log(layer)
    return schedule(
        workload,
        machine,
        scheduler,
        (start_s, end_s, None if layer is None else layer.log, stop_s),
        units=units,
        submit_s=submit_s,
        until_s=until_s,
        keep_waiting=keep_waiting,
        layer=layer,
        finite=finite,
    )


class _Place(NamedTuple):
    """Where a replay keeps what runs, what is expected to end, and what starts."""

    heap_s: Seconds
    heap_job: Counts
    ends_s: Seconds
    ends_units: Counts
    starts: Counts


def _at_first(jobs: int, capacity: int, has_agents: bool) -> _Place:
    room = min(jobs, capacity) + 1
    most_ends = capacity + 1 if has_agents else room
    return _Place(
        np.empty(room),
        np.empty(room, np.int64),
        np.empty(most_ends),
        np.empty(most_ends, np.int64),
        np.empty(room, np.int64),
    )


def _least(values: Counts | Seconds, nothing: float) -> Any:
    """For each block of the queue the least of its jobs' values, of those yet to come too. A row a level."""
    least = np.full((backfill.LEVELS, len(values) // backfill.BLOCK + 1), nothing, values.dtype)
    for level in range(backfill.LEVELS):
        values = np.minimum.reduceat(values, np.arange(0, len(values), backfill.BLOCK))
        least[level, : len(values)] = values
    return least


@loop
def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - one loop; a call for each step would cost more than the step
    submit_s: Seconds,
    run_s: Seconds,
    limit_s: Seconds,
    units: Counts,
    start_s: Seconds,
    end_s: Seconds,
    queue: Counts,
    least_units: Counts,
    least_limit_s: Seconds,
    place: _Place,
    progress: _Progress,
    capacity: int,
    overtaking: bool,
    every_s: float,
    until_s: float,
    keep_waiting: int,
    layer: Layer | None,
    finite: Finite | None,
) -> tuple[float, _Progress]:
    """When the replay stopped, and how far it is. NaN: the log of agents must be larger for it to go on.

    It writes to `start_s` and `end_s`, and with `keep_waiting` to `submit_s` when each job entered the queue. The
    waiting jobs are `queue[head:tail]`, with gaps where jobs overtook. Without a layer what is said of agents is not
    compiled: hence the many questions whether there is one.
    """
    jobs = len(units)
    heap_s, heap_job, ends_s, ends_units, starts = place
    head, tail, waiting, running, ends, free, refused, now_s, decide_s = progress
    preemption = False
    if layer is not None:
        preemption = bool(layer.rules[0].preemption)
    while True:
        if keep_waiting > 0:
            event_s = now_s if tail < jobs and waiting < keep_waiting else np.inf
        else:
            event_s = submit_s[tail] if tail < jobs else np.inf
        if running > 0:
            event_s = min(event_s, heap_s[0])
        agents_s = np.inf
        if layer is not None:
            if event_s == np.inf and waiting == 0 and until_s == np.inf:
                break
            if is_full(layer):
                return np.nan, (head, tail, waiting, running, ends, free, refused, now_s, decide_s)
            agents_s = next_s(layer, finite)
        now_s = min(event_s, decide_s, agents_s)
        if not now_s < until_s:
            break
        is_due = decide_s <= now_s

        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            ends = forget(ends_s, ends_units, ends, float(start_s[job] + limit_s[job]), int(units[job]))
            free += int(units[job])
            refused = 0
            decide_s = now_s
        lent = 0
        if layer is not None:
            if agents_s <= now_s:
                free += release(layer, finite, now_s)
                decide_s = now_s
                if not preemption:
                    refused = 0
                    ends = forget_released(layer, ends_s, ends_units, ends)
            if preemption:
                lent = held(layer)
        while tail < jobs and (waiting < keep_waiting if keep_waiting > 0 else submit_s[tail] <= now_s):
            if keep_waiting > 0:
                submit_s[tail] = now_s
            if units[tail] <= free + lent or (
                layer is not None and waiting == 0
            ):  # agents keep clear of the first to wait
                decide_s = now_s
            tail += 1
            waiting += 1
        if waiting == 0 and layer is None:
            decide_s = np.inf
            continue
        if every_s > 0 and decide_s <= now_s and not is_due:  # a multiple may not be one when it is divided again
            decide_s = np.ceil(now_s / every_s) * every_s
        if decide_s > now_s:
            continue

        decide_s = np.inf
        found, shadow_s, extra = 0, np.inf, free
        if waiting > 0:
            found, ends, shadow_s, extra = easy(
                now_s,
                free + lent,
                ends,
                ends_s,
                ends_units,
                queue,
                limit_s,
                least_units,
                least_limit_s,
                head,
                tail,
                refused,
                overtaking,
                starts,
            )
        owed = 0  # to jobs that wait for agents to be saved
        for entry in range(found):
            job = int(starts[entry])
            if units[job] > free or (owed > 0 and not overtaking):
                ends = forget(ends_s, ends_units, ends, float(now_s + limit_s[job]), int(units[job]))
                owed += int(units[job])
                continue
            start_s[job] = now_s
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
            free -= int(units[job])
            queue[job] = backfill.GONE
            waiting -= 1
        while head < tail and queue[head] == backfill.GONE:
            head += 1
        refused = tail - head if owed == 0 else 0
        if layer is not None:
            if not overtaking:
                if running == 0 and waiting > 0 and not preemption:
                    continue  # the first job waits for agents alone
                shadow_s, extra = np.inf, free
            if preemption and shadow_s < np.inf:
                extra -= held_past(layer, finite, float(shadow_s))
            taken, gone_s = decide(layer, finite, now_s, free, owed, shadow_s, extra)
            if taken > 0:
                free -= taken
                if not preemption:
                    ends = expect(ends_s, ends_units, ends, gone_s, taken)
    stop_s = stopped(now_s, until_s, heap_s, heap_job, running, end_s)
    if layer is not None:
        close(layer, finite, stop_s)
    return stop_s, progress
