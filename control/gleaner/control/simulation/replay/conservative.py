"""A queue in order of arrival in which every job has a promise (conservative backfilling). `replay.backfill` decides.

There is a decision at every instant, and the time of each promise is also such an instant. First, the schedule is
compressed if work has ended. Then new jobs are given reservations, in the order of the queue. Then every job whose
promise is due starts.

Agents start where they delay no promise. In the schedule, agents are work with a known end. With preemption, agents are
not in the schedule, and a job that is due waits until the agents on its nodes are saved. A later job that was promised
the first job's units is then also delayed, by the duration of the saves.
"""

from typing import Any, NamedTuple

import numpy as np

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay import backfill
from gleaner.control.simulation.replay.agent_starts import agent_end, held_past
from gleaner.control.simulation.replay.agent_starts import decide as decide_agents
from gleaner.control.simulation.replay.agents import AgentLog, Finite
from gleaner.control.simulation.replay.compiler import inner, loop, part
from gleaner.control.simulation.replay.loop import Discipline, always, is_any_waiting, loop_of, never
from gleaner.control.simulation.replay.records import RecordArray, record_type
from gleaner.control.simulation.replay.unit_ledger import UnitLedger, end_next, free_agents, next_end_s, start, stop

conservative = inner(backfill.conservative)
insert, place_of = inner(backfill.insert), inner(backfill.place_of)

_STATE = record_type(integers="promised", floats="better_until_s")
"""`promised` is the number of waiting jobs that had promises before. For `better_until_s`, see
`backfill.conservative`."""


class ByPromise(NamedTuple):
    """The book, which has a queue without gaps, the promises, the profile of free units, and the work that has just
    ended."""

    ledger: UnitLedger
    queue: Counts
    waiting: backfill.Promised
    kept_s: Seconds
    """The time at which each running job's reservation began, by job."""
    profile: backfill.Timeline
    ended: backfill.Timeline
    """The work that has ended at this instant, in any order."""
    state: RecordArray
    """One record."""


def by_promise(ledger: UnitLedger, from_s: float) -> ByPromise:
    """Return the queue in its initial state, with a profile in which all units are free from `from_s` on.

    The arrays are large enough that none has to grow. The operating system allocates only the parts that are used.
    """
    jobs, capacity = len(ledger.units), int(ledger.state["free"][0])
    most = min(jobs, capacity) + 1 + capacity + 1  # each unit can belong to an agent
    state = np.zeros(1, _STATE)
    state["better_until_s"] = -np.inf
    book = ByPromise(
        ledger._replace(limit_s=np.where(ledger.limit_s > 0, ledger.limit_s, 1.0)),  # a promise lasts for some time
        queue=np.empty(jobs, np.int64),
        waiting=backfill.Promised(np.empty(jobs, np.int64), np.empty(jobs), np.empty(jobs)),
        kept_s=np.empty(jobs),
        profile=backfill.timeline(2 * (most + jobs) + 4),
        ended=backfill.timeline(most),
        state=state,
    )
    backfill.insert(book.profile, 0, from_s, capacity)
    return book


