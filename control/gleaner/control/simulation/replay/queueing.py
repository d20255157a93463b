"""Replays on machines whose units need only be counted, under every discipline that keeps one queue."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Machine, Schedule, Workload, uninterrupted
from gleaner.control.simulation.replay.agents import layer_of, stretches
from gleaner.control.simulation.replay.conservative import by_promise, run_by_promise
from gleaner.control.simulation.replay.in_order import by_arrival, by_rank, run_in_order
from gleaner.control.simulation.replay.loop import Book, Loop, rules_of, run_loop
from gleaner.control.simulation.replay.unit_ledger import UnitLedger, new_ledger
from gleaner.control.simulation.settings import AgentSettings, SchedulerKind, SchedulerSettings


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

    Raise `BadScenario` for a target of somebody who is not among the workload's users, where nobody has a target, and
    for `decide_every_s` with conservative backfilling, which does not have it.
    """

    def replayed(loop: Loop[Book], new_book: Callable[[UnitLedger], Book]) -> Schedule:
        return run_queue(
            loop, new_book, workload, machine, scheduler, agents, until_s=until_s, keep_waiting=keep_waiting
        )

    if scheduler.kind is SchedulerKind.CONSERVATIVE:
        if scheduler.decide_every_s:
            raise BadScenario("conservative backfilling decides whenever a job comes or ends: decide_every_s must be 0")
        from_s = 0.0 if keep_waiting else -math.inf
        return replayed(run_by_promise, lambda ledger: by_promise(ledger, from_s))
    if scheduler.kind in {SchedulerKind.PRIORITY, SchedulerKind.SFS}:
        return replayed(run_in_order, lambda each: by_rank(each, workload, scheduler, is_kept_full=keep_waiting > 0))
    overtaking = scheduler.kind is SchedulerKind.EASY
    return replayed(run_in_order, lambda ledger: by_arrival(ledger, overtaking=overtaking))


def run_queue(  # noqa: PLR0917
    loop: Loop[Book],
    new_book: Callable[[UnitLedger], Book],
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings | None = None,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Replay a workload that fits the machine with any compiled loop (see `loop.loop_of`) and its book.

    `new_book` makes the book for a ledger in which nothing has started.
    """
    scheduler = scheduler or SchedulerSettings()
    speed = machine.classes[0].speed
    units = machine.units_asked(workload.processors).copy()  # copied, as below: one type, whatever memory it is in
    submit_s = np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()
    layer, finite = layer_of(agents, machine)
    ledger = new_ledger(
        workload.run_s / speed, workload.limit_s / speed, units, machine.units, has_agents=layer is not None
    )
    rules = rules_of(scheduler, until_s, keep_waiting)
    _, layer, stop_s = run_loop(loop, new_book(ledger), submit_s, rules, layer, finite)
    return Schedule(
        workload=replace(workload, submit_s=submit_s) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=ledger.start_s,
        end_s=ledger.end_s,
        jobs=uninterrupted(workload, units, ledger.start_s, ledger.end_s, until_s),
        agents=stretches(layer, stop_s),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )
