"""The charts of a run: the use of the machine, the waiting jobs and the throughput of owners over time."""

from collections.abc import Mapping

import numpy as np

from gleaner.control.simulation.metrics.measures import Window
from gleaner.control.simulation.metrics.node_time import by_bin, throughput, waiting
from gleaner.control.simulation.model import Schedule, Seconds
from gleaner.control.simulation.report.page import Axis, Curve, Lines, Stack, Unit, UnitUse
from gleaner.control.simulation.report.pictures import PALETTE
from gleaner.control.simulation.run import ReplayOutcome

_BINS = 240
_FEW_BINS = 60
_TIME = Axis("time since the first submission", Unit.SECONDS)


def busy_plot(outcome: ReplayOutcome) -> Stack:
    """Return the shares of the machine in each bin: regular jobs, agents, saves and restores; the rest is idle."""
    window, schedule = outcome.measures.window, outcome.schedule
    edges_s = np.linspace(window.begin_s, window.end_s, _BINS + 1)
    regular, ours = by_bin(schedule.jobs, edges_s), by_bin(schedule.agents, edges_s)
    whole = schedule.machine.units * np.diff(edges_s)
    amounts = {
        UnitUse.REGULAR: regular.compute,
        UnitUse.COMPUTING: ours.compute,
        UnitUse.SAVING: regular.save + ours.save,
        UnitUse.RESTORING: regular.restore + ours.restore,
        UnitUse.LOST: regular.lost + ours.lost,
    }
    layers = {
        use: np.maximum(amount / whole, 0).tolist()
        for use, amount in amounts.items()
        if use is UnitUse.REGULAR or float(amount.sum()) > 1e-9 * float(whole.sum())
    }
    since_s = (edges_s - _origin(schedule)).tolist()
    return Stack("What the machine did", _TIME, Axis("share of the machine", Unit.SHARE), since_s, layers)


def queues_plot(schedules: Mapping[str, Schedule], window: Window, title: str = "") -> Lines:
    """Return the mean number of waiting jobs in each bin, of several replays of one trace."""
    edges_s = np.linspace(window.begin_s, window.end_s, _BINS + 1)
    curves = [
        Curve(label, _middles(edges_s, each), waiting(each.workload.submit_s, each.start_s, edges_s).tolist())
        for label, each in schedules.items()
    ]
    return Lines(f"Waiting jobs{title}", _TIME, Axis("waiting jobs"), curves, points=False)


def owners_plot(outcome: ReplayOutcome, unit: str) -> Lines | None:
    """Return the units on which each of the largest groups computed over time, or each user of a single group.

    None if there is only one of them.
    """
    found, workload = outcome.measures, outcome.schedule.workload
    groups = len(found.groups) > 1
    owners, names, codes = (
        (found.groups, workload.groups, workload.group) if groups else (found.users, workload.users, workload.user)
    )
    if len(owners) < 2:
        return None
    edges_s = np.linspace(found.window.begin_s, found.window.end_s, _FEW_BINS + 1)
    got = throughput(outcome.schedule.jobs, codes, len(names), edges_s)
    middles = _middles(edges_s, outcome.schedule)
    curves = [Curve(one.name, middles, got[names.index(one.name)].tolist()) for one in owners[: len(PALETTE)]]
    what = "group" if groups else "user"
    some = f", the largest {len(curves)} of {len(owners)}" if len(owners) > len(curves) else ""
    return Lines(f"Throughput by {what}{some}", _TIME, Axis(f"{unit} computing"), curves, points=False)


def _middles(edges_s: Seconds, schedule: Schedule) -> list[float]:
    middles: list[float] = ((edges_s[:-1] + edges_s[1:]) / 2 - _origin(schedule)).tolist()
    return middles


def _origin(schedule: Schedule) -> float:
    return float(np.nanmin(schedule.workload.submit_s))
