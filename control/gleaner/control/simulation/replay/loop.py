"""The event loop of a replay. A discipline is a set of functions that are compiled into the loop.

At each instant, ending work first frees its units, and then submitted jobs join the queue. After that, one decision
takes all of this into account, unless it has to wait for the next multiple of `decide_every_s`. Agents start last. A
job with a run time of 0 ends at the instant of its start, after that decision. A decision is repeated only if something
has changed.

The loop itself handles only instants. Waiting jobs, running jobs and free units are in the discipline's book.
"""

import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gleaner.control.simulation.model import Seconds
from gleaner.control.simulation.replay.agent_starts import close
from gleaner.control.simulation.replay.agent_starts import next_s as next_of_agents
from gleaner.control.simulation.replay.agents import AgentLog, Finite, is_full, larger_log
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.records import RecordArray, record_type
from gleaner.control.simulation.replay.request import ReplayRequest

Book = TypeVar("Book")

ENDED, FULL, LOG_IS_FULL, PAUSED = range(4)
"""The reasons why the loop stopped: the replay has ended, the book or the agents' log is full, or the discipline has to
act outside the loop."""

CLOCK = record_type(integers="arrived waiting", floats="now_s decide_s wake_s agents_s")
"""The state of the loop, as one record. `arrived` is the number of submitted jobs, and so the index of the next one.
`waiting` is the number of waiting jobs. `decide_s` is the time of the next decision, `wake_s` another instant that the
discipline needs, and `agents_s` the time at which the agents have something to do. A time is infinite if there is none.
The discipline updates `wake_s` and `waiting`."""


class Rules(NamedTuple):
    """The settings that all disciplines have."""

    every_s: float
    until_s: float
    keep_waiting: int


class Discipline(NamedTuple, Generic[Book]):
    """The functions of a discipline. Each changes the book and the clock in place, and is compiled into the loop."""

    has_room: Callable[[Book], bool]
    """Return True if the book has room for everything that one more instant can add."""
    next_end_s: Callable[[Book], float]
    """Return the time at which the next job ends or frees units in another way, which is infinite if none does."""
    is_needed: Callable[[Book, Any, AgentLog], bool]
    """Return True if the agents must continue because jobs wait for their nodes, although no job runs and no more jobs
    will come."""
    free: Callable[[Book, Any, AgentLog | None, Finite | None], bool]
    """End the jobs whose end has come, and the agents if `agents_s` is due. Return True if a decision is due."""
    enter: Callable[[Book, Any, int, AgentLog | None], bool]
    """Add a job to the queue. Return True if a decision is due."""
    decide: Callable[[Book, Any, AgentLog | None, Finite | None], None]
    """Start jobs, then agents."""
    pauses: Callable[[Book, Any, bool], bool]
    """Return True if the loop must pause. The last argument is True if anything has changed at this instant."""
    stop: Callable[[Book, float], None]
    """Stop all running work at the end of the replay."""


Loop: TypeAlias = Callable[[Book, Seconds, RecordArray, Rules, AgentLog | None, Finite | None], int]


def loop_of(discipline: Discipline[Book]) -> Loop[Book]:
    """Return the loop for this discipline, to be compiled. It returns the reason why it stopped."""
    has_room, next_end_s, is_needed, free, enter, decide, pauses, stop = discipline

    def replayed(  # noqa: PLR0917 - numba takes no keywords
        book: Book, submit_s: Seconds, clocks: RecordArray, rules: Rules, layer: AgentLog | None, finite: Finite | None
    ) -> int:
        clock = clocks[0]
        while True:
            if not has_room(book):
                return FULL
            event_s = min(_arrival_s(submit_s, clock, rules.keep_waiting), next_end_s(book))
            if layer is not None:
                if event_s == np.inf and rules.until_s == np.inf and not is_needed(book, clock, layer):
                    break
                if is_full(layer):
                    return LOG_IS_FULL
                clock.agents_s = next_of_agents(layer, finite)
                event_s = min(event_s, clock.agents_s)
            now_s = min(event_s, clock.decide_s, clock.wake_s)
            clock.now_s = now_s
            if not now_s < rules.until_s:
                break

            is_news = free(book, clock, layer, finite)
            while _arrival_s(submit_s, clock, rules.keep_waiting) <= now_s:
                job = clock.arrived
                if rules.keep_waiting > 0:
                    submit_s[job] = now_s
                is_news = enter(book, clock, job, layer) or is_news
                clock.arrived += 1
                clock.waiting += 1
            if is_news and clock.decide_s == np.inf:
                clock.decide_s = np.ceil(now_s / rules.every_s) * rules.every_s if rules.every_s > 0 else now_s
            if clock.decide_s <= now_s:
                clock.decide_s = np.inf
                decide(book, clock, layer, finite)
            if pauses(book, clock, is_news):
                return PAUSED
        stop_s = clock.now_s if rules.until_s == np.inf else rules.until_s
        stop(book, stop_s)
        if layer is not None:
            close(layer, finite, stop_s)
        return ENDED

    return replayed


@inner
def _arrival_s(submit_s: Seconds, clock: Any, keep_waiting: int) -> float:
    if clock.arrived == len(submit_s):
        return np.inf
    if keep_waiting > 0:
        return float(clock.now_s) if clock.waiting < keep_waiting else np.inf
    return float(submit_s[clock.arrived])


@inner
def always(book: Any) -> bool:
    """Return True, for a book that never lacks room."""
    return True


@inner
def never(book: Any, clock: Any, is_news: bool) -> bool:
    """Return False, for a discipline that never acts outside the loop."""
    return False


@inner
def is_any_waiting(book: Any, clock: Any, layer: AgentLog) -> bool:
    """Return True if a job waits, because it might start when agents end."""
    return bool(clock.waiting > 0)


def run_loop(  # noqa: PLR0917
    loop: Loop[Book],
    book: Book,
    submit_s: Seconds,
    request: ReplayRequest,
    layer: AgentLog | None,
    finite: Finite | None,
    larger: Callable[[Book], Book] = lambda book: book,
    pause: Callable[[Book, Any], None] = lambda book, clock: None,
) -> tuple[Book, AgentLog | None, float]:
    """Run a compiled loop to the end of the replay. Return the book, the layer, and the time at which the replay
    stopped.

    `larger` makes room in a full book. `pause` carries out the discipline's action outside the loop.
    """
    until_s = math.inf if request.until_s is None else float(request.until_s)
    rules = Rules(float(request.scheduler.decide_every_s), until_s, request.keep_waiting)
    clocks = np.zeros(1, CLOCK)
    clocks["now_s"] = 0.0 if rules.keep_waiting > 0 else -math.inf
    clocks["decide_s"] = clocks["wake_s"] = clocks["agents_s"] = math.inf
    while (why := loop(book, submit_s, clocks, rules, layer, finite)) != ENDED:
        if why == FULL:
            book = larger(book)
        elif why == LOG_IS_FULL and layer is not None:
            layer = larger_log(layer)
        else:
            pause(book, clocks[0])
    return book, layer, float(clocks["now_s"][0]) if until_s == math.inf else until_s
