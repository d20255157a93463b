"""Conservative backfilling, on machines whose units need only be counted.

The rule for one instant is that of `queueing`. What ends compresses the schedule; after that what is submitted gets
its reservations, in the order of the queue; then every job whose promise is due starts.

Agents (`agents`) start last, where they delay no promise. To the schedule they are work that ends when they do. With
preemption it does not know of them: a job that is due waits until they are saved, and what was promised its units at
its end waits for it, as long as that took.
"""

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy import backfill
from gleaner.control.simulation.compiled import compiled, inner
from gleaner.control.simulation.engine.agents import agent_end, close, decide, held_past, next_s, release
from gleaner.control.simulation.engine.counted import schedule, stopped, submissions
from gleaner.control.simulation.engine.heap import pop, push
from gleaner.control.simulation.engine.layer import Finite, grown, is_full, layer_of
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

Number = TypeVar("Number", np.float64, np.int64)

conservative = inner(backfill.conservative)


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
    submit_s = submissions(workload, keep_waiting)
    layer, finite = layer_of(agents, machine)
    replayed = _replayed(
        submit_s,
        workload.run_s / speed,
        np.where(workload.limit_s > 0, workload.limit_s / speed, 1.0),  # nobody can be promised no time at all
        units,
        machine.units,
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
    layer: Any,
    finite: Finite | None,
) -> tuple[Seconds, Seconds, Any, float]:
    """When each job starts and ends, the log of agents, and when the replay stopped.

    With `keep_waiting` it writes to `submit_s` when each entered the queue. Without a layer what is said of agents is
    not compiled: hence the many questions whether there is one.
    """
    jobs = len(units)
    start_s = np.full(jobs, np.nan)
    end_s = np.full(jobs, np.nan)
    known = 0  # how many have been submitted
    queue, queue_units = np.empty(8, np.int64), np.empty(8, np.int64)  # the jobs that wait, without gaps
    queue_limit_s, promised_s = np.empty(8), np.empty(8)
    waiting = 0
    room = min(jobs, capacity) + 1
    heap_s, heap_job, running = np.empty(room), np.empty(room, np.int64), 0
    agents, kept_s = layer, start_s  # when the reservation began of what runs
    preemption = False
    most = room
    if layer is not None:
        kept_s = np.full(jobs, np.nan)
        preemption = bool(layer.rules[0].preemption)
        most += capacity + 1  # every unit may be an agent's
    ended_s, ended_units = np.empty(most), np.empty(most, np.int64)
    steps_s, steps_free, steps = np.zeros(2 * room + 16), np.full(2 * room + 16, capacity), 1
    free = capacity
    owed = 0  # to jobs that are due and wait for agents to be saved
    now_s = 0.0
    next_promise_s = np.inf
    better_until_s = -np.inf
    if keep_waiting == 0:
        steps_s[0] = -np.inf
    while True:
        if keep_waiting > 0:
            event_s = now_s if known < jobs and waiting < keep_waiting else np.inf
        else:
            event_s = submit_s[known] if known < jobs else np.inf
        if running > 0:
            event_s = min(event_s, heap_s[0])
        agents_s = np.inf
        if layer is not None:
            if event_s == np.inf and waiting == 0 and until_s == np.inf:
                break
            if is_full(agents):
                agents = grown(agents)
            agents_s = next_s(agents, finite)
        now_s = min(event_s, next_promise_s, agents_s)
        if not now_s < until_s:
            break

        ended = 0
        while running > 0 and heap_s[0] <= now_s:
            job = int(heap_job[0])
            running = pop(heap_s, heap_job, running)
            ended_s[ended] = kept_s[job] + limit_s[job]
            ended_units[ended] = units[job]
            free += int(units[job])
            ended += 1
        if layer is not None and agents_s <= now_s:
            free += release(agents, finite, now_s)
            for gone in range(0 if preemption else agents.state[0].freed):
                ended_s[ended] = agents.freed[gone].end_s
                ended_units[ended] = agents.freed[gone].units
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

        while 2 * (most - room + running + ended + waiting) + 4 > len(steps_s):
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
        if (
            ended > 0 or next_promise_s <= now_s or owed > 0
        ):  # promises may have changed, or are due: all are looked through
            first = 0
            next_promise_s = np.inf
        owed = 0
        left = first
        for entry in range(first, waiting):
            job = int(queue[entry])
            is_early = promised_s[entry] > now_s
            if is_early:
                next_promise_s = min(next_promise_s, promised_s[entry])
            elif units[job] > free:
                owed += int(units[job])
            if is_early or units[job] > free:
                if left < entry:
                    queue[left] = job
                    queue_units[left] = queue_units[entry]
                    queue_limit_s[left] = queue_limit_s[entry]
                    promised_s[left] = promised_s[entry]
                left += 1
                continue
            start_s[job] = now_s
            kept_s[job] = promised_s[entry]
            free -= int(units[job])
            end_s[job] = now_s + run_s[job]
            running = push(heap_s, heap_job, running, float(end_s[job]), job)
        waiting = left
        if layer is not None:
            gone_s = agent_end(now_s, float(layer.rules[0].length_s), 0.0, bool(layer.rules[0].synchronised))
            idle = free
            for step in range(steps):
                if steps_s[step] < gone_s:
                    theirs = held_past(agents, finite, float(steps_s[step])) if preemption else 0
                    idle = min(idle, int(steps_free[step]) - theirs)
            taken, gone_s = decide(agents, finite, now_s, free, owed, now_s, idle)
            if taken > 0:
                free -= taken
                if not preemption:
                    steps = _held(steps, steps_s, steps_free, gone_s, taken)
    stop_s = stopped(now_s, until_s, heap_s, heap_job, running, end_s)
    if layer is None:
        return start_s, end_s, None, stop_s
    close(agents, finite, stop_s)
    return start_s, end_s, agents.log, stop_s


@inner
def _held(steps: int, steps_s: Seconds, steps_free: Counts, end_s: float, units: int) -> int:
    """How many steps there are when so many units are no longer free from the first one, which is now, to that end."""
    at = 1
    while at < steps and steps_s[at] < end_s:
        at += 1
    if at == steps or steps_s[at] > end_s:
        for step in range(steps, at, -1):
            steps_s[step] = steps_s[step - 1]
            steps_free[step] = steps_free[step - 1]
        steps_s[at] = end_s
        steps_free[at] = steps_free[at - 1]
        steps += 1
    for step in range(at):
        steps_free[step] -= units
    return steps
