"""A queue in an order that does not change, either by arrival or by descending priority. `backfill.easy` decides.

The disciplines by arrival are first come first served and EASY backfilling. A job's place is its number, and a job that
overtook others leaves a gap. The disciplines by priority are linear priority and Simultaneous Fair-Share, and their
queue has no gaps.

Priorities decide which job is next, and targets decide which owner is next (Steffen, "A Better Way of Scheduling Jobs
on HPC Systems: Simultaneous Fair-Share", HPCSYSPROS 2019). A target is the throughput that an owner should have, in
units held at one instant. It is the allocation divided by its period, times a factor. Only jobs that run or wait now
count.

- Pass one walks down the queue, and passes over all jobs whose owner has reached its target. One job can take its owner
  above the target, but then the owner's next job is passed over.
- Pass two walks down the same queue and ignores the owners. The other disciplines have only this pass.

A walk ends at the first job that it could choose but that does not fit. With backfilling, that job is given a
reservation instead, and the jobs behind it start if they do not delay it. Pass two keeps the reservation of pass one.

The priority is A x_a + B x_b + C x_c with the job's age, size and limit (same paper, "Linear Priority Job Scheduling";
Slurm, Multifactor Priority Plugin). Slurm also limits the age to `PriorityMaxAge`. Here the age grows without limit, so
all priorities grow at the same rate, and a job's place does not change. If priorities are equal, the earlier arrival
comes first.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Codes, Counts, Seconds, Workload, refuse_strangers
from gleaner.control.simulation.replay import backfill
from gleaner.control.simulation.replay import unit_ledger as ledgers
from gleaner.control.simulation.replay.agents import AgentLog, Finite
from gleaner.control.simulation.replay.compiler import inner, loop, part
from gleaner.control.simulation.replay.loop import Discipline, always, is_any_waiting, loop_of, never
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.replay.unit_ledger import UnitLedger, lent, next_end_s, stop
from gleaner.control.simulation.settings import Backfill, ShareSettings
from gleaner.control.simulation.settings import SchedulerKind as Kind

easy = inner(backfill.easy)


class Ranks(NamedTuple):
    """The priority of each job, and the holdings and the target of each owner."""

    key: Seconds
    """The priority that each job would have at time 0. With `keep_waiting`, the job is assumed to have entered the
    queue then."""
    per_second: float
    """The amount by which a job's key is lower for each second after time 0 at which it enters."""
    owner: Codes
    targets: NDArray[np.float64]
    holds: Counts
    """The units of each owner's running jobs."""
    shares: backfill.OwnerShares
    """The same data by place, for one decision."""


class InOrder(NamedTuple):
    """The book of this queue."""

    ledger: UnitLedger
    queue: Counts
    waiting: backfill.Waiting
    """The demands by place, with `backfill.GONE` for a job that has started. With ranks, they are valid only during a
    decision."""
    ranks: Ranks | None
    """None if the queue is in order of arrival."""
    overtaking: bool


def by_arrival(ledger: UnitLedger, *, overtaking: bool) -> InOrder:
    """Return the queue in its initial state, before any submission.

    With `overtaking`, it is EASY, and otherwise first come, first served.
    """
    least = _least(ledger.units, backfill.GONE), _least(ledger.limit_s, np.inf)
    waiting = backfill.Waiting(ledger.units.copy(), ledger.limit_s, *least, ledger.starts)
    return InOrder(ledger, np.arange(len(ledger.units)), waiting, None, overtaking)


