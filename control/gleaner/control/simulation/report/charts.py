"""The charts of a run: the machine's use and the waiting jobs over time, and as much of the schedule as can be read."""

from collections.abc import Mapping

import numpy as np

from gleaner.control.simulation.metrics.measures import Window
from gleaner.control.simulation.metrics.node_assignment import placed
from gleaner.control.simulation.metrics.node_time import by_bin, throughput, waiting
from gleaner.control.simulation.metrics.tables import duration
from gleaner.control.simulation.model import Allocation, Schedule, Seconds, Stretches
from gleaner.control.simulation.report.page import Axis, Curve, Gantt, Lines, Part, Span, Stack, Unit, UnitUse
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


_STRETCHES = 800
"""The most pieces of work, about, that are quick to draw and can still be told apart."""
_PLACED = 20_000
"""The most pieces of work that are given nodes, which takes a second or two."""
_ROWS = 256
_LONGEST_S = 3 * 86400.0
_AGENTS = 6
"""The most agents that are shown one after the other."""
_SHORTEST_S = 60.0


def gantt_parts(schedule: Schedule, window: Window, agents_s: float | None = None) -> list[Part]:
    """Return the middle of the window on the first nodes, short enough to see the saves of agents of `agents_s`."""
    machine = schedule.machine
    rows = min(machine.units, _ROWS)
    begin_s, end_s = _period(
        schedule, window, rows / machine.units, _LONGEST_S if agents_s is None else _AGENTS * agents_s
    )
    since_s = begin_s - float(np.nanmin(schedule.workload.submit_s))
    what = "node" if machine.allocation is Allocation.NODES else "processor"
    stretches = placed(schedule, begin_s, end_s)
    blocks = _blocks(stretches.only(stretches.node < rows), rows, begin_s)
    some = f"the first {rows} of {machine.units} {what}s" if rows < machine.units else f"all {rows} {what}s"
    known = schedule.parts is not None
    how = "where the replay placed them" if known else f"on the first free {what}s, since the replay only counts them"
    title = f"Who had which {what}"
    chart = Gantt(
        title,
        Axis(f"time since {duration(since_s)} after the first submission", Unit.SECONDS),
        rows,
        end_s - begin_s,
        blocks,
        what,
    )
    shown = f"{duration(end_s - begin_s)} in the middle of the window, on {some}"
    limits = "" if end_s - begin_s >= window.length_s else ": no more, so that single pieces of work can be told apart"
    return [f"{shown}{limits}. Jobs are drawn {how}.", chart]


def _period(schedule: Schedule, window: Window, share: float, longest_s: float) -> tuple[float, float]:
    """Return the middle of the window, shortened until what runs then on this share of the machine can be read."""
    middle_s = (window.begin_s + window.end_s) / 2
    length_s = min(window.length_s, longest_s, _LONGEST_S)
    while length_s > _SHORTEST_S:
        begin_s, end_s = middle_s - length_s / 2, middle_s + length_s / 2
        each = (schedule.jobs, schedule.agents)
        count = sum(int(np.count_nonzero((one.start_s < end_s) & (one.end_s > begin_s))) for one in each)
        if count * share <= _STRETCHES and count <= _PLACED:
            break
        length_s /= 1.5
    return middle_s - length_s / 2, middle_s + length_s / 2


def _blocks(stretches: Stretches, rows: int, origin_s: float) -> list[Span]:
    """Return a block for each use that a stretch made of its nodes, one after the other."""
    restored_s = stretches.start_s + stretches.restore_s
    saving_s = stretches.end_s - stretches.save_s
    borders = np.stack([stretches.start_s, restored_s, saving_s - stretches.lost_s, saving_s, stretches.end_s])
    borders -= origin_s
    blocks: list[Span] = []
    for index in range(len(stretches)):
        first = int(stretches.node[index])
        last = min(first + int(stretches.units[index]), rows) - 1
        computing = UnitUse.REGULAR if stretches.job[index] >= 0 else UnitUse.COMPUTING
        for place, use in enumerate((UnitUse.RESTORING, computing, UnitUse.LOST, UnitUse.SAVING)):
            start, end = float(borders[place, index]), float(borders[place + 1, index])
            if end > start:
                blocks.append(Span(first, last, start, end, use))
    return blocks
