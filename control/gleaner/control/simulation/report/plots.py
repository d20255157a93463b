"""Lines, stacks and bars as SVG. What a reader points at shows its figures; they also stand in a table below."""

import math
from collections.abc import Sequence
from itertools import chain, pairwise

from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.report.axes import Scale, scale, ticks, written
from gleaner.control.simulation.report.page import PALETTE, Bars, Curve, Lines, Role, Stack
from gleaner.control.simulation.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    bottom_axis,
    element,
    hit,
    left_axis,
    legend,
    path,
    picture,
)

_BASE = HEIGHT - BOTTOM


def draw_lines(plot: Lines) -> str:
    """Return curves with their intervals, limits, and one area to point at for each value of x."""
    at = sorted({float(x) for curve in plot.curves for x in curve.x})
    heights = [*chain.from_iterable((*c.y, *c.low, *c.high) for c in plot.curves), *(y for y, _ in plot.limits)]
    x_scale = scale(plot.x, at, LEFT + 12, WIDTH - RIGHT - 12, snug=True)
    y_scale = scale(plot.y, heights, _BASE, TOP)
    body = left_axis(plot.y.label, y_scale, ticks(plot.y, y_scale, heights))
    body += bottom_axis(plot.x.label, x_scale, ticks(plot.x, x_scale, at, 8))
    for height, meaning in plot.limits:
        y = y_scale(height)
        body.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit"))
        body.append(element("text", meaning, x=WIDTH - RIGHT - 4, y=y - 5, class_="tick", text_anchor="end"))
    roles = [curve.role or PALETTE[index % len(PALETTE)] for index, curve in enumerate(plot.curves)]
    for curve, role in zip(plot.curves, roles, strict=True):
        body += _curve(curve, role, x_scale, y_scale, points=plot.points)
    body += _columns(plot, at, x_scale)
    return legend([(c.label, role) for c, role in zip(plot.curves, roles, strict=True)]) + picture(plot.title, body)


def _curve(curve: Curve, role: Role, x_scale: Scale, y_scale: Scale, *, points: bool) -> list[str]:
    known = [index for index, y in enumerate(curve.y) if math.isfinite(y)]
    drawn: list[str] = []
    if curve.low and curve.high and known:
        upper = [(x_scale(curve.x[index]), y_scale(curve.high[index])) for index in known]
        lower = [(x_scale(curve.x[index]), y_scale(curve.low[index])) for index in reversed(known)]
        drawn.append(element("path", d=path(upper + lower) + "Z", class_=f"band {role}"))
    places = [(x_scale(curve.x[index]), y_scale(curve.y[index])) for index in known]
    if places:
        drawn.append(element("path", d=path(places), class_=f"line {role}"))
    if points:
        drawn += [element("circle", cx=x, cy=y, r=3.5, class_=f"dot {role}") for x, y in places]
    return drawn


def _columns(plot: Lines, at: Sequence[float], x_scale: Scale) -> list[str]:
    """Return the areas to point at. Each area reaches half way to its neighbours."""
    places = [x_scale(x) for x in at]
    borders = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), WIDTH - RIGHT]
    drawn: list[str] = []
    for index, x in enumerate(at):
        lines = [f"{plot.x.label}: {written(x, plot.x.unit)}"]
        for curve in plot.curves:
            for place, y in enumerate(curve.y):
                if float(curve.x[place]) == x and math.isfinite(y):
                    lines.append(f"{curve.label}: {_with_interval(curve, place, plot)}")
        drawn.append(hit(borders[index], borders[index + 1] - borders[index], "\n".join(lines), places[index]))
    return drawn


def _with_interval(curve: Curve, place: int, plot: Lines) -> str:
    said = written(curve.y[place], plot.y.unit)
    if curve.low and curve.high:
        said += f" ({written(curve.low[place], plot.y.unit)} to {written(curve.high[place], plot.y.unit)})"
    return said


def lines_table(plot: Lines) -> Table:
    """Return the figures of the curves, for readers who do not point."""
    at = sorted({float(x) for curve in plot.curves for x in curve.x})
    rows: list[tuple[str, ...]] = []
    for x in at:
        cells = [written(x, plot.x.unit)]
        for curve in plot.curves:
            found = [place for place, own in enumerate(curve.x) if float(own) == x]
            cells.append(_with_interval(curve, found[0], plot) if found else "")
        rows.append(tuple(cells))
    return Table((plot.x.label, *(curve.label for curve in plot.curves)), tuple(rows))