@part
def _free(book: ByPromise, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    """Record the work that ends. Return True, because a decision is due at every instant."""
    ledger, state = book.ledger, book.state[0]
    book.ended.size[0] = 0
    while next_end_s(book) <= clock.now_s:
        job = end_next(ledger)
        expected_s = float(book.kept_s[job] + ledger.limit_s[job])
        insert(book.ended, int(book.ended.size[0]), expected_s, int(ledger.units[job]))
    if free_agents(ledger, clock, layer, finite):
        _record_agents(book, layer)
    state.promised = clock.waiting
    return True


@inner
def _record_agents(book: ByPromise, layer: AgentLog | None) -> None:
    """Record the ends of agents that have just been released. With preemption, agents are not in the schedule."""
    if layer is None or layer.rules[0].preemption:
        return
    for entry in range(layer.state[0].freed):
        freed = layer.freed[entry]
        insert(book.ended, int(book.ended.size[0]), float(freed.end_s), int(freed.units))


@inner
def _enter(book: ByPromise, clock: Any, job: int, layer: AgentLog | None) -> bool:
    """Add a job without a promise at the end of the queue."""
    book.queue[clock.waiting] = job
    book.waiting.units[clock.waiting] = book.ledger.units[job]
    book.waiting.limit_s[clock.waiting] = book.ledger.limit_s[job]
    book.waiting.promised_s[clock.waiting] = np.nan
    return True


@part
def _decide(book: ByPromise, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    ledger, now_s = book.ledger, float(clock.now_s)
    state, waited = ledger.state[0], int(clock.waiting)
    found = _due(book, clock)
    owed = 0  # units for jobs that wait for agents' saves
    for entry in range(found):
        job = int(ledger.starts[entry])
        units = int(ledger.units[job])
        if units > state.free:
            owed += units
            continue
        start(ledger, job, now_s)
        clock.waiting -= 1
    if clock.waiting < waited:
        _leave(book, waited, now_s)
    state.refused = clock.waiting if owed == 0 else 0
    if layer is not None:
        idle = _idle_units(book, layer, finite, now_s)
        taken, gone_s = decide_agents(layer, finite, now_s, state.free, owed, now_s, idle)
        if taken > 0:
            state.free -= taken
            if not layer.rules[0].preemption:
                _hold(book.profile, gone_s, taken)


@inner
def _due(book: ByPromise, clock: Any) -> int:
    """Make the promises of this instant, write the jobs whose promise is due to `starts`, and return their number.

    The first `refused` jobs are checked only if one of their promises is due, which the clock's `wake_s` shows.
    """
    ledger, state, now_s, waiting = book.ledger, book.state[0], float(clock.now_s), int(clock.waiting)
    first = 0 if book.ended.size[0] > 0 else state.promised
    units, limit_s, promised_s = book.waiting
    queue = backfill.Promised(units[first:waiting], limit_s[first:waiting], promised_s[first:waiting])
    left_s = conservative(queue, book.profile, book.ended, now_s, float(state.better_until_s))
    if book.ended.size[0] > 0:
        state.better_until_s = left_s
    refused = int(ledger.state[0].refused)
    if refused == 0 or clock.wake_s <= now_s:  # promises might have changed or be due, so check all
        refused = 0
        clock.wake_s = np.inf
    found = 0
    for entry in range(refused, waiting):
        if promised_s[entry] > now_s:
            clock.wake_s = min(clock.wake_s, promised_s[entry])
        else:
            job = book.queue[entry]
            book.kept_s[job] = promised_s[entry]
            ledger.starts[found] = job
            found += 1
    return found


@inner
def _leave(book: ByPromise, waited: int, now_s: float) -> None:
    """Remove the jobs that have started from the queue, in which `waited` jobs waited."""
    units, limit_s, promised_s = book.waiting
    left = 0
    for entry in range(waited):
        if promised_s[entry] <= now_s and not np.isnan(book.ledger.start_s[book.queue[entry]]):
            continue
        if left < entry:
            book.queue[left] = book.queue[entry]
            units[left] = units[entry]
            limit_s[left] = limit_s[entry]
            promised_s[left] = promised_s[entry]
        left += 1


@inner
def _idle_units(book: ByPromise, layer: AgentLog, finite: Finite | None, now_s: float) -> int:
    """Return the number of units that no promise needs before the end of an agent that would start now."""
    rules, (steps_s, steps_free, steps) = layer.rules[0], book.profile
    gone_s = agent_end(now_s, float(rules.length_s), 0.0, bool(rules.synchronised))
    idle = int(book.ledger.state[0].free)
    for step in range(steps[0]):
        if steps_s[step] < gone_s:
            theirs = held_past(layer, finite, float(steps_s[step])) if rules.preemption else 0
            idle = min(idle, int(steps_free[step]) - theirs)
    return idle


@inner
def _hold(profile: backfill.Timeline, end_s: float, units: int) -> None:
    """Take units from all steps from the first one, which is now, to `end_s`."""
    at = place_of(profile, end_s)
    if at == profile.size[0] or profile.at_s[at] > end_s:
        insert(profile, at, end_s, int(profile.units[at - 1]))
    for step in range(at):
        profile.units[step] -= units


_loop = part(loop_of(Discipline[ByPromise](always, next_end_s, is_any_waiting, _free, _enter, _decide, never, stop)))


@loop
def run_by_promise(*state: Any) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(*state)
