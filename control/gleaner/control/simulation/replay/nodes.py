"""Machines whose nodes matter: shared nodes, nodes of several classes, and jobs that migrate between nodes.

The disciplines are first come first served and EASY backfilling. Each start chooses nodes by first fit (see
`first_fit`). The rules for one instant are those of `queueing`: first what ends, then what is submitted, then one
decision. Migration comes last.

Agents start after the decision, on nodes that are wholly idle (see `agents_on_nodes`).

A job runs at the speed of its slowest node. A migration takes a save, in which the job holds its old cores and the new
cores are kept for the job, and then a restore on the new cores. The job computes in neither.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.machine import Allocation, Machine
from gleaner.control.simulation.replay import migration
from gleaner.control.simulation.replay.agent_starts import close
from gleaner.control.simulation.replay.agent_starts import next_s as next_of_agents
from gleaner.control.simulation.replay.agents import AgentLog, larger_log
from gleaner.control.simulation.replay.agents_on_nodes import AGENT, agents_told, come, has_log_room, layer_on, leave
from gleaner.control.simulation.replay.compiler import compiled, inner, making
from gleaner.control.simulation.replay.first_fit import choose, first_with_room, idle_nodes, level_for
from gleaner.control.simulation.replay.ledger import (
    BY_END,
    BY_LIMIT,
    JOBS,
    Ledger,
    Table,
    has_room,
    larger_book,
    new_book,
    next_s,
    settle,
)
from gleaner.control.simulation.schedule import Parts, Schedule, Stretches
from gleaner.control.simulation.settings import AgentSettings, CostSettings, Discipline, Migration, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

_MOVES = {
    Migration.NONE: migration.NONE,
    Migration.COMPACTION: migration.COMPACTION,
    Migration.PRIORITIES: migration.PRIORITIES,
}
_STATE = np.dtype(
    [(name, np.float64) for name in ("now_s", "decide_s", "look_s", "moved_s")]
    + [(name, np.int64) for name in ("arrived", "first", "last", "refused", "waiting")]
)
"""The state of the loop. `decide_s`, `look_s`: when the next decision and the next look for a migration are due.
`moved_s`: when the last migration is over. `arrived`: how many jobs were submitted. `first`, `last`: the first and the
last job in the queue. `refused`: the last job that was refused since cores were freed (-1: none). `waiting`: how many
jobs wait."""

_ENDED, _FULL, _LOG_IS_FULL, _LOOKS = range(4)
"""The reasons why the loop stopped: nothing is left, the book or the agents' log has no room, or a look for a migration
is due."""


class Rules(NamedTuple):
    """The settings of one replay."""

    whole: bool
    prefers_one: bool
    overtaking: bool
    every_s: float
    until_s: float
    keep_waiting: int
    moves: int
    look_every_s: float


def run(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Replay a workload that fits the machine; see `replay`, which checks that and has the same arguments.

    Raise `BadScenario` for what these machines cannot do.
    """
    _check(workload, machine, scheduler)
    layer = layer_on(machine, agents)
    rules = Rules(
        whole=machine.allocation is Allocation.NODES,
        prefers_one=machine.prefers_one,
        overtaking=scheduler.kind is Discipline.EASY,
        every_s=float(scheduler.decide_every_s),
        until_s=math.inf if until_s is None else float(until_s),
        keep_waiting=keep_waiting,
        moves=_MOVES[scheduler.migration.kind],
        look_every_s=float(scheduler.migration.every_s),
    )
    book = new_book(_jobs(workload, scheduler, is_kept_full=keep_waiting > 0), *idle_nodes(machine))
    state = np.array([(0.0 if keep_waiting else -math.inf, math.inf, math.inf, -math.inf, 0, -1, -1, -1, 0)], _STATE)
    while (step := _replayed(book, state, rules, layer)) != _ENDED:
        if step == _FULL:
            book = larger_book(book)
        elif step == _LOG_IS_FULL and layer is not None:
            layer = larger_log(layer)
        else:
            again_s = migration.migrate(book, float(state["now_s"][0]), rules.moves, rules.whole)
            _look_again(state[0], again_s, rules)
    stretches, parts, saves = _told(book, rules)
    return Schedule(
        workload=replace(workload, submit_s=book.jobs["submit_s"].copy()) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=book.jobs["start_s"].copy(),
        end_s=np.where(book.jobs["end_s"] <= rules.until_s, book.jobs["end_s"], math.nan),
        jobs=stretches,
        agents=agents_told(book, layer, machine, _stopped(layer, state, rules)),
        saves=saves,
        parts=parts,
    )


