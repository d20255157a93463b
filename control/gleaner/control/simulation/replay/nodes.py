"""Replays on machines whose nodes matter, with shared nodes, nodes of several classes, or jobs that migrate between
nodes.

The disciplines are first come first served, EASY backfilling, and linear priority. Each start chooses nodes by first
fit (see `ledger`). The event loop is the one in `loop`. Agents start on nodes that are wholly idle (see
`agents_on_nodes`). Migration comes last.

A job runs at the speed of its slowest node. A migration consists of a save, during which the job holds its old cores
and the new cores are reserved, and of a restore on the new cores. The job does not compute during either of them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Allocation, Counts, NodeRanges, Schedule, Seconds, Stretches
from gleaner.control.simulation.replay import ledger as ledgers
from gleaner.control.simulation.replay import loop, migration
from gleaner.control.simulation.replay.agents import AgentLog, Finite
from gleaner.control.simulation.replay.agents_on_nodes import agents_told, come, end_claim, have_leave, layer_on, leave
from gleaner.control.simulation.replay.compiler import compiled, inner, making
from gleaner.control.simulation.replay.in_order import keys_of
from gleaner.control.simulation.replay.ledger import BY_END, BY_LIMIT, JOBS, LENT, NO_JOB, Ledger, Table
from gleaner.control.simulation.replay.records import record_type
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import Backfill, CostSettings, Migration, SchedulerKind

_STATE = record_type(integers="first last refused head", floats="moved_s")
"""The state of the replay besides the clock. `moved_s` is the end of the last migration. `first` and `last` are the
first and the last job in the queue. `refused` is the last job that was refused since cores were freed, and `head` the
first one that was refused. Both are -1 if there is none."""


class NodeRules(NamedTuple):
    """The settings of one replay."""

    whole: bool
    prefers_one: bool
    overtaking: bool
    moves: int
    look_every_s: float
    per_second: float
    """See `in_order.Ranks`."""


class OnNodes(NamedTuple):
    """The ledger, with the queue and the rules."""

    book: Ledger
    state: Table
    rules: NodeRules


def run(request: ReplayRequest) -> Schedule:
    """Replay a workload. Raise `BadScenario` for settings that these machines do not support."""
    machine, scheduler = request.machine, request.scheduler
    _check(request)
    is_by_rank = scheduler.kind is SchedulerKind.PRIORITY
    has_backfill = not is_by_rank or scheduler.priority.backfill is not Backfill.NONE
    rules = NodeRules(
        whole=machine.allocation is Allocation.NODES,
        prefers_one=machine.prefers_one,
        overtaking=scheduler.kind is not SchedulerKind.FCFS and has_backfill,
        moves=list(Migration).index(scheduler.migration.kind),
        look_every_s=float(scheduler.migration.every_s),
        per_second=float(scheduler.priority.per_second) if is_by_rank and request.keep_waiting else 0.0,
    )
    jobs = _jobs(request)
    if is_by_rank:
        units = machine.units_asked(jobs["processors"]) if machine.is_uniform else jobs["processors"]
        jobs["key"] = keys_of(request, units)
    state = np.array([(-1, -1, -1, -1, -math.inf)], _STATE)
    book = ledgers.new_book(jobs, *ledgers.idle_nodes(machine))
    layer, finite = layer_on(machine, request.agents, book)
    on, layer, stop_s = loop.run_loop(
        _run_on_nodes,
        OnNodes(book, state, rules),
        jobs["submit_s"],
        request,
        layer,
        finite,
        larger=lambda on: on._replace(book=ledgers.larger_book(on.book)),
        pause=_migrate,
    )
    book, until_s = on.book, math.inf if request.until_s is None else request.until_s
    stretches, parts, saves = _told(book, until_s, whole=rules.whole)
    end_s = np.where(jobs["end_s"] <= until_s, jobs["end_s"], math.nan)
    ours = agents_told(book, layer, machine, stop_s)
    submit_s, start_s = jobs["submit_s"], jobs["start_s"]
    return request.schedule(submit_s, start_s, end_s, stretches, ours, finite=finite, saves=saves, parts=parts)


def _check(request: ReplayRequest) -> None:
    workload, machine, scheduler, agents = request.workload, request.machine, request.scheduler, request.agents
    if scheduler.kind not in {SchedulerKind.FCFS, SchedulerKind.EASY, SchedulerKind.PRIORITY}:
        raise BadScenario(
            f"scheduler {scheduler.kind.value} needs nodes that are alike, given whole or as a pool (allocation nodes "
            "or processors), and no migration; fcfs, easy and priority go with shared nodes, classes and migration"
        )
    kind = scheduler.migration.kind
    if kind is Migration.COMPACTION and machine.allocation is Allocation.NODES:
        raise BadScenario("migration compaction needs allocation cores: of whole nodes none is partly used")
    if kind is Migration.PRIORITIES and len({each.priority for each in machine.classes}) == 1:
        raise BadScenario("migration priorities needs classes of nodes with different priorities")
    if kind is not Migration.NONE and agents is not None and agents.preemption:
        raise BadScenario("preemption of agents does not go with migration: jobs would migrate to nodes of agents")
    if kind is not Migration.NONE and not (workload.job_class == JobClass.CHECKPOINTABLE).any():
        raise BadScenario(f"{workload.name}: migration moves jobs that can be saved, and no job is checkpointable")


def _jobs(request: ReplayRequest) -> Table:
    workload, scheduler = request.workload, request.scheduler

    def seconds(cost: CostSettings) -> Seconds | float:
        if scheduler.migration.kind is Migration.NONE:
            return 0.0
        return np.array([cost.seconds(float(mib)) for mib in workload.memory_mib])

    jobs = np.zeros(len(workload), JOBS)
    jobs["submit_s"] = request.submit_s()
    jobs["run_s"] = workload.run_s
    jobs["limit_s"] = workload.limit_s
    jobs["save_s"] = seconds(scheduler.migration.save)
    jobs["restore_s"] = seconds(scheduler.migration.restore)
    jobs["processors"] = workload.processors
    jobs["migratable"] = workload.job_class == JobClass.CHECKPOINTABLE
    jobs["start_s"] = jobs["end_s"] = math.nan
    jobs["after"] = -1
    return jobs


def _migrate(on: OnNodes, clock: Any) -> None:
    """Start a migration if the policy chooses one. Ask again when it is over or, without a migration, when something
    has changed."""
    again_s = migration.migrate(on.book, float(clock["now_s"]), on.rules.moves, on.rules.whole)
    if again_s < math.inf:
        every_s = on.rules.look_every_s
        on.state["moved_s"] = again_s
        clock["wake_s"] = max(math.ceil(again_s / every_s), math.floor(clock["now_s"] / every_s) + 1) * every_s


@inner
def _has_room(on: OnNodes) -> bool:
    return ledgers.has_room(on.book)


@inner
def _next_end_s(on: OnNodes) -> float:
    return ledgers.next_s(on.book)


@inner
def _free(on: OnNodes, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    book, is_news = on.book, False
    while ledgers.next_s(book) <= clock.now_s:
        stretch = book.running[BY_END, book.many[BY_END] - 1]["stretch"]
        book.stretches[stretch]["is_over"] = 1
        ledgers.settle(book, stretch)
        is_news = True
    if layer is not None and finite is not None and clock.agents_s <= clock.now_s:
        is_news = leave(book, layer, finite, clock.now_s) or is_news
    if is_news:
        on.state[0]["refused"] = -1  # refused jobs might fit now
    return is_news


@inner
def _enter(on: OnNodes, clock: Any, job: int, layer: AgentLog | None) -> bool:
    """Insert the job behind all jobs whose priority is not lower."""
    at, jobs = on.state[0], on.book.jobs
    jobs[job]["key"] -= on.rules.per_second * clock.now_s
    before, after = int(at["last"]), -1
    if before >= 0 and jobs[before]["key"] < jobs[job]["key"]:  # only if jobs have priorities
        before, after = -1, int(at["first"])
        while jobs[after]["key"] >= jobs[job]["key"]:
            before, after = after, int(jobs[after]["after"])
        at["refused"] = -1
    jobs[job]["after"] = after
    if before < 0:
        at["first"] = job
    else:
        jobs[before]["after"] = job
    if after < 0:
        at["last"] = job
    return True


@inner
def _decide(on: OnNodes, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    begin = int(on.book.many[3])
    _start_jobs(on, clock)
    if layer is not None and finite is not None:
        _start_agents(on, clock, layer, finite, begin)


@inner
def _pauses(on: OnNodes, clock: Any, is_news: bool) -> bool:
    """Return True if the policy should choose a migration now.

    Because the loop pauses for a migration, the code for migration is compiled only if it is used.
    """
    if is_news and clock.wake_s > clock.now_s and on.rules.moves != migration.NONE:
        every_s = on.rules.look_every_s
        clock.wake_s = np.ceil(max(clock.now_s, on.state[0]["moved_s"]) / every_s) * every_s
    if clock.wake_s > clock.now_s:
        return False
    clock.wake_s = np.inf
    return bool(clock.waiting == 0)


@inner
def _stop(on: OnNodes, stop_s: float) -> None:
    """Leave running work unchanged, because the result is cut at the end of the replay."""


@inner
def _start_agents(on: OnNodes, clock: Any, layer: AgentLog, finite: Finite, begin: int) -> None:
    """Vacate agents for the claims of this decision, whose stretches begin at `begin`, and start agents elsewhere.

    Agents delay no promise. Without promises, no agent starts while the first job waits only for agents.
    """
    book, head, preemption = on.book, int(on.state[0]["head"]), bool(layer.rules[0].preemption)
    if preemption:
        have_leave(book, layer, finite, clock.now_s, begin)
    shadow_s, reserved, extra = np.inf, -1, 0
    if head >= 0 and on.rules.overtaking:
        shadow_s, reserved, extra = _reserved(book, int(book.jobs[head]["processors"]))
    if head < 0 or on.rules.overtaking or preemption or book.many[BY_END] > 0:
        come(book, layer, finite, clock.now_s, shadow_s, reserved, extra)
    if preemption:
        for stretch in range(begin, book.many[3]):
            if book.stretches[stretch]["job"] == NO_JOB:
                end_claim(book, stretch)


@inner
def _start_jobs(on: OnNodes, clock: Any) -> None:  # noqa: PLR0915 - one function, or it is compiled twice
    """Start the jobs that can start now, first those at the head of the queue as long as they fit, then those that can
    overtake the head.

    With EASY, a job can overtake the head if it ends by the head's shadow time, or if it leaves the head enough cores
    on the level where the head will start. A job that is given nodes with agents has a claim, and waits.
    """
    book, state, rules = on
    at = state[0]
    now_s = clock.now_s
    everywhere = len(book.levels) - 1
    is_refused = at["refused"] >= 0  # then all jobs from the head to that one were refused
    before = at["refused"]
    job = book.jobs[before]["after"] if is_refused else at["first"]
    head = at["first"] if is_refused else -1
    has_claims = False
    shadow_s, reserved, extra = np.inf, -1, 0
    while job >= 0 and (not is_refused or (rules.overtaking and book.levels[everywhere]["free"] > 0)):
        row = book.jobs[job]
        after = row["after"]
        processors = int(row["processors"])
        level = ledgers.level_for(book.levels, processors, -1)
        if level >= 0 and is_refused and reserved < 0:
            shadow_s, reserved, extra = _reserved(book, int(book.jobs[head]["processors"]))
        held, ranges_end, speed = 0, 0, 1.0
        while level >= 0:
            is_late = now_s + row["limit_s"] / book.levels[level]["speed"] > shadow_s
            if is_late and processors > extra and (reserved in (level, everywhere)):
                level = ledgers.level_for(book.levels, processors, level)
                continue
            on_one = ledgers.first_with_room(book, level, processors) if rules.prefers_one else -1
            ranges_end, speed = ledgers.choose(book, level, processors, rules.whole, on_one)
            held = 0
            if now_s + row["limit_s"] / speed > shadow_s:
                held = _cores(book, ranges_end, reserved)
            if held <= extra or not is_refused:
                break
            level = ledgers.level_for(book.levels, processors, level)
        if level < 0:
            if not is_refused:
                head = job
            is_refused = True
            before = job
            job = after
            continue
        extra -= held

        is_claim = _is_lent(book, ranges_end) or (has_claims and not rules.overtaking)
        stretch = book.many[3]
        new = book.stretches[stretch]
        new["job"] = NO_JOB if is_claim else job
        new["start_s"] = now_s
        new["end_s"] = now_s if is_claim else now_s + row["run_s"] / speed
        new["limit_s"] = now_s + row["limit_s"] / speed
        book.many[3] += 1
        book.stretches[stretch + 1]["ranges"] = ranges_end
        ledgers.settle(book, stretch)
        if is_claim:
            has_claims = True
            before = job
            job = after
            continue

        row["start_s"] = now_s
        row["end_s"] = new["end_s"]
        if before < 0:
            at["first"] = after
        else:
            book.jobs[before]["after"] = after
        if at["last"] == job:
            at["last"] = before
        clock.waiting -= 1
        job = after
    at["refused"] = -1 if has_claims else at["last"]
    at["head"] = head


@inner
def _is_lent(book: Ledger, ranges_end: int) -> bool:
    """Return True if some of the chosen nodes have agents. All nodes in a range have the same value of `lent`."""
    if book.many[LENT] > 0:
        for at in range(book.stretches[book.many[3]]["ranges"], ranges_end):
            if book.nodes[book.ranges[at]["node"]]["lent"] > 0:
                return True
    return False


@inner
def _cores(book: Ledger, ranges_end: int, level: int) -> int:
    """Return the number of cores that the chosen ranges have on a level."""
    cores = 0
    for at in range(book.stretches[book.many[3]]["ranges"], ranges_end):
        entry = book.ranges[at]
        if level == len(book.levels) - 1 or book.nodes[entry["node"]]["level"] == level:
            cores += entry["nodes"] * entry["cores"]
    return cores


@making
def _reserved(book: Ledger, processors: int) -> tuple[float, int, int]:
    """Return the time by which a job of this size fits at the latest, its level, and the number of cores then left
    there."""
    levels = book.levels.copy()
    everywhere = levels[len(levels) - 1]
    shadow_s = -np.inf
    level = -1
    at = int(book.many[BY_LIMIT])
    while level < 0:
        shadow_s = float(book.running[BY_LIMIT, at - 1]["time_s"])
        while at > 0 and book.running[BY_LIMIT, at - 1]["time_s"] == shadow_s:
            at -= 1
            stretch = book.running[BY_LIMIT, at]["stretch"]
            for entry in range(book.stretches[stretch]["ranges"], book.stretches[stretch + 1]["ranges"]):
                cores = book.ranges[entry]["nodes"] * book.ranges[entry]["cores"]
                levels[book.nodes[book.ranges[entry]["node"]]["level"]]["free"] += cores
                everywhere["free"] += cores
        level = ledgers.level_for(levels, processors, -1)
    return shadow_s, level, levels[level]["free"] - processors


_loop = making(
    loop.loop_of(
        loop.Discipline[OnNodes](_has_room, _next_end_s, loop.is_any_waiting, _free, _enter, _decide, _pauses, _stop)
    )
)


@compiled
def _run_on_nodes(*state: Any) -> int:
    return _loop(*state)


def _told(book: Ledger, until_s: float, *, whole: bool) -> tuple[Stretches, NodeRanges, int]:
    """Return the book's stretches, their parts of nodes, and the number of saves.

    The stretches are in the order of their starts, and are cut at the end of the replay.
    """
    told = book.stretches[: book.many[3]]
    is_there = told["start_s"] < until_s  # a migrating job's new stretch can start later
    begins = np.flatnonzero(is_there & (told["job"] != NO_JOB))
    begins = begins[np.argsort(told["start_s"][begins], kind="stable")]
    rows = told[begins]
    end_s = np.minimum(rows["end_s"], until_s)
    parts = _parts(book, begins)
    weight = parts.nodes * (1 if whole else parts.cores)
    ends = np.cumsum(np.bincount(parts.stretch, minlength=len(rows)))
    last = ends - 1
    has_one = (np.diff(ends, prepend=0) == 1) & (parts.nodes[last] == 1)
    units = np.bincount(parts.stretch, weight, len(rows)).astype(np.int64)
    restore_s = np.minimum(rows["restore_s"], end_s - rows["start_s"])
    save_s = np.maximum(rows["save_s"] - (rows["end_s"] - end_s), 0)
    node = np.where(has_one, parts.node[last], -1)
    start_s = rows["start_s"]
    stretches = Stretches.of(rows["job"], start_s, end_s, units, restore_s=restore_s, save_s=save_s, node=node)
    return stretches, parts, int(np.count_nonzero(rows["moved"]))


def _parts(book: Ledger, begins: Counts) -> NodeRanges:
    first, end = book.stretches["ranges"][begins], book.stretches["ranges"][begins + 1]
    many = end - first
    stretch = np.repeat(np.arange(len(begins)), many)
    rows = book.ranges[np.arange(len(stretch)) + np.repeat(first - np.cumsum(many) + many, many)]
    node = book.nodes["number"][rows["node"]]
    return NodeRanges(stretch, node, rows["nodes"], rows["cores"])
