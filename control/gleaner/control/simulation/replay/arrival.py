"""A queue in order of arrival: first come, first served, and EASY backfilling. `replay.backfill` decides.

The queue is the workload itself: a job's place is its number. A job that overtook others leaves a gap.
"""

from typing import Any, NamedTuple

import numpy as np

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay import backfill
from gleaner.control.simulation.replay.agents import AgentLog, Finite, RecordArray
from gleaner.control.simulation.replay.compiler import inner, loop, part
from gleaner.control.simulation.replay.loop import Discipline, Rules, always, is_any_waiting, loop_of, never
from gleaner.control.simulation.replay.unit_ledger import (
    UnitLedger,
    forget_end,
    free_of,
    lent,
    next_end_s,
    start,
    start_agents,
    stop,
)

easy = inner(backfill.easy)


class ByArrival(NamedTuple):
    """The book of this queue."""

    ledger: UnitLedger
    units: Counts
    """`backfill.GONE` for a job that has started."""
    least_units: Counts
    least_limit_s: Seconds
    overtaking: bool


def by_arrival(ledger: UnitLedger, *, overtaking: bool) -> ByArrival:
    """Return the queue before anything was submitted. `overtaking`: EASY, not first come first served."""
    least = _least(ledger.units, backfill.GONE), _least(ledger.limit_s, np.inf)
    return ByArrival(ledger, ledger.units.copy(), *least, overtaking)


def _least(values: Counts | Seconds, nothing: float) -> Any:
    """Return for each block of the queue the least of its jobs' values, one row per level.

    Jobs that are yet to be submitted count too.
    """
    least = np.full((backfill.LEVELS, len(values) // backfill.BLOCK + 1), nothing, values.dtype)
    for level in range(backfill.LEVELS):
        values = np.minimum.reduceat(values, np.arange(0, len(values), backfill.BLOCK))
        least[level, : len(values)] = values
    return least


@inner
def _ended(book: ByArrival, job: int) -> None:
    """Do nothing: the job left the queue at its start."""


@inner
def enter(book: ByArrival, clock: Any, job: int, layer: AgentLog | None) -> bool:
    """Put a job into the queue. A decision is due if the job fits, or if agents must not delay it."""
    is_first = layer is not None and clock.waiting == 0
    return is_first or bool(book.units[job] <= book.ledger.state[0].free + lent(layer))


@part
def decide(book: ByArrival, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    """Start jobs, then agents. `ledger.starts` begins with the jobs that were chosen."""
    ledger, now_s = book.ledger, float(clock.now_s)
    state = ledger.state[0]
    found, shadow_s, extra = 0, np.inf, int(state.free)
    if clock.waiting > 0:
        found, state.ends, shadow_s, extra = easy(
            now_s,
            state.free + lent(layer),
            state.ends,
            ledger.ends_s,
            ledger.ends_units,
            book.units,
            ledger.limit_s,
            book.least_units,
            book.least_limit_s,
            state.head,
            clock.arrived,
            state.refused,
            book.overtaking,
            ledger.starts,
            None,
            np.inf,
            0,
        )
    owed = 0  # units, to jobs that wait for agents to be saved
    for entry in range(found):
        job = int(ledger.starts[entry])
        units = int(ledger.units[job])
        if units > state.free or (owed > 0 and not book.overtaking):
            forget_end(ledger, float(now_s + ledger.limit_s[job]), units)
            owed += units
            continue
        start(ledger, job, now_s)
        clock.waiting -= 1
        book.units[job] = backfill.GONE
    while state.head < clock.arrived and book.units[state.head] == backfill.GONE:
        state.head += 1
    state.refused = clock.arrived - state.head if owed == 0 else 0
    start_agents(ledger, clock, layer, finite, owed, shadow_s, extra, book.overtaking)


_free = part(free_of(_ended))
_loop = part(loop_of(Discipline[ByArrival](always, next_end_s, is_any_waiting, _free, enter, decide, never, stop)))


@loop
def run_by_arrival(  # noqa: PLR0917 - numba takes no keywords
    book: ByArrival, submit_s: Seconds, clocks: RecordArray, rules: Rules, layer: AgentLog | None, finite: Finite | None
) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(book, submit_s, clocks, rules, layer, finite)
