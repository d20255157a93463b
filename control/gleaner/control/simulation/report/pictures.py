"""The plots of a page as SVG, drawn by matplotlib on white paper. The same plot gives the same bytes.

Colours go with markers and kinds of line, so that curves are told apart on a black and white print too.
"""

# pyright: reportUnknownMemberType=false

import io
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

from gleaner.control.simulation.metrics.tables import Table, duration, number, percent
from gleaner.control.simulation.report.page import PALETTE, Axis, Bars, Colour, Curve, Gantt, Lines, Span, Stack, Unit

_COLOURS = {
    Colour.FIRST: "#1f6fb2",
    Colour.SECOND: "#d9730d",
    Colour.THIRD: "#1b8a6b",
    Colour.FOURTH: "#8e4ec6",
    Colour.FIFTH: "#c2406e",
    Colour.SIXTH: "#7a6a00",
    Colour.REGULAR: "#3b6ea5",
    Colour.COMPUTING: "#57b894",
    Colour.SAVING: "#e8a33d",
    Colour.RESTORING: "#a77bd0",
    Colour.LOST: "#c43c3c",
    Colour.IDLE: "#eef1f4",
}
_ROLES = {
    Colour.REGULAR: "regular jobs",
    Colour.COMPUTING: "agents computing",
    Colour.RESTORING: "restoring",
    Colour.SAVING: "saving",
    Colour.LOST: "lost",
    Colour.IDLE: "idle",
}
_MARKERS, _DASHES = "os^Dv<", ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
_INK, _FAINT, _RULE, _ALARM = "#1c2733", "#4c5a68", "#dfe4ea", "#b3261e"
_INCH = 96
_WIDTH, _HEIGHT = 9.2, 3.2
_LEGEND_LETTERS, _KEY_LETTERS = 120, 8
"""The width of a row of the legend, and of a key beside its name, in letters."""
_ROW_LABELS = 16
"""The most rows of a Gantt chart that have their names written."""
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _FAINT,
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _RULE,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "text.color": _INK,
    "text.parse_math": False,  # a name may hold a $
    "svg.fonttype": "none",
    "svg.hashsalt": "gleaner",
}
_STEPS_S = tuple(
    float(step * unit_s)
    for unit_s, steps in (
        (1, (1, 2, 5, 10, 15, 30)),
        (60, (1, 2, 5, 10, 15, 30)),
        (3600, (1, 2, 3, 6, 12)),
        (86400, (1, 2, 3, 7, 14, 28, 91, 182, 364, 728, 1820, 3640)),
    )
    for step in steps
)


def picture(plot: Lines | Stack | Bars | Gantt) -> str:
    """Return the plot as the text of an SVG file."""
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, _HEIGHT), dpi=_INCH, layout="constrained")
        axes: Axes = figure.subplots()
        match plot:
            case Lines():
                _lines(plot, axes)
            case Stack():
                _stack(plot, axes)
            case Bars():
                _bars(plot, axes)
            case Gantt():
                figure.set_figheight(_WIDTH * min(0.62, max(0.16, 0.1 + 0.03 * len(plot.rows))))
                _gantt(plot, axes)
        handles, names = axes.get_legend_handles_labels()
        if isinstance(plot, Gantt):
            names = [_ROLES[role] for role in _used(plot)]
            handles = [Patch(facecolor=_COLOURS[role], edgecolor=_RULE) for role in _used(plot)]
        in_a_row = _LEGEND_LETTERS // max((len(name) + _KEY_LETTERS for name in names), default=1)
        columns = max(1, min(in_a_row, len(names)))
        figure.legend(handles, names, loc="outside upper left", ncols=columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def _lines(plot: Lines, axes: Axes) -> None:
    at = sorted({float(x) for curve in plot.curves for x in curve.x})
    for place, curve in enumerate(plot.curves):
        colour = _COLOURS[curve.role or PALETTE[place % len(PALETTE)]]
        kind = place % len(_MARKERS)
        axes.plot(
            curve.x,
            curve.y,
            color=colour,
            label=_legend(curve.label),
            linewidth=1.8,
            marker=_MARKERS[kind] if plot.points else "",
            linestyle="-" if plot.points else _DASHES[kind],
            markersize=5,
        )
        if curve.low and curve.high:
            axes.vlines(curve.x, curve.low, curve.high, color=colour, linewidth=1.2)
    for height, meaning in plot.limits:
        axes.axhline(height, color=_ALARM, linewidth=1.2, linestyle=(0, (6, 3)))
        axes.annotate(
            meaning,
            (1, height),
            (0, 3),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right",
            color=_ALARM,
            fontsize=9,
        )
    heights = [*chain.from_iterable((*c.y, *c.low, *c.high) for c in plot.curves), *(y for y, _ in plot.limits)]
    _along(axes, plot.x, at, tight=not plot.points)
    _up(axes, plot.y, heights)


def _stack(plot: Stack, axes: Axes) -> None:
    below = [0.0] * (len(plot.edges) - 1)
    for layer in plot.layers:
        tops = [low + value for low, value in zip(below, layer.values, strict=True)]
        axes.stairs(tops, plot.edges, baseline=below, fill=True, color=_COLOURS[layer.role], label=_legend(layer.label))
        below = tops
    _along(axes, plot.x, plot.edges, tight=True)
    _up(axes, plot.y, below)
    if plot.highest is not None:
        axes.set_ylim(0, plot.highest)


def _bars(plot: Bars, axes: Axes) -> None:
    width = 0.8 / max(len(plot.series), 1)
    for place, series in enumerate(plot.series):
        known = [(index, value) for index, value in enumerate(series.values) if value is not None]
        axes.bar(
            [index + (place + 0.5) * width - 0.4 for index, _ in known],
            [value for _, value in known],
            0.94 * width,
            color=_COLOURS[series.role or PALETTE[place % len(PALETTE)]],
            label=_legend(series.label),
        )
    axes.set_xticks(range(len(plot.categories)), plot.categories)
    axes.set_xlim(-0.6, max(len(plot.categories), 1) - 0.4)
    axes.tick_params(axis="x", bottom=False)
    axes.set_xlabel(plot.x_label)
    _up(axes, plot.y, [value for series in plot.series for value in series.values if value is not None])


def _gantt(plot: Gantt, axes: Axes) -> None:
    axes.set_facecolor(_COLOURS[Colour.IDLE])
    gap = 0.06 if len(plot.rows) <= 64 else 0.0
    for role in _used(plot):
        shapes = [_shape(block, plot, gap) for block in plot.blocks if block.role is role]
        axes.add_collection(PolyCollection(shapes, facecolor=_COLOURS[role], edgecolor="white", linewidth=0.3))
    every = -(-len(plot.rows) // _ROW_LABELS)
    axes.set_yticks([index + 0.5 for index in range(0, len(plot.rows), every)], plot.rows[::every])
    axes.set_ylim(len(plot.rows), 0)
    axes.grid(visible=False)
    axes.set_ylabel(plot.row_label)
    _along(axes, plot.x, (plot.begin, plot.end), tight=True)


def _used(plot: Gantt) -> list[Colour]:
    used = {block.role for block in plot.blocks} | {Colour.IDLE}
    return [role for role in _ROLES if role in used]


def _shape(block: Span, plot: Gantt, gap: float) -> list[tuple[float, float]]:
    left, right = max(block.start, plot.begin), min(block.end, plot.end)
    top, bottom = block.first + gap, block.last + 1 - gap
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _legend(name: str) -> str:
    """Return the name so that matplotlib shows it: names that begin with an underscore are not shown."""
    return f" {name}" if name.startswith("_") else name


def _along(axes: Axes, axis: Axis, values: Sequence[float], *, tight: bool = False) -> None:
    """Set the horizontal axis. A logarithmic axis is marked at the values themselves, if they are few."""
    axes.set_xlabel(axis.label)
    if tight and len(values) > 1:
        axes.set_xlim(values[0], values[-1])
    if axis.logarithmic and values:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(values[:: math.ceil(len(values) / 10)])))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_formatter(lambda value: written(value, axis.unit)))
        return
    _ticks(axes.xaxis, axis, values, 8)


def _up(axes: Axes, axis: Axis, values: Iterable[float]) -> None:
    axes.grid(visible=True, axis="y")
    axes.set_ylabel(axis.label)
    known = [value for value in values if math.isfinite(value)]
    if known:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if min(known) < 0 else 0.0)
    _ticks(axes.yaxis, axis, axes.get_ylim(), 5)


def _ticks(side: XAxis | YAxis, axis: Axis, values: Sequence[float], about: int) -> None:
    match axis.unit:
        case Unit.SHARE:
            side.set_major_locator(MaxNLocator(about))
            side.set_major_formatter(_formatter(lambda value: f"{100 * value:.6g} %"))
        case Unit.SECONDS:
            step = tick_step_s(max(values, default=1.0) - min(values, default=0.0), about)
            side.set_major_locator(MultipleLocator(step))
            side.set_major_formatter(_formatter(lambda value: _time(value, step)))
        case Unit.NUMBER:
            side.set_major_locator(MaxNLocator(about))
            side.set_major_formatter(_formatter("{:,.10g}".format))


def _formatter(write: Callable[[float], str]) -> FuncFormatter:
    def text(value: float, _place: int | None) -> str:
        return write(value)

    return FuncFormatter(text)


def tick_step_s(length_s: float, about: int) -> float:
    """Return a round time of which at most `about` fit into a length.

    >>> tick_step_s(7200, 5), tick_step_s(0.4, 5)
    (1800.0, 0.08)
    """
    rough_s = length_s / about
    if rough_s <= _STEPS_S[0]:
        return rough_s or 1.0
    return next((step for step in _STEPS_S if step >= rough_s), _STEPS_S[-1] * math.ceil(rough_s / _STEPS_S[-1]))


def _time(value_s: float, step_s: float) -> str:
    unit_s, name = next((one for one in ((86400, "d"), (3600, "h"), (60, "min")) if step_s >= one[0]), (1, "s"))
    return f"{value_s / unit_s:,.10g} {name}" if value_s else "0"


def written(value: float | None, unit: Unit) -> str:
    """Return a value as text, short and exact enough to be compared.

    >>> written(900, Unit.SECONDS), written(0.5, Unit.SHARE), written(1500, Unit.NUMBER), written(2.5, Unit.NUMBER)
    ('15 min', '50.00 %', '1,500', '2.50')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if unit is Unit.SHARE:
        return percent(value)
    if unit is Unit.SECONDS:
        return duration(value)
    return number(value, 0 if float(value).is_integer() else 2)


def lines_table(plot: Lines) -> Table:
    """Return the figures of the curves."""
    at = sorted({float(x) for curve in plot.curves for x in curve.x})
    rows: list[tuple[str, ...]] = []
    for x in at:
        cells = [written(x, plot.x.unit)]
        for curve in plot.curves:
            found = [place for place, own in enumerate(curve.x) if float(own) == x]
            cells.append(_with_interval(curve, found[0], plot) if found else "")
        rows.append(tuple(cells))
    return Table((plot.x.label, *(curve.label for curve in plot.curves)), tuple(rows))


def _with_interval(curve: Curve, place: int, plot: Lines) -> str:
    said = written(curve.y[place], plot.y.unit)
    if curve.low and curve.high:
        said += f" ({written(curve.low[place], plot.y.unit)} to {written(curve.high[place], plot.y.unit)})"
    return said


def bars_table(plot: Bars) -> Table:
    """Return the figures of the bars."""
    rows = tuple(
        (category, *(written(series.values[place], plot.y.unit) for series in plot.series))
        for place, category in enumerate(plot.categories)
    )
    return Table((plot.x_label, *(series.label for series in plot.series)), rows)