def draw_stack(plot: Stack) -> str:
    """Return the layers, each on top of those before it, as steps."""
    totals = [0.0] * (len(plot.edges) - 1)
    x_scale = scale(plot.x, plot.edges, LEFT, WIDTH - RIGHT, snug=True)
    sums = [sum(layer.values[index] for layer in plot.layers) for index in range(len(totals))]
    heights = [0.0, *sums] if plot.highest is None else [0.0, plot.highest]
    y_scale = scale(plot.y, heights, _BASE, TOP, snug=plot.highest is not None)
    body = left_axis(plot.y.label, y_scale, ticks(plot.y, y_scale, heights))
    for layer in plot.layers:
        tops = [below + value for below, value in zip(totals, layer.values, strict=True)]
        upper = _steps(plot.edges, tops, x_scale, y_scale)
        lower = _steps(plot.edges, totals, x_scale, y_scale)
        body.append(element("path", d=path([*upper, *reversed(lower)]) + "Z", class_=f"fill {layer.role}"))
        totals = tops
    body += bottom_axis(plot.x.label, x_scale, ticks(plot.x, x_scale, plot.edges, 8))
    for index in range(len(totals)):
        x, after = x_scale(plot.edges[index]), x_scale(plot.edges[index + 1])
        lines = [f"{written(plot.edges[index], plot.x.unit)} to {written(plot.edges[index + 1], plot.x.unit)}"]
        lines += [f"{layer.label}: {written(layer.values[index], plot.y.unit)}" for layer in reversed(plot.layers)]
        body.append(hit(x, after - x, "\n".join(lines), (x + after) / 2))
    return legend([(layer.label, layer.role) for layer in plot.layers]) + picture(plot.title, body)


def _steps(edges: Sequence[float], values: Sequence[float], x: Scale, y: Scale) -> list[tuple[float, float]]:
    drawn: list[tuple[float, float]] = []
    for index, value in enumerate(values):
        drawn += [(x(edges[index]), y(value)), (x(edges[index + 1]), y(value))]
    return drawn


def draw_bars(plot: Bars) -> str:
    """Return groups of bars, each with its figure under the pointer."""
    heights = [0.0, *(v for series in plot.series for v in series.values if v is not None and math.isfinite(v))]
    y_scale = scale(plot.y, heights, _BASE, TOP)
    group = (WIDTH - RIGHT - LEFT) / max(len(plot.categories), 1)
    bar = min(group * 0.8 / max(len(plot.series), 1), 46)
    roles = [series.role or PALETTE[index % len(PALETTE)] for index, series in enumerate(plot.series)]
    body = left_axis(plot.y.label, y_scale, ticks(plot.y, y_scale, heights))
    marks: list[tuple[float, str]] = []
    for place, category in enumerate(plot.categories):
        middle = LEFT + group * (place + 0.5)
        marks.append((middle, category))
        lines = [category]
        for index, series in enumerate(plot.series):
            value = series.values[place]
            lines.append(f"{series.label}: {written(value, plot.y.unit)}")
            if value is not None and math.isfinite(value):
                x = middle + (index - len(plot.series) / 2) * bar
                top, bottom = sorted((y_scale(value), y_scale(0)))
                body.append(
                    element(
                        "rect", x=x + 1, y=top, width=bar - 2, height=bottom - top, rx=2, class_=f"fill {roles[index]}"
                    )
                )
        body.append(hit(middle - group / 2, group, "\n".join(lines)))
    body += bottom_axis(plot.x_label, Scale(0, 1, 0, 1), marks)
    return legend([(s.label, role) for s, role in zip(plot.series, roles, strict=True)]) + picture(plot.title, body)


def bars_table(plot: Bars) -> Table:
    """Return the figures of the bars."""
    rows = tuple(
        (category, *(written(series.values[place], plot.y.unit) for series in plot.series))
        for place, category in enumerate(plot.categories)
    )
    return Table((plot.x_label, *(series.label for series in plot.series)), rows)
