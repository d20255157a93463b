"""The only entry point of a replay. It checks the request, and chooses the loop that can carry it out."""

from collections.abc import Callable
from importlib import import_module

import numpy as np

from gleaner.control.simulation.errors import BadScenario, BadTrace, raise_if_interrupted
from gleaner.control.simulation.model import Allocation, Machine, Schedule, Workload
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import AgentSettings, Migration, SchedulerKind, SchedulerSettings


def replay(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Return the schedule of the workload's jobs and of the agents on this machine.

    The replay stops at `until_s`. Work that ends at that instant has ended, but nothing starts and no decision is made.
    With `keep_waiting`, the times of submission are ignored. Instead, from time 0 on, a job enters the queue whenever
    fewer than `keep_waiting` jobs wait. The schedule's workload then has the times at which jobs entered (NaN if
    never).

    Raise `BadTrace` if the workload cannot be replayed, and `BadScenario` if jobs are larger than the machine or
    settings contradict each other.
    """
    _check(workload, machine)
    if keep_waiting < 0:
        raise BadScenario(f"keep_waiting is {keep_waiting}: as many jobs cannot wait; 0 or more can")
    if until_s is not None and not until_s > 0:
        raise BadScenario(f"until_s is {until_s:g}: the replay would stop before it begins; it must be more than 0")
    request = ReplayRequest(workload, machine, scheduler, agents, until_s, keep_waiting)
    counting = "omfs" if scheduler.kind is SchedulerKind.OMFS else "queueing"
    is_counted = machine.is_counted and scheduler.migration.kind is Migration.NONE
    # The loop is imported only now, so that loops that a command does not use are not compiled.
    loop = import_module(f"gleaner.control.simulation.replay.{counting if is_counted else 'nodes'}")
    run: Callable[[ReplayRequest], Schedule] = loop.run
    try:
        return run(request)
    except SystemError as error:
        raise_if_interrupted(error)
        raise


def _check(workload: Workload, machine: Machine) -> None:
    if len(workload) == 0:
        raise BadTrace(f"{workload.name}: it has no jobs")
    _check_jobs(workload)
    if machine.is_uniform:
        asked, there = machine.units_asked(workload.processors), machine.units
    else:
        asked, there = workload.processors, machine.cores
    larger = np.flatnonzero(asked > there)
    if len(larger) == 0:
        return
    what = "nodes" if machine.is_uniform and machine.allocation is Allocation.NODES else "processors"
    if len(larger) == len(workload):
        raise BadTrace(
            f"{workload.name}: no job fits the machine, which has {there} {what}; the smallest job needs {asked.min()}"
        )
    job = workload.job[larger[0]]
    raise BadScenario(
        f"{workload.name}: {len(larger)} of {len(workload)} jobs are larger than the machine: "
        f"job {job} needs {asked[larger[0]]} {what}, there are {there}"
    )


def _check_jobs(workload: Workload) -> None:
    """Raise `BadTrace` for a job that cannot be replayed.

    A reader never returns such a job, but a workload can also be made by hand.
    """
    wrongs = (
        ("has fewer than one processor", workload.processors < 1),
        ("has no time of submission", ~np.isfinite(workload.submit_s)),
        ("runs for less than no time", ~(workload.run_s >= 0) | ~np.isfinite(workload.run_s)),
        ("runs for longer than its limit", ~(workload.run_s <= workload.limit_s)),
        ("was submitted before the one before it", np.diff(workload.submit_s, prepend=-np.inf) < 0),
    )
    for what, wrong in wrongs:
        if wrong.any():
            raise BadTrace(f"{workload.name}: job {workload.job[np.argmax(wrong)]} {what}")
