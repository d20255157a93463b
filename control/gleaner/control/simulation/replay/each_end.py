"""The convention of the simulator pyss for several ends at one instant: each end has a decision of its own.

The queue is that of `arrival`. The ends of one instant come in the order in which the jobs started, and a decision does
not know of the ends after it, with one exception: a job that has reached its limit counts as ended from the first of
these decisions on. What is submitted at that instant comes last.
"""

from typing import Any, NamedTuple

import numpy as np

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay import arrival
from gleaner.control.simulation.replay.agents import AgentLog, Finite, RecordArray
from gleaner.control.simulation.replay.arrival import ByArrival
from gleaner.control.simulation.replay.compiler import inner, loop, part
from gleaner.control.simulation.replay.loop import Discipline, Rules, always, is_any_waiting, loop_of, never
from gleaner.control.simulation.replay.unit_ledger import UnitLedger, end_next, forget_end, next_end_s, stop

_STATE = np.dtype(
    [
        ("now_s", "f8"),  # the instant whose ends are collected
        ("at", "i8"),  # the next of these ends
        ("ends", "i8"),  # the number of these ends
        ("decisions", "i8"),
    ]
)
enter_queue, decide_queue = arrival.enter, arrival.decide


class EachEnd(NamedTuple):
    """The book: a queue by arrival, and the ends of one instant."""

    ledger: UnitLedger
    queue: ByArrival
    jobs: Counts
    """The jobs that end at this instant, in the order of their starts."""
    decision: Counts
    """The number of the decision that started each job."""
    state: RecordArray
    """One record."""


def each_end(queue: ByArrival) -> EachEnd:
    """Return the book before anything was submitted."""
    decision = np.empty_like(queue.units)
    return EachEnd(queue.ledger, queue, np.empty_like(queue.ledger.heap_job), decision, np.zeros(1, _STATE))


@inner
def _next_end_s(book: EachEnd) -> float:
    state = book.state[0]
    return float(state.now_s) if state.at < state.ends else next_end_s(book)


@part
def _free(book: EachEnd, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    """End one job. The first call of an instant also ends the jobs that have reached their limit."""
    state = book.state[0]
    if state.at == state.ends:
        _collect(book, float(clock.now_s))
    if state.at == state.ends:
        return False
    job = int(book.jobs[state.at])
    if _expected_s(book, job) > clock.now_s:
        _release(book, job)
    state.at += 1
    clock.has_more = state.at < state.ends
    return True


@inner
def _collect(book: EachEnd, now_s: float) -> None:
    """Find all jobs that end now, in the order of their starts."""
    state, ledger, jobs = book.state[0], book.ledger, book.jobs
    state.now_s = now_s
    state.at = state.ends = 0
    while next_end_s(book) <= now_s:
        job = end_next(ledger)
        ledger.state[0].free -= ledger.units[job]
        at = int(state.ends)
        while at > 0 and _starts_after(book, int(jobs[at - 1]), job):
            jobs[at] = jobs[at - 1]
            at -= 1
        jobs[at] = job
        state.ends += 1
        if _expected_s(book, job) <= now_s:
            _release(book, job)


@inner
def _starts_after(book: EachEnd, job: int, other: int) -> bool:
    """Return True if the job started after the other. One decision starts jobs in the order of the queue."""
    if book.decision[job] == book.decision[other]:
        return job > other
    return bool(book.decision[job] > book.decision[other])


@inner
def _expected_s(book: EachEnd, job: int) -> float:
    return float(book.ledger.start_s[job] + book.ledger.limit_s[job])


@inner
def _release(book: EachEnd, job: int) -> None:
    units = int(book.ledger.units[job])
    book.ledger.state[0].free += units
    book.ledger.state[0].refused = 0
    forget_end(book.ledger, _expected_s(book, job), units)


@inner
def _enter(book: EachEnd, clock: Any, job: int, layer: AgentLog | None) -> bool:
    return enter_queue(book.queue, clock, job, layer)


@part
def _decide(book: EachEnd, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    waiting = int(clock.waiting)
    decide_queue(book.queue, clock, layer, finite)
    book.state[0].decisions += 1
    for entry in range(waiting - clock.waiting):
        book.decision[book.ledger.starts[entry]] = book.state[0].decisions


_loop = part(loop_of(Discipline[EachEnd](always, _next_end_s, is_any_waiting, _free, _enter, _decide, never, stop)))


@loop
def run_each_end(  # noqa: PLR0917 - numba takes no keywords
    book: EachEnd, submit_s: Seconds, clocks: RecordArray, rules: Rules, layer: AgentLog | None, finite: Finite | None
) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(book, submit_s, clocks, rules, layer, finite)