def _check(workload: Workload, machine: Machine, scheduler: SchedulerSettings) -> None:
    if scheduler.kind not in {Discipline.FCFS, Discipline.EASY}:
        raise BadScenario(
            f"scheduler {scheduler.kind.value} needs nodes that are alike, given whole or as a pool (allocation nodes "
            "or processors), and no migration; shared nodes, classes of nodes and migration go with fcfs and easy"
        )
    kind = scheduler.migration.kind
    if kind is Migration.COMPACTION and machine.allocation is Allocation.NODES:
        raise BadScenario("migration compaction needs allocation cores: of whole nodes none is partly used")
    if kind is Migration.PRIORITIES and len({each.priority for each in machine.classes}) == 1:
        raise BadScenario("migration priorities needs classes of nodes with different priorities")
    if kind is not Migration.NONE and not (workload.job_class == JobClass.CHECKPOINTABLE).any():
        raise BadScenario(f"{workload.name}: migration moves jobs that can be saved, and no job is checkpointable")


def _jobs(workload: Workload, scheduler: SchedulerSettings, *, is_kept_full: bool) -> Table:
    def seconds(cost: CostSettings) -> Seconds | float:
        if scheduler.migration.kind is Migration.NONE:
            return 0.0
        return np.array([cost.seconds(float(mib)) for mib in workload.memory_mib])

    jobs = np.zeros(len(workload), JOBS)
    jobs["submit_s"] = math.nan if is_kept_full else workload.submit_s
    jobs["run_s"] = workload.run_s
    jobs["limit_s"] = workload.limit_s
    jobs["save_s"] = seconds(scheduler.migration.save)
    jobs["restore_s"] = seconds(scheduler.migration.restore)
    jobs["processors"] = workload.processors
    jobs["migratable"] = workload.job_class == JobClass.CHECKPOINTABLE
    jobs["start_s"] = jobs["end_s"] = math.nan
    jobs["after"] = -1
    return jobs


def _stopped(layer: AgentLog | None, state: Table, rules: Rules) -> float:
    """Put the agents that are left at the end of the replay into their log; return when the replay ended for agents."""
    stop_s = rules.until_s if rules.until_s < math.inf else float(state["now_s"][0])
    if layer is not None:
        _closed(layer, stop_s)
    return stop_s


@compiled
def _closed(layer: AgentLog, stop_s: float) -> None:
    close(layer, None, stop_s)


@compiled
def _replayed(book: Ledger, state: Table, rules: Rules, layer: AgentLog | None) -> int:  # noqa: PLR0912 - one loop
    """Run the loop and return the reason why it stopped. The next call goes on where the loop stopped.

    Since the loop returns for a migration, migration is compiled only where it is used.
    """
    at = state[0]
    while True:
        if not has_room(book):
            return _FULL
        event_s = min(_arrival_s(book, state, rules), next_s(book))
        agents_s = np.inf
        if layer is not None:
            if event_s == np.inf and at["waiting"] == 0 and rules.until_s == np.inf:
                return _ENDED
            if not has_log_room(layer):
                return _LOG_IS_FULL
            agents_s = next_of_agents(layer, None)
        now_s = min(event_s, at["decide_s"], at["look_s"], agents_s)
        if not now_s < rules.until_s:
            return _ENDED
        at["now_s"] = now_s
        is_changed = _changed(book, state, rules)
        if layer is not None and agents_s <= now_s:
            leave(book, layer, now_s)
            at["refused"] = -1
            is_changed = True
        if is_changed and at["decide_s"] > now_s:
            at["decide_s"] = now_s if rules.every_s == 0 else np.ceil(now_s / rules.every_s) * rules.every_s
        if is_changed and at["look_s"] > now_s and rules.moves != migration.NONE:
            at["look_s"] = np.ceil(max(now_s, at["moved_s"]) / rules.look_every_s) * rules.look_every_s
        if at["decide_s"] <= now_s:
            at["decide_s"] = np.inf
            _decide(book, state, rules)
            if layer is not None:
                _have_agents(book, state, rules, layer)
        if at["look_s"] <= now_s:
            at["look_s"] = np.inf
            if at["waiting"] == 0:
                return _LOOKS


