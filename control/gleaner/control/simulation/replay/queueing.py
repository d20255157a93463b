"""Replays on machines whose units need only be counted, under every discipline that keeps one queue."""

import math
from dataclasses import replace

import numpy as np

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.replay.agents import layer_of, stretches
from gleaner.control.simulation.replay.arrival import by_arrival, run_by_arrival
from gleaner.control.simulation.replay.conservative import by_promise, run_by_promise
from gleaner.control.simulation.replay.each_end import each_end, run_each_end
from gleaner.control.simulation.replay.loop import rules_of, run_loop
from gleaner.control.simulation.replay.rank import by_rank, run_by_rank
from gleaner.control.simulation.replay.unit_ledger import new_ledger
from gleaner.control.simulation.schedule import Schedule, uninterrupted
from gleaner.control.simulation.settings import AgentSettings, DecideAt, Discipline, SchedulerSettings
from gleaner.control.simulation.workload import Workload


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
    speed, kind = machine.classes[0].speed, scheduler.kind
    has_promises = kind is Discipline.CONSERVATIVE
    units = machine.units_asked(workload.processors).copy()  # copied, as below: one type, whatever memory it is in
    submit_s = np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()
    limit_s = workload.limit_s / speed
    if has_promises:
        if scheduler.decide_every_s:
            raise BadScenario("conservative backfilling decides whenever a job comes or ends: decide_every_s must be 0")
        limit_s = np.where(limit_s > 0, limit_s, 1.0)  # a promise cannot last for no time at all
    layer, finite = layer_of(agents, machine)
    has_agents = layer is not None
    ledger = new_ledger(
        workload.run_s / speed, limit_s, units, machine.units, has_agents=has_agents, has_promises=has_promises
    )
    rest = submit_s, rules_of(scheduler, until_s, keep_waiting), layer, finite
    if has_promises:
        from_s = 0.0 if keep_waiting else -math.inf
        promises = by_promise(ledger, machine.units, from_s, has_agents=has_agents)
        _, layer, stop_s = run_loop(run_by_promise, promises, *rest)
    elif kind in {Discipline.PRIORITY, Discipline.SFS}:
        ranks = by_rank(ledger, workload, scheduler, is_kept_full=keep_waiting > 0)
        _, layer, stop_s = run_loop(run_by_rank, ranks, *rest)
    elif scheduler.decide_at is DecideAt.EACH_END:
        each = each_end(by_arrival(ledger, overtaking=kind is Discipline.EASY))
        _, layer, stop_s = run_loop(run_each_end, each, *rest)
    else:
        queue = by_arrival(ledger, overtaking=kind is Discipline.EASY)
        _, layer, stop_s = run_loop(run_by_arrival, queue, *rest)
    return Schedule(
        workload=replace(workload, submit_s=submit_s) if keep_waiting else workload,
        machine=machine,
        scheduler=kind.value,
        start_s=ledger.start_s,
        end_s=ledger.end_s,
        jobs=uninterrupted(workload, units, ledger.start_s, ledger.end_s, until_s),
        agents=stretches(layer, stop_s),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )
