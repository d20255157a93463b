"""A queue by descending priority: linear priority and Simultaneous Fair-Share. `fair_share` decides.

Of equal priorities the earlier arrival is first. All priorities grow alike with time (see `fair_share.priorities`), so
a job's place does not change.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Codes, Counts, Seconds, Workload, refuse_strangers
from gleaner.control.simulation.replay import fair_share
from gleaner.control.simulation.replay.agents import AgentLog, Finite, RecordArray
from gleaner.control.simulation.replay.compiler import compiled, inner, making, part
from gleaner.control.simulation.replay.loop import Discipline, Rules, always, is_any_waiting, loop_of, never
from gleaner.control.simulation.replay.unit_ledger import (
    UnitLedger,
    expect_end,
    free_of,
    lent,
    next_end_s,
    start,
    start_agents,
    stop,
)
from gleaner.control.simulation.settings import Backfill, SchedulerSettings, ShareSettings
from gleaner.control.simulation.settings import SchedulerKind as Kind

choose = making(fair_share.choose)


class ByRank(NamedTuple):
    """The book of this queue, which has no gaps."""

    ledger: UnitLedger
    queue: Counts
    key: Seconds
    """The priority that each job would have at time 0; with `keep_waiting`, if the job had entered the queue at 0."""
    per_second: float
    """The part of its key that a job loses with each second after 0 at which it enters."""
    owner: Codes
    targets: NDArray[np.float64]
    holds: Counts
    """The units of each owner's running jobs."""
    overtaking: bool


def by_rank(ledger: UnitLedger, workload: Workload, scheduler: SchedulerSettings, *, is_kept_full: bool) -> ByRank:
    """Return the queue before anything was submitted.

    Raise `BadScenario` for a target of somebody who is not among the workload's users, and where nobody has a target.
    """
    if scheduler.kind is Kind.SFS:
        owner, targets = workload.user, targets_of(workload, scheduler.sfs)
    else:  # nobody is below a target of 0, so one owner will do
        owner, targets = np.zeros(len(workload), np.int32), np.zeros(1)
    weights = scheduler.priority
    key = fair_share.priorities(
        np.zeros(len(workload)) if is_kept_full else workload.submit_s,
        ledger.units,
        workload.limit_s,  # as users asked for it, whatever the speed of the machine
        now_s=0.0,
        per_second=weights.per_second,
        per_unit=weights.per_unit,
        per_limit_s=weights.per_limit_s,
    )
    return ByRank(
        ledger,
        queue=np.empty(len(workload), np.int64),
        key=key,
        per_second=float(weights.per_second) if is_kept_full else 0.0,
        owner=owner,
        targets=targets,
        holds=np.zeros(len(targets), np.int64),
        overtaking=scheduler.priority.backfill is not Backfill.NONE,
    )


def targets_of(workload: Workload, share: ShareSettings) -> NDArray[np.float64]:
    """Return the target throughput of each of the workload's users, in units."""
    refuse_strangers("user", share.targets, workload.users, workload.name)
    targets = share.factor * np.array([share.targets.get(user, share.others) for user in workload.users])
    if not np.any(targets > 0):
        raise BadScenario("scheduler.sfs: nobody has a target throughput; set `targets` or `others`")
    return targets


@inner
def _ended(book: ByRank, job: int) -> None:
    book.holds[book.owner[job]] -= book.ledger.units[job]


@inner
def _enter(book: ByRank, clock: Any, job: int, layer: AgentLog | None) -> bool:
    """Put the job behind all jobs whose priority is not lower."""
    queue, key = book.queue, book.key
    key[job] -= book.per_second * clock.now_s
    low = book.ledger.state[0].head
    high = job
    while low < high:
        middle = (low + high) // 2
        if key[queue[middle]] >= key[job]:
            low = middle + 1
        else:
            high = middle
    for place in range(job, low, -1):
        queue[place] = queue[place - 1]
    queue[low] = job
    return True


@making
def _decide(book: ByRank, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    ledger, now_s = book.ledger, float(clock.now_s)
    state = ledger.state[0]
    shadow_s, extra, is_promised, owed = np.inf, int(state.free), False, 0
    if clock.waiting > 0:
        starts, shadows_s, spare = choose(
            book.queue[state.head : clock.arrived],
            ledger.units,
            book.owner,
            ledger.limit_s,
            book.holds,
            book.targets,
            state.free + lent(layer),
            int(book.overtaking),
            now_s,
            ledger.ends_s[: state.ends],
            ledger.ends_units[: state.ends],
        )
        is_promised = len(shadows_s) > 0
        if is_promised:
            shadow_s, extra = float(shadows_s[0]), int(spare[0])
        for job in starts:
            units = int(ledger.units[job])
            if units > state.free or (owed > 0 and not book.overtaking):
                owed += units
                continue
            start(ledger, int(job), now_s)
            clock.waiting -= 1
            expect_end(ledger, float(now_s + ledger.limit_s[job]), units)
            book.holds[book.owner[job]] += units
        state.head = _close_gaps(book.queue, state.head, clock.arrived - clock.waiting, ledger.start_s)
    start_agents(ledger, clock, layer, finite, owed, shadow_s, extra, is_promised)


@inner
def _close_gaps(queue: Counts, head: int, new_head: int, start_s: Seconds) -> int:
    """Remove the jobs that have started from the queue; return the new head.

    As many jobs have started as lie between the old head and the new head.
    """
    last = head
    left = new_head - head
    while left > 0:
        if not np.isnan(start_s[queue[last]]):
            left -= 1
        last += 1
    to = last
    for place in range(last - 1, head - 1, -1):
        if np.isnan(start_s[queue[place]]):
            to -= 1
            queue[to] = queue[place]
    return new_head


_free = part(free_of(_ended))
_loop = making(loop_of(Discipline[ByRank](always, next_end_s, is_any_waiting, _free, _enter, _decide, never, stop)))


@compiled
def run_by_rank(  # noqa: PLR0917 - numba takes no keywords
    book: ByRank, submit_s: Seconds, clocks: RecordArray, rules: Rules, layer: AgentLog | None, finite: Finite | None
) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(book, submit_s, clocks, rules, layer, finite)