@inner
def _have_agents(book: Ledger, state: Table, rules: Rules, layer: AgentLog) -> None:
    """Start agents where they delay no promise.

    Without promises, start agents only where the first job does not wait for agents alone.
    """
    at = state[0]
    shadow_s, reserved, extra = np.inf, -1, 0
    if at["waiting"] > 0:
        if rules.overtaking:
            shadow_s, reserved, extra = _reserved(book, int(book.jobs[at["first"]]["processors"]))
        elif book.many[BY_END] == 0:
            return
    come(book, layer, at["now_s"], shadow_s, reserved, extra)


def _look_again(at: np.void, again_s: float, rules: Rules) -> None:
    """Set the next look for a migration: when this migration is over, or without one when anything has changed."""
    if again_s < math.inf:
        at["moved_s"] = again_s
        looks = max(math.ceil(again_s / rules.look_every_s), math.floor(at["now_s"] / rules.look_every_s) + 1)
        at["look_s"] = looks * rules.look_every_s


@inner
def _arrival_s(book: Ledger, state: Table, rules: Rules) -> float:
    at = state[0]
    if at["arrived"] == len(book.jobs):
        return np.inf
    if rules.keep_waiting > 0:
        return float(at["now_s"]) if at["waiting"] < rules.keep_waiting else np.inf
    return float(book.jobs[at["arrived"]]["submit_s"])


@inner
def _changed(book: Ledger, state: Table, rules: Rules) -> bool:
    """End what ends by now, which frees its cores, and enqueue what is submitted by now.

    Return True if anything ended or was submitted.
    """
    at = state[0]
    is_changed = False
    while next_s(book) <= at["now_s"]:
        stretch = book.running[BY_END, book.many[BY_END] - 1]["stretch"]
        book.stretches[stretch]["is_over"] = 1
        settle(book, stretch)
        at["refused"] = -1  # jobs that were refused may fit now
        is_changed = True
    while _arrival_s(book, state, rules) <= at["now_s"]:
        job = at["arrived"]
        book.jobs[job]["submit_s"] = at["now_s"] if rules.keep_waiting > 0 else book.jobs[job]["submit_s"]
        if at["waiting"] == 0:
            at["first"] = job
        else:
            book.jobs[at["last"]]["after"] = job
        at["last"] = job
        at["waiting"] += 1
        at["arrived"] += 1
        is_changed = True
    return is_changed


