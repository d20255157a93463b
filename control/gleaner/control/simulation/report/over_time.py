"""The machine's use and the waiting jobs over the time of the window."""

from collections.abc import Sequence

import numpy as np

from gleaner.control.simulation.metrics.fairness import throughput
from gleaner.control.simulation.metrics.integrals import by_bin, waiting
from gleaner.control.simulation.metrics.measures import Window
from gleaner.control.simulation.report.page import PALETTE, Axis, Curve, Layer, Lines, Role, Stack, Unit
from gleaner.control.simulation.run import Outcome
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.workload import Seconds

_BINS = 240
_FEW_BINS = 60
_TIME = Axis("time since the first submission", Unit.SECONDS)


def busy_plot(outcome: Outcome) -> Stack:
    """Return the shares of the machine in each bin: regular jobs, agents, saves and restores; the rest is idle."""
    window, schedule = outcome.measures.window, outcome.schedule
    edges_s = _edges(window)
    regular, ours = by_bin(schedule.jobs, edges_s), by_bin(schedule.agents, edges_s)
    whole = schedule.machine.units * np.diff(edges_s)
    layers = (
        ("regular jobs", regular.compute, Role.REGULAR),
        ("agents computing", ours.compute, Role.COMPUTING),
        ("saving", regular.save + ours.save, Role.SAVING),
        ("restoring", regular.restore + ours.restore, Role.RESTORING),
        ("lost", regular.lost + ours.lost, Role.LOST),
    )
    drawn = [
        Layer(label, np.maximum(amount / whole, 0).tolist(), role)
        for label, amount, role in layers
        if role is Role.REGULAR or float(amount.sum()) > 1e-9 * float(whole.sum())
    ]
    since_s = (edges_s - _origin(schedule)).tolist()
    return Stack("What the machine did", _TIME, Axis("share of the machine", Unit.SHARE), since_s, drawn, highest=1.0)


def queue_plot(outcome: Outcome) -> Lines:
    """Return the mean number of waiting jobs in each bin, with and without agents."""
    edges_s = _edges(outcome.measures.window)
    middles = ((edges_s[:-1] + edges_s[1:]) / 2 - _origin(outcome.schedule)).tolist()
    curves = [Curve("with agents" if outcome.baseline else "waiting", middles, _queue(outcome.schedule, edges_s))]
    if outcome.baseline is not None:
        curves.insert(0, Curve("without agents", middles, _queue(outcome.baseline, edges_s), role=Role.SECOND))
        curves[1] = Curve("with agents", middles, curves[1].y, role=Role.FIRST)
    return Lines("Waiting jobs", _TIME, Axis("waiting jobs"), curves, points=False)


def queues_plot(outcomes: Sequence[Outcome], title: str) -> Lines:
    """Return the mean number of waiting jobs in each bin, of several replays of one trace."""
    edges_s = _edges(outcomes[0].measures.window)
    middles = ((edges_s[:-1] + edges_s[1:]) / 2 - _origin(outcomes[0].schedule)).tolist()
    curves = [Curve(outcome.label, middles, _queue(outcome.schedule, edges_s)) for outcome in outcomes]
    return Lines(f"Waiting jobs{title}", _TIME, Axis("waiting jobs"), curves, points=False)


def owners_plot(outcome: Outcome, unit: str) -> Lines | None:
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
    middles = ((edges_s[:-1] + edges_s[1:]) / 2 - _origin(outcome.schedule)).tolist()
    curves = [
        Curve(one.name, middles, [float(units) for units in got[names.index(one.name)]])
        for one in owners[: len(PALETTE)]
    ]
    what = "group" if groups else "user"
    some = f", the largest {len(curves)} of {len(owners)}" if len(owners) > len(curves) else ""
    return Lines(f"Throughput by {what}{some}", _TIME, Axis(f"{unit} computing"), curves, points=False)


def _queue(schedule: Schedule, edges_s: Seconds) -> list[float]:
    return [float(mean) for mean in waiting(schedule.workload.submit_s, schedule.start_s, edges_s)]


def _edges(window: Window) -> Seconds:
    return np.linspace(window.begin_s, window.end_s, _BINS + 1)


def _origin(schedule: Schedule) -> float:
    return float(np.nanmin(schedule.workload.submit_s))
