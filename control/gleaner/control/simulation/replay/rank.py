"""A queue by descending priority: linear priority and Simultaneous Fair-Share. `backfill.easy` decides.

Priorities decide which job is next, and targets decide whose (Steffen, "A Better Way of Scheduling Jobs on HPC Systems:
Simultaneous Fair-Share", HPCSYSPROS 2019). A target is the throughput that an owner ought to have (allocation over its
period, times a factor), in units held at one instant. Only what runs and what waits now counts.

- Pass one walks down the queue, and passes over all jobs whose owner holds its target or more. A job may bring its
  owner above the target; the owner's next job is passed over.
- Pass two walks down the same queue, whoever owns the jobs. Linear priority has only this pass.

A walk ends at the first job that it may choose and that does not fit. With backfilling that job has a reservation
instead, and those behind it start if they do not delay it. Pass two keeps the reservation of pass one.

The priority is A x_a + B x_b + C x_c with the job's age, size and limit (the same paper, "Linear Priority Job
Scheduling"; Slurm, Multifactor Priority Plugin). Slurm also cuts the age at `PriorityMaxAge`. Here the age grows
without end, so all priorities grow alike, and a job's place does not change. Of equal priorities the earlier
arrival is first.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Codes, Counts, Seconds, Workload, refuse_strangers
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
from gleaner.control.simulation.settings import Backfill, SchedulerSettings, ShareSettings
from gleaner.control.simulation.settings import SchedulerKind as Kind

easy = inner(backfill.easy)


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
    units: Counts
    """The requests of the waiting jobs, by place. Only valid during a decision, as the next four are."""
    limit_s: Seconds
    least_units: Counts
    least_limit_s: Seconds
    shares: backfill.OwnerShares
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
    since_s = np.zeros(len(workload)) if is_kept_full else workload.submit_s
    # The limit counts as users asked for it, whatever the speed of the machine.
    key = weights.per_second * -since_s + weights.per_unit * ledger.units + weights.per_limit_s * workload.limit_s
    blocks = backfill.LEVELS, len(workload) // backfill.BLOCK + 1
    return ByRank(
        ledger,
        queue=np.empty(len(workload), np.int64),
        key=key,
        per_second=float(weights.per_second) if is_kept_full else 0.0,
        owner=owner,
        targets=targets,
        holds=np.zeros(len(targets), np.int64),
        units=np.empty(len(workload), np.int64),
        limit_s=np.empty(len(workload)),
        least_units=np.zeros(blocks, np.int64),
        least_limit_s=np.zeros(blocks),
        shares=backfill.OwnerShares(np.empty(len(workload), np.int32), np.empty(len(targets), np.int64), targets),
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


@part
def _decide(book: ByRank, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    ledger, now_s = book.ledger, float(clock.now_s)
    state = ledger.state[0]
    found, shadow_s, extra = 0, np.inf, int(state.free)
    if clock.waiting > 0:
        found, shadow_s, extra = _choose(book, clock, state.free + lent(layer))
    owed = 0  # units, to jobs that wait for agents to be saved
    for entry in range(found):
        job = int(book.queue[ledger.starts[entry]])
        units = int(ledger.units[job])
        if units > state.free or (owed > 0 and not book.overtaking):
            forget_end(ledger, float(now_s + ledger.limit_s[job]), units)
            owed += units
            continue
        start(ledger, job, now_s)
        clock.waiting -= 1
        book.holds[book.owner[job]] += units
    state.head = _close_gaps(book.queue, state.head, clock.arrived - clock.waiting, ledger.start_s)
    start_agents(ledger, clock, layer, finite, owed, shadow_s, extra, book.overtaking)


@inner
def _choose(book: ByRank, clock: Any, free: int) -> tuple[int, float, int]:
    """Write the places of the jobs that start now to `ledger.starts`.

    Return how many start, the shadow time, and the units that may be held past that.
    """
    state, end = book.ledger.state[0], int(clock.arrived)
    for place in range(state.head, end):
        job = book.queue[place]
        book.units[place] = book.ledger.units[job]
        book.limit_s[place] = book.ledger.limit_s[job]
        book.shares.owner[place] = book.owner[job]
    width = 1
    for level in range(len(book.least_units)):
        width *= backfill.BLOCK
        for block in range(state.head // width, end // width + 1):
            book.least_units[level, block] = 0
            book.least_limit_s[level, block] = 0.0
    is_anyone_below = False
    for owner in range(len(book.holds)):
        book.shares.holds[owner] = book.holds[owner]
        is_anyone_below = is_anyone_below or book.holds[owner] < book.targets[owner]

    found, shadow_s, extra = 0, np.inf, free
    if is_anyone_below:
        found, shadow_s, extra = _walk(book, clock, free, 0, book.shares, shadow_s, extra)
        for entry in range(found):
            free -= int(book.units[book.ledger.starts[entry]])
            book.units[book.ledger.starts[entry]] = backfill.GONE
        if not book.overtaking:
            shadow_s = np.inf
    if free > 0:
        more, shadow_s, extra = _walk(book, clock, free, found, None, shadow_s, extra)
        found += more
    return found, shadow_s, extra


@inner
def _walk(  # noqa: PLR0917 - numba takes no keywords
    book: ByRank, clock: Any, free: int, found: int, shares: backfill.OwnerShares | None, shadow_s: float, extra: int
) -> tuple[int, float, int]:
    ledger = book.ledger
    state = ledger.state[0]
    more, state.ends, shadow_s, extra = easy(
        clock.now_s,
        free,
        state.ends,
        ledger.ends_s,
        ledger.ends_units,
        book.units,
        book.limit_s,
        book.least_units,
        book.least_limit_s,
        state.head,
        clock.arrived,
        0,
        book.overtaking,
        ledger.starts[found:],
        shares,
        shadow_s,
        extra,
    )
    return more, shadow_s, extra


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
_loop = part(loop_of(Discipline[ByRank](always, next_end_s, is_any_waiting, _free, _enter, _decide, never, stop)))


@loop
def run_by_rank(  # noqa: PLR0917 - numba takes no keywords
    book: ByRank, submit_s: Seconds, clocks: RecordArray, rules: Rules, layer: AgentLog | None, finite: Finite | None
) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(book, submit_s, clocks, rules, layer, finite)