def _least(values: Counts | Seconds, nothing: float) -> Any:
    """Return the least value of the jobs in each block of the queue, with one row per level.

    Jobs that are yet to be submitted are included.
    """
    least = np.full((backfill.LEVELS, len(values) // backfill.BLOCK + 1), nothing, values.dtype)
    for level in range(backfill.LEVELS):
        values = np.minimum.reduceat(values, np.arange(0, len(values), backfill.BLOCK))
        least[level, : len(values)] = values
    return least


def by_rank(ledger: UnitLedger, request: ReplayRequest) -> InOrder:
    """Return the queue in its initial state, before any submission.

    Raise `BadScenario` if a user with a target is not in the workload, or if no user has a target.
    """
    workload, scheduler, weights = request.workload, request.scheduler, request.scheduler.priority
    if scheduler.kind is Kind.SFS:
        owner, targets = workload.user, targets_of(workload, scheduler.sfs)
    else:  # no one is below a target of 0, so one owner is enough
        owner, targets = np.zeros(len(workload), np.int32), np.zeros(1)
    jobs, blocks = len(workload), (backfill.LEVELS, len(workload) // backfill.BLOCK + 1)
    ranks = Ranks(
        key=keys_of(request, ledger.units),
        per_second=float(weights.per_second) if request.keep_waiting else 0.0,
        owner=owner,
        targets=targets,
        holds=np.zeros(len(targets), np.int64),
        shares=backfill.OwnerShares(np.empty(jobs, np.int32), np.empty(len(targets), np.int64), targets),
    )
    least = np.zeros(blocks, np.int64), np.zeros(blocks)
    waiting = backfill.Waiting(np.empty(jobs, np.int64), np.empty(jobs), *least, ledger.starts)
    return InOrder(ledger, np.empty(jobs, np.int64), waiting, ranks, weights.backfill is not Backfill.NONE)


def keys_of(request: ReplayRequest, units: Counts) -> Seconds:
    """Return the priority that each job, with these numbers of units, would have at time 0 (see `Ranks.key`)."""
    workload, weights = request.workload, request.scheduler.priority
    since_s = np.zeros(len(workload)) if request.keep_waiting else workload.submit_s
    # The requested limit counts, whatever the speed of the machine.
    return weights.per_second * -since_s + weights.per_unit * units + weights.per_limit_s * workload.limit_s


def targets_of(workload: Workload, share: ShareSettings) -> NDArray[np.float64]:
    """Return the target throughput of each of the workload's users, in units."""
    refuse_strangers("user", share.targets, workload.users, workload.name)
    targets = share.factor * np.array([share.targets.get(user, share.others) for user in workload.users])
    if not np.any(targets > 0):
        raise BadScenario("sfs needs targets: --set scheduler.sfs.targets.USER=UNITS, or others of [scheduler.sfs]")
    return targets


@part
def _free(book: InOrder, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    ledger, is_news = book.ledger, False
    while next_end_s(book) <= clock.now_s:
        job = ledgers.end_next(ledger)
        ledgers.forget(ledger.ends, float(ledger.start_s[job] + ledger.limit_s[job]), int(ledger.units[job]))
        _hold(book.ranks, job, -int(ledger.units[job]))
        is_news = True
    if ledgers.free_agents(ledger, clock, layer, finite):
        ledgers.forget_agents(ledger, layer)
        is_news = True
    return is_news


@inner
def _hold(ranks: Ranks | None, job: int, units: int) -> None:
    if ranks is not None:  # a parameter, because only then does the compiler omit the code for None
        ranks.holds[ranks.owner[job]] += units


@inner
def _enter(book: InOrder, clock: Any, job: int, layer: AgentLog | None) -> bool:
    """Add a job to the queue. A decision is due if the job fits, or if agents must not delay it.

    With ranks a decision is always due, because a job that becomes the first one changes the set of jobs that can
    overtake it.
    """
    _insert(book, job, float(clock.now_s), book.ranks)
    is_first = layer is not None and clock.waiting == 0
    return book.ranks is not None or is_first or bool(book.ledger.units[job] <= book.ledger.state[0].free + lent(layer))


@inner
def _insert(book: InOrder, job: int, now_s: float, ranks: Ranks | None) -> None:
    """Insert the job behind all jobs whose priority is not lower."""
    if ranks is None:
        return
    queue, key = book.queue, ranks.key
    key[job] -= ranks.per_second * now_s
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


@part
def _decide(book: InOrder, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    """Start jobs, then agents."""
    ledger, now_s = book.ledger, float(clock.now_s)
    state = ledger.state[0]
    found, promise = 0, backfill.Reservation(np.inf, int(state.free))
    if clock.waiting > 0:
        found, promise = _choose(book, clock, state.free + lent(layer), book.ranks)
    owed = 0  # units for jobs that wait for agents' saves
    for entry in range(found):
        place = int(ledger.starts[entry])
        job = int(book.queue[place])
        if ledgers.start_chosen(ledger, job, now_s, owed > 0 and not book.overtaking):
            clock.waiting -= 1
            book.waiting.units[place] = backfill.GONE
            _hold(book.ranks, job, int(ledger.units[job]))
        else:
            owed += int(ledger.units[job])
    state.head = _new_head(book, state.head, clock.arrived, clock.arrived - clock.waiting, book.ranks)
    state.refused = clock.arrived - state.head if owed == 0 else 0
    ledgers.start_agents(ledger, clock, layer, finite, owed, promise, book.overtaking)


@inner
def _choose(book: InOrder, clock: Any, free: int, ranks: Ranks | None) -> tuple[int, backfill.Reservation]:
    """Write the places of the jobs that start now to `ledger.starts`. Return their number, and the reservation."""
    ledger, state, end = book.ledger, book.ledger.state[0], int(clock.arrived)
    now_s, nothing = float(clock.now_s), backfill.Reservation(np.inf, free)
    if ranks is None:
        span = int(state.head), end, int(state.refused)
        return easy(book.waiting, span, ledger.ends, None, now_s, free, book.overtaking, nothing)
    _look_up(book, ranks, int(state.head), end)
    span = int(state.head), end, 0
    found, promise = 0, nothing
    is_anyone_below = False
    for owner in range(len(ranks.holds)):
        is_anyone_below = is_anyone_below or ranks.holds[owner] < ranks.targets[owner]
    if is_anyone_below:
        found, promise = easy(book.waiting, span, ledger.ends, ranks.shares, now_s, free, book.overtaking, nothing)
        for entry in range(found):
            free -= int(book.waiting.units[ledger.starts[entry]])
            book.waiting.units[ledger.starts[entry]] = backfill.GONE
        if not book.overtaking:
            promise = nothing
    if free > 0:
        units, limit_s, least_units, least_limit_s, starts = book.waiting
        others = backfill.Waiting(units, limit_s, least_units, least_limit_s, starts[found:])
        more, promise = easy(others, span, ledger.ends, None, now_s, free, book.overtaking, promise)
        found += more
    return found, promise


@inner
def _look_up(book: InOrder, ranks: Ranks, head: int, end: int) -> None:
    """Write, by place, the demands of the waiting jobs and the units that their owners hold."""
    waiting, shares = book.waiting, ranks.shares
    for place in range(head, end):
        job = book.queue[place]
        waiting.units[place] = book.ledger.units[job]
        waiting.limit_s[place] = book.ledger.limit_s[job]
        shares.owner[place] = ranks.owner[job]
    for owner in range(len(ranks.holds)):
        shares.holds[owner] = ranks.holds[owner]
    width = 1
    for level in range(backfill.LEVELS):
        width *= backfill.BLOCK
        for block in range(head // width, end // width + 1):
            waiting.least_units[level, block] = 0
            waiting.least_limit_s[level, block] = 0.0


@inner
def _new_head(book: InOrder, head: int, end: int, new_head: int, ranks: Ranks | None) -> int:
    """Return the place of the first job that waits. With ranks, jobs that have started are removed from the queue.

    The number of jobs that have started is the distance between the old head and `new_head`.
    """
    if ranks is None:
        while head < end and book.waiting.units[head] == backfill.GONE:
            head += 1
        return head
    queue, start_s = book.queue, book.ledger.start_s
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


_loop = part(loop_of(Discipline[InOrder](always, next_end_s, is_any_waiting, _free, _enter, _decide, never, stop)))


@loop
def run_in_order(*state: Any) -> int:
    """Run the loop of `replay.loop` with this queue."""
    return _loop(*state)