@inner
def _decide(book: Ledger, state: Table, rules: Rules) -> None:  # noqa: PLR0915 - one function, or it is compiled twice
    """Start what may start now: the head of the queue while it fits, then the jobs that may overtake the head.

    With EASY, a job may overtake if it ends by the head's shadow time, or if it leaves the head enough cores on the
    level where the head will start.
    """
    at = state[0]
    everywhere = len(book.levels) - 1
    is_refused = at["refused"] >= 0  # then the head was refused, and all jobs up to that one
    before = at["refused"]
    job = book.jobs[before]["after"] if is_refused else at["first"]
    shadow_s, reserved, extra = np.inf, -1, 0
    while job >= 0 and (not is_refused or (rules.overtaking and book.levels[everywhere]["free"] > 0)):
        row = book.jobs[job]
        after = row["after"]
        processors = int(row["processors"])
        level = level_for(book.levels, processors, -1)
        if level >= 0 and is_refused and reserved < 0:
            shadow_s, reserved, extra = _reserved(book, int(book.jobs[at["first"]]["processors"]))
        held, ranges_end, speed = 0, 0, 1.0
        while level >= 0:
            is_late = at["now_s"] + row["limit_s"] / book.levels[level]["speed"] > shadow_s
            if is_late and processors > extra and (reserved in (level, everywhere)):
                level = level_for(book.levels, processors, level)
                continue
            on_one = first_with_room(book, level, processors) if rules.prefers_one else -1
            ranges_end, speed = choose(book, level, processors, rules.whole, on_one)
            held = 0
            if at["now_s"] + row["limit_s"] / speed > shadow_s:
                held = _cores(book, ranges_end, reserved)
            if held <= extra or not is_refused:
                break
            level = level_for(book.levels, processors, level)
        if level < 0:
            is_refused = True
            before = job
            job = after
            continue
        extra -= held

        row["start_s"] = at["now_s"]
        row["end_s"] = at["now_s"] + row["run_s"] / speed
        stretch = book.many[3]
        new = book.stretches[stretch]
        new["job"] = job
        new["start_s"] = at["now_s"]
        new["end_s"] = row["end_s"]
        new["limit_s"] = at["now_s"] + row["limit_s"] / speed
        book.many[3] += 1
        book.stretches[stretch + 1]["ranges"] = ranges_end
        settle(book, stretch)

        if before < 0:
            at["first"] = after
        else:
            book.jobs[before]["after"] = after
        if at["last"] == job:
            at["last"] = before
        at["waiting"] -= 1
        job = after
    at["refused"] = at["last"]


@inner
def _cores(book: Ledger, ranges_end: int, level: int) -> int:
    """Return how many cores of a level the chosen ranges have."""
    cores = 0
    for at in range(book.stretches[book.many[3]]["ranges"], ranges_end):
        entry = book.ranges[at]
        if level == len(book.levels) - 1 or book.nodes[entry["node"]]["level"] == level:
            cores += entry["nodes"] * entry["cores"]
    return cores


@making
def _reserved(book: Ledger, processors: int) -> tuple[float, int, int]:
    """Return when and on which level a job of this size fits at the latest, and how many cores are then left there."""
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
        level = level_for(levels, processors, -1)
    return shadow_s, level, levels[level]["free"] - processors


def _told(book: Ledger, rules: Rules) -> tuple[Stretches, Parts, int]:
    """Return the book's stretches, their parts, and the number of saves.

    The stretches are in order of their starts, and are cut at the replay's end.
    """
    told = book.stretches[: book.many[3]]
    is_there = told["start_s"] < rules.until_s  # a job that migrates may be about to start
    begins = np.flatnonzero(is_there & (told["job"] != AGENT))
    begins = begins[np.argsort(told["start_s"][begins], kind="stable")]
    rows = told[begins]
    end_s = np.minimum(rows["end_s"], rules.until_s)
    parts = _parts(book, begins)
    weight = parts.nodes * (1 if rules.whole else parts.cores)
    ends = np.cumsum(np.bincount(parts.stretch, minlength=len(rows)))
    last = ends - 1
    has_one = (np.diff(ends, prepend=0) == 1) & (parts.nodes[last] == 1)
    stretches = Stretches(
        job=rows["job"],
        start_s=rows["start_s"],
        end_s=end_s,
        units=np.bincount(parts.stretch, weight, len(rows)).astype(np.int64),
        restore_s=np.minimum(rows["restore_s"], end_s - rows["start_s"]),
        save_s=np.maximum(rows["save_s"] - (rows["end_s"] - end_s), 0),
        lost_s=np.zeros(len(rows)),
        node=np.where(has_one, parts.node[last], -1).astype(np.int32),
    )
    return stretches, parts, int(np.count_nonzero(rows["moved"]))


def _parts(book: Ledger, begins: Counts) -> Parts:
    first, end = book.stretches["ranges"][begins], book.stretches["ranges"][begins + 1]
    many = end - first
    stretch = np.repeat(np.arange(len(begins)), many)
    rows = book.ranges[np.arange(len(stretch)) + np.repeat(first - np.cumsum(many) + many, many)]
    node = book.nodes["number"][rows["node"]]
    return Parts(stretch, node, rows["nodes"], rows["cores"])
