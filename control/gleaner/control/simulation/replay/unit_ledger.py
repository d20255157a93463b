"""The ledger of a machine whose units are only counted, with running jobs, expected ends, and free units. This module
is compiled.

For the scheduler, agents are work with a known end. With preemption, the scheduler does not see agents and decides as
if their nodes were free. A job that it starts on these nodes waits for the agents' saves.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay import backfill
from gleaner.control.simulation.replay.agent_starts import decide, held, held_past, release
from gleaner.control.simulation.replay.agents import AgentLog, Finite
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.heap import pop, push
from gleaner.control.simulation.replay.records import RecordArray, record_type

expect, forget = inner(backfill.expect), inner(backfill.forget)

_STATE = record_type(integers="free running head refused")
"""`head` is the place of the first job in the queue. `refused` is the number of jobs, counted from the head, that the
latest decision refused, or 0 if units have been freed since."""


class UnitLedger(NamedTuple):
    """The jobs on this machine, and the running work. The replay fills in `start_s` and `end_s`."""

    run_s: Seconds
    limit_s: Seconds
    units: Counts
    start_s: Seconds
    end_s: Seconds
    heap_s: Seconds
    heap_job: Counts
    ends: backfill.Timeline
    """The expected ends of running work."""
    starts: Counts
    """Space for the jobs that a decision starts."""
    state: RecordArray
    """One record."""


class Queue(Protocol):
    """The book of any queue on this ledger."""

    @property
    def ledger(self) -> UnitLedger: ...


def new_ledger(run_s: Seconds, limit_s: Seconds, units: Counts, capacity: int, *, has_agents: bool) -> UnitLedger:
    """Return the ledger in its initial state. Its arrays never have to grow."""
    jobs = len(units)
    room = min(jobs, capacity) + 1
    most_ends = capacity + 1 if has_agents else room  # each unit can belong to an agent
    state = np.zeros(1, _STATE)
    state["free"] = capacity
    return UnitLedger(
        run_s,
        limit_s,
        units,
        np.full(jobs, math.nan),
        np.full(jobs, math.nan),
        heap_s=np.empty(room),
        heap_job=np.empty(room, np.int64),
        ends=backfill.timeline(most_ends),
        starts=np.empty(jobs, np.int64),  # due jobs that wait for agents can need more than all units
        state=state,
    )


@inner
def next_end_s(queue: Queue) -> float:
    """Return the time at which the next job ends, which is infinite if no job runs."""
    ledger = queue.ledger
    return float(ledger.heap_s[0]) if ledger.state[0].running > 0 else np.inf


@inner
def end_next(ledger: UnitLedger) -> int:
    """End the job that ends next, and return its number."""
    state = ledger.state[0]
    job = int(ledger.heap_job[0])
    state.running = pop(ledger.heap_s, ledger.heap_job, state.running)
    state.free += ledger.units[job]
    state.refused = 0
    return job


@inner
def start(ledger: UnitLedger, job: int, now_s: float) -> None:
    """Start a job."""
    state = ledger.state[0]
    ledger.start_s[job] = now_s
    ledger.end_s[job] = now_s + ledger.run_s[job]
    state.running = push(ledger.heap_s, ledger.heap_job, state.running, float(ledger.end_s[job]), job)
    state.free -= ledger.units[job]


@inner
def start_chosen(ledger: UnitLedger, job: int, now_s: float, is_held: bool) -> bool:
    """Start a chosen job. If it has to wait for agents to be saved, remove its expected end instead."""
    units = int(ledger.units[job])
    if is_held or units > ledger.state[0].free:
        forget(ledger.ends, float(now_s + ledger.limit_s[job]), units)
        return False
    start(ledger, job, now_s)
    return True


@inner
def lent(layer: AgentLog | None) -> int:
    """Return the number of units that agents hold although the scheduler sees them as free."""
    if layer is None:
        return 0
    return held(layer) if layer.rules[0].preemption else 0


@inner
def free_agents(ledger: UnitLedger, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    """Free the nodes of agents that have ended by now. Return True if the agents had anything to do."""
    if layer is None:
        return False
    if clock.agents_s > clock.now_s:
        return False
    ledger.state[0].free += release(layer, finite, clock.now_s)
    if not layer.rules[0].preemption:
        ledger.state[0].refused = 0
    return True


@inner
def forget_agents(ledger: UnitLedger, layer: AgentLog | None) -> None:
    """Remove the expected ends of the agents that have just been released."""
    if layer is None or layer.rules[0].preemption:
        return
    for entry in range(layer.state[0].freed):
        forget(ledger.ends, float(layer.freed[entry].end_s), int(layer.freed[entry].units))


@inner
def start_agents(  # noqa: PLR0917 - numba takes no keywords
    ledger: UnitLedger,
    clock: Any,
    layer: AgentLog | None,
    finite: Finite | None,
    owed: int,
    promise: backfill.Reservation,
    is_promised: bool,
) -> None:
    """Start agents that delay no promise.

    Without a promise, no agent starts while the first job waits only for agents.
    """
    if layer is not None:
        state, preemption = ledger.state[0], bool(layer.rules[0].preemption)
        shadow_s, extra = promise
        if not is_promised:
            if state.running == 0 and clock.waiting > 0 and not preemption:
                return
            shadow_s, extra = np.inf, int(state.free)
        if preemption and shadow_s < np.inf:
            extra -= held_past(layer, finite, shadow_s)
        taken, gone_s = decide(layer, finite, clock.now_s, state.free, owed, shadow_s, extra)
        if taken > 0:
            state.free -= taken
            if not preemption:
                expect(ledger.ends, gone_s, taken)


@inner
def stop(queue: Queue, stop_s: float) -> None:
    """Remove the ends of jobs that still run when the replay stops."""
    ledger = queue.ledger
    for entry in range(ledger.state[0].running):
        if ledger.heap_s[entry] > stop_s:
            ledger.end_s[ledger.heap_job[entry]] = np.nan
