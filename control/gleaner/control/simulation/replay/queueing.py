"""Replays on machines whose units are only counted, under every discipline that has one queue."""

import math
from collections.abc import Callable

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Schedule, uninterrupted
from gleaner.control.simulation.replay.agents import layer_of, stretches
from gleaner.control.simulation.replay.conservative import by_promise, run_by_promise
from gleaner.control.simulation.replay.in_order import by_arrival, by_rank, run_in_order
from gleaner.control.simulation.replay.loop import Book, Loop, run_loop
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.replay.unit_ledger import UnitLedger, new_ledger
from gleaner.control.simulation.settings import SchedulerKind


def run(request: ReplayRequest) -> Schedule:
    """Replay a workload.

    Raise `BadScenario` if a user with a target is not in the workload, if no user has a target, or if `decide_every_s`
    is set with conservative backfilling, which does not support it.
    """
    kind = request.scheduler.kind
    if kind is SchedulerKind.CONSERVATIVE:
        if request.scheduler.decide_every_s:
            raise BadScenario("conservative backfilling decides whenever a job comes or ends: decide_every_s must be 0")
        from_s = 0.0 if request.keep_waiting else -math.inf
        return run_queue(run_by_promise, lambda ledger: by_promise(ledger, from_s), request)
    if kind in {SchedulerKind.PRIORITY, SchedulerKind.SFS}:
        return run_queue(run_in_order, lambda ledger: by_rank(ledger, request), request)
    return run_queue(run_in_order, lambda ledger: by_arrival(ledger, overtaking=kind is SchedulerKind.EASY), request)


def run_queue(loop: Loop[Book], new_book: Callable[[UnitLedger], Book], request: ReplayRequest) -> Schedule:
    """Replay a workload with any compiled loop (see `loop.loop_of`) and its book.

    `new_book` makes the book for a ledger in its initial state.
    """
    workload, machine = request.workload, request.machine
    speed = machine.classes[0].speed
    units = machine.units_asked(workload.processors).copy()  # a copy, so that the type is always the same
    submit_s = request.submit_s()
    layer, finite = layer_of(request.agents, machine)
    ledger = new_ledger(
        workload.run_s / speed, workload.limit_s / speed, units, machine.units, has_agents=layer is not None
    )
    _, layer, stop_s = run_loop(loop, new_book(ledger), submit_s, request, layer, finite)
    start_s, end_s = ledger.start_s, ledger.end_s
    jobs = uninterrupted(workload, units, start_s, end_s, request.until_s)
    return request.schedule(submit_s, start_s, end_s, jobs, stretches(layer, stop_s), finite=finite)
