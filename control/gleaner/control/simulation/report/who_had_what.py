"""A Gantt chart of nodes: as much of the schedule as can be read."""

import numpy as np

from gleaner.control.simulation.machine import Allocation
from gleaner.control.simulation.metrics.measures import Window
from gleaner.control.simulation.metrics.node_assignment import placed
from gleaner.control.simulation.metrics.tables import duration
from gleaner.control.simulation.report.page import Axis, Block, Gantt, Part, Role, Text, Unit
from gleaner.control.simulation.schedule import Schedule, Stretches

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
    blocks = _blocks(schedule, stretches.only(stretches.node < rows), rows, begin_s)
    some = f"the first {rows} of {machine.units} {what}s" if rows < machine.units else f"all {rows} {what}s"
    known = schedule.parts is not None
    how = "where the replay placed them" if known else f"on the first free {what}s, since the replay only counts them"
    title = f"Who had which {what}"
    chart = Gantt(
        title,
        Axis(f"time since {duration(since_s)} after the first submission", Unit.SECONDS),
        [str(row) for row in range(rows)],
        0.0,
        end_s - begin_s,
        blocks,
        what,
    )
    shown = f"{duration(end_s - begin_s)} in the middle of the window, on {some}"
    limits = "" if end_s - begin_s >= window.length_s else ": no more, so that single pieces of work can be told apart"
    return [Text(f"{shown}{limits}. Jobs are drawn {how}."), chart]


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


def _blocks(schedule: Schedule, stretches: Stretches, rows: int, origin_s: float) -> list[Block]:
    """Return a block for each use that a stretch made of its nodes, one after the other."""
    restored_s = stretches.start_s + stretches.restore_s
    saving_s = stretches.end_s - stretches.save_s
    borders = np.stack([stretches.start_s, restored_s, saving_s - stretches.lost_s, saving_s, stretches.end_s])
    borders -= origin_s
    blocks: list[Block] = []
    for index in range(len(stretches)):
        job, first = int(stretches.job[index]), int(stretches.node[index])
        last = min(first + int(stretches.units[index]), rows) - 1
        computing = Role.REGULAR if job >= 0 else Role.COMPUTING
        label = f"job {schedule.workload.job[job]}" if job >= 0 else "agent"
        for place, role in enumerate((Role.RESTORING, computing, Role.LOST, Role.SAVING)):
            start, end = float(borders[place, index]), float(borders[place + 1, index])
            if end > start:
                said = label if role is computing else f"{label}, {role.value}"
                blocks.append(Block(first, last, start, end, role, said))
    return blocks
