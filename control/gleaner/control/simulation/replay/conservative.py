"""The queue of conservative backfilling, whose loop is that of `queueing`: every job that waits has a promise.

First, what ended compresses the schedule. Then what was submitted gets its reservations, in the order of the queue.
Then every job whose promise is due starts.

Agents (`agents`) start where they delay no promise. To the schedule, agents are work with a known end. With
preemption, the schedule does not know of agents. A job that is due then waits until the agents are saved. A later job
that was promised the first job's units at its end waits too, for as long as the saves took.
"""

from typing import NamedTuple

import numpy as np

from gleaner.control.policy import backfill
from gleaner.control.simulation.replay.agent_starts import agent_end, held_past
from gleaner.control.simulation.replay.agents import AgentLog, Finite
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.workload import Counts, Seconds

conservative = inner(backfill.conservative)


class ByPromise(NamedTuple):
    """A queue by arrival, without gaps, with the promises, the profile of free units, and what has just ended."""

    queue: Counts
    units: Counts
    limit_s: Seconds
    promised_s: Seconds
    kept_s: Seconds
    """The beginning of each running job's reservation, by job."""
    steps_s: Seconds
    steps_free: Counts
    ended_s: Seconds
    ended_units: Counts


def by_promise(jobs: int, capacity: int, from_s: float, *, has_agents: bool) -> ByPromise:
    """Return the queue before anything was submitted, with a profile in which all units are free from `from_s` on.

    No array must grow. The operating system provides only the part of an array that is used.
    """
    most = min(jobs, capacity) + 1
    most += capacity + 1 if has_agents else 0  # every unit may be an agent's
    steps = 2 * (most + jobs) + 4
    queue = ByPromise(
        queue=np.empty(jobs, np.int64),
        units=np.empty(jobs, np.int64),
        limit_s=np.empty(jobs),
        promised_s=np.empty(jobs),
        kept_s=np.empty(jobs),
        steps_s=np.empty(steps),
        steps_free=np.empty(steps, np.int64),
        ended_s=np.empty(most),
        ended_units=np.empty(most, np.int64),
    )
    queue.steps_s[0], queue.steps_free[0] = from_s, capacity
    return queue


@inner
def enter(promises: ByPromise, waiting: int, job: int, units: int, limit_s: float) -> None:
    """Put a job, which has no promise yet, at the end of the queue, in which `waiting` jobs wait."""
    promises.queue[waiting] = job
    promises.units[waiting] = units
    promises.limit_s[waiting] = limit_s
    promises.promised_s[waiting] = np.nan


@inner
def end_released(promises: ByPromise, layer: AgentLog, ended: int) -> int:
    """Record the ends of agents that have just been released; return how many ends are recorded."""
    for entry in range(layer.state[0].freed):
        promises.ended_s[ended] = layer.freed[entry].end_s
        promises.ended_units[ended] = layer.freed[entry].units
        ended += 1
    return ended


@inner
def due(  # noqa: PLR0917 - numba takes no keywords
    promises: ByPromise,
    starts: Counts,
    now_s: float,
    steps: int,
    ended: int,
    waited: int,
    waiting: int,
    refused: int,
    better_until_s: float,
    next_promise_s: float,
) -> tuple[int, int, float, float]:
    """Make the promises of this instant, and write to `starts` the jobs whose promise is due.

    `waited`: how many of the `waiting` jobs have had promises before. The first `refused` jobs need a look only where
    a promise among theirs, `next_promise_s` or later, is due.

    Return how many jobs are due, the profile's steps, the next `better_until_s` (see `backfill.conservative`), and the
    first promise that is not due yet.
    """
    first = 0 if ended > 0 else waited
    steps, left_s = conservative(
        now_s,
        steps,
        promises.steps_s,
        promises.steps_free,
        promises.ended_s[:ended],
        promises.ended_units[:ended],
        promises.units[first:waiting],
        promises.limit_s[first:waiting],
        promises.promised_s[first:waiting],
        better_until_s,
    )
    if ended > 0:
        better_until_s = left_s
    if refused == 0 or next_promise_s <= now_s:  # promises may have changed, or are due: look through all of them
        refused = 0
        next_promise_s = np.inf
    found = 0
    for entry in range(refused, waiting):
        if promises.promised_s[entry] > now_s:
            next_promise_s = min(next_promise_s, promises.promised_s[entry])
        else:
            job = promises.queue[entry]
            promises.kept_s[job] = promises.promised_s[entry]
            starts[found] = job
            found += 1
    return found, steps, better_until_s, next_promise_s


@inner
def leave(promises: ByPromise, waiting: int, now_s: float, start_s: Seconds) -> None:
    """Remove the jobs that have started from the queue, in which `waiting` jobs waited."""
    left = 0
    for entry in range(waiting):
        if promises.promised_s[entry] <= now_s and not np.isnan(start_s[promises.queue[entry]]):
            continue
        if left < entry:
            promises.queue[left] = promises.queue[entry]
            promises.units[left] = promises.units[entry]
            promises.limit_s[left] = promises.limit_s[entry]
            promises.promised_s[left] = promises.promised_s[entry]
        left += 1


@inner
def idle_units(  # noqa: PLR0917 - numba takes no keywords
    promises: ByPromise, steps: int, layer: AgentLog, finite: Finite | None, now_s: float, free: int
) -> int:
    """Return how many units no promise needs before an agent that starts now would end."""
    rules = layer.rules[0]
    gone_s = agent_end(now_s, float(rules.length_s), 0.0, bool(rules.synchronised))
    idle = free
    for step in range(steps):
        if promises.steps_s[step] < gone_s:
            theirs = held_past(layer, finite, float(promises.steps_s[step])) if rules.preemption else 0
            idle = min(idle, int(promises.steps_free[step]) - theirs)
    return idle


@inner
def hold(promises: ByPromise, steps: int, end_s: float, units: int) -> int:
    """Take units from all steps between the first, which is now, and `end_s`; return how many steps there are."""
    steps_s, steps_free = promises.steps_s, promises.steps_free
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
