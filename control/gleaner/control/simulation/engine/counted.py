"""What the replays have in common whose units are only counted: how they begin, and what they come to."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from gleaner.control.simulation.compiled import inner
from gleaner.control.simulation.engine.heap import forget
from gleaner.control.simulation.engine.layer import Finite, stretches
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule, uninterrupted
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload


def submissions(workload: Workload, keep_waiting: int) -> Seconds:
    """When each job is submitted, for a replay to keep; with `keep_waiting` it will say so itself."""
    return np.full(len(workload), math.nan) if keep_waiting else workload.submit_s.copy()


def schedule(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    replayed: tuple[Seconds, Seconds, Any, float],
    *,
    units: Counts,
    submit_s: Seconds,
    until_s: float | None,
    keep_waiting: int,
    layer: Any,
    finite: Finite | None,
) -> Schedule:
    """What a replay gives in which nothing interrupts a job. `replayed`: starts, ends, log of agents, its own end."""
    start_s, end_s, log, stop_s = replayed
    return Schedule(
        workload=replace(workload, submit_s=submit_s) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=start_s,
        end_s=end_s,
        jobs=uninterrupted(workload, units, start_s, end_s, until_s),
        agents=stretches(layer, log, stop_s),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )


def refuse_strangers(where: str, what: str, named: Iterable[str], known: tuple[str, ...], workload: str) -> None:
    """Raises `BadScenario` for the first of those named that the workload does not know."""
    strangers = sorted(set(named) - set(known))
    if strangers:
        some = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
        raise BadScenario(f"{where}: {strangers[0]!r} is no {what} of {workload} (it has {some})")


@inner
def forget_released(agents: Any, ends_s: Seconds, ends_units: Counts, ends: int) -> int:
    """How many expected ends are left without those of the agents that have just been released."""
    for entry in range(agents.state[0].freed):
        gone = agents.freed[entry]
        ends = forget(ends_s, ends_units, ends, float(gone.end_s), int(gone.units))
    return ends


@inner
def stopped(  # noqa: PLR0917 - numba takes no keywords
    now_s: float, until_s: float, heap_s: Seconds, heap_job: Counts, running: int, end_s: Seconds
) -> float:
    """When the replay stopped. What still runs then has no end."""
    for entry in range(running):
        if heap_s[entry] > until_s:
            end_s[heap_job[entry]] = np.nan
    return now_s if until_s == np.inf else until_s
