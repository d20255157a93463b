"""The harm meter: the time for which regular jobs waited until agents had left their nodes. The module is pure.

The delay of a job is the time from Slurm's PreemptTime of the last agent that had to leave one of the job's nodes to
the job's StartTime. It is a lower bound, because agents can delay jobs in other ways, which only a simulation shows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LONGEST_DELAY_S = 3600.0
"""The longest delay that counts. A longer one has another cause, such as a step of the clock."""
_LATE = 0.95


@dataclass(frozen=True, slots=True)
class RegularStart:
    """The start of a regular job, which was ready to start at `eligible_s`."""

    job: str
    nodes: tuple[str, ...]
    eligible_s: float
    start_s: float


@dataclass(frozen=True, slots=True)
class Delay:
    """The delay of a regular job's start, in seconds."""

    job: str
    start_s: float
    delay_s: float


def delays(preempted_s: Mapping[str, float], starts: Iterable[RegularStart]) -> list[Delay]:
    """Return the delay of each job that took nodes from agents.

    `preempted_s` contains for each node the time at which its last agent was asked to leave. Only the first job that
    starts on a node after that time has taken it.

    >>> delays({"n1": 100.0, "n2": 104.0}, [RegularStart("7", ("n1", "n2"), 90.0, 110.0)])
    [Delay(job='7', start_s=110.0, delay_s=6.0)]
    """
    some = list(starts)
    first_s: dict[str, float] = {}
    for start in some:
        for node in start.nodes:
            if preempted_s.get(node, math.inf) <= start.start_s:
                first_s[node] = min(first_s.get(node, math.inf), start.start_s)
    found: list[Delay] = []
    for start in some:
        taken_s = [preempted_s[node] for node in start.nodes if first_s.get(node) == start.start_s]
        if taken_s:
            delay_s = start.start_s - max(start.eligible_s, *taken_s)
            found.append(Delay(start.job, start.start_s, max(0.0, delay_s)))
    return [delay for delay in found if delay.delay_s <= LONGEST_DELAY_S]


@dataclass(frozen=True, slots=True)
class Harm:
    """The delays, in seconds, of regular jobs that waited for agents to leave their nodes. They are lower bounds."""

    jobs: int = 0
    sum_s: float = 0.0
    largest_s: float = 0.0
    late_s: float = 0.0
    """The 95th percentile."""


def harm(delays_s: Sequence[float]) -> Harm:
    """Return a summary of these delays.

    >>> harm([1.0, 2.0, 30.0])
    Harm(jobs=3, sum_s=33.0, largest_s=30.0, late_s=30.0)
    """
    if not delays_s:
        return Harm()
    late_s = sorted(delays_s)[min(len(delays_s) - 1, int(_LATE * len(delays_s)))]
    return Harm(len(delays_s), math.fsum(delays_s), max(delays_s), late_s)
