"""A chart of who held which node at which time, as SVG."""

from gleaner.control.simulation.report.axes import Scale, ticks, written
from gleaner.control.simulation.report.page import Block, Gantt, Role
from gleaner.control.simulation.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    bottom_axis,
    element,
    legend,
    picture,
    up_the_side,
)

_NAMES = (
    (Role.REGULAR, "regular jobs"),
    (Role.COMPUTING, "agents computing"),
    (Role.RESTORING, "restoring"),
    (Role.SAVING, "saving"),
    (Role.LOST, "lost"),
    (Role.IDLE, "idle"),
)
_LABELS = 16
"""The most rows that have their names written."""


def draw_gantt(plot: Gantt) -> str:
    """Return the chart: a row for each node, a block for each stretch on it, cut off at the ends of the period."""
    row = min(22.0, max(3.0, 520 / max(len(plot.rows), 1)))
    height = round(TOP + BOTTOM + row * len(plot.rows))
    along = Scale(plot.begin, plot.end, LEFT, WIDTH - RIGHT)
    down = Scale(0, len(plot.rows), TOP, height - BOTTOM)
    body = [
        element(
            "rect", x=LEFT, y=TOP, width=WIDTH - RIGHT - LEFT, height=height - BOTTOM - TOP, class_=f"fill {Role.IDLE}"
        )
    ]
    every = -(-len(plot.rows) // _LABELS)
    body += [
        element("text", plot.rows[index], x=LEFT - 6, y=down(index + 0.5) + 4, class_="tick", text_anchor="end")
        for index in range(0, len(plot.rows), every)
    ]
    body.append(up_the_side(plot.row_label, down))
    for block in plot.blocks:
        body += _block(block, plot, along, down, gap=min(1.5, row / 6))
    body += bottom_axis(plot.x.label, along, ticks(plot.x, along, (), 8), height)
    used = {block.role for block in plot.blocks} | {Role.IDLE}
    return legend([(name, role) for role, name in _NAMES if role in used]) + picture(plot.title, body, height)


def _block(block: Block, plot: Gantt, along: Scale, down: Scale, gap: float) -> list[str]:
    start, end = max(block.start, plot.begin), min(block.end, plot.end)
    if end <= start:
        return []
    x, y, width = along(start), down(block.first), along(end) - along(start)
    tip = f"{block.label}\n{written(block.start, plot.x.unit)} to {written(block.end, plot.x.unit)}"
    rows = plot.rows[block.first] + (f" to {plot.rows[block.last]}" if block.last > block.first else "")
    return [
        element(
            "rect",
            x=x,
            y=y + gap / 2,
            width=width - 0.6 if width > 2 else max(width, 0.4),
            height=down(block.last + 1) - y - gap,
            class_=f"fill block {block.role}",
            data_tip=f"{tip}\n{plot.row_label} {rows}".strip(),
        )
    ]
