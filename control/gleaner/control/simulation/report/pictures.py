"""The plots of a page as SVG, drawn by matplotlib on a white background. The same plot always gives the same bytes.

Each colour has its own marker and line style, so that curves can also be told apart in black and white.
"""

# pyright: reportUnknownMemberType=false

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from gleaner.control.simulation.metrics.tables import duration
from gleaner.control.simulation.report.page import Axis, Lines, Plot, Stack, Unit

PALETTE = ("#1f6fb2", "#d9730d", "#1b8a6b", "#8e4ec6", "#c2406e", "#7a6a00")
"""The colours of curves, in their order."""
_MARKERS, _DASHES = "os^Dv<", ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
_RULE, _ALARM = "#dfe4ea", "#b3261e"
_INCH = 96
_WIDTH, _HEIGHT = 9.2, 3.2
_LEGEND_LETTERS, _KEY_LETTERS = 120, 8
"""The width of a row in the legend, and of a key beside its name, in characters."""
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _RULE,
    "legend.frameon": False,
    "text.parse_math": False,  # a name can contain a $
    "svg.fonttype": "none",
    "svg.hashsalt": "gleaner",
}
_UNITS_S = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_ROUND = (1, 2, 3, 6, 10)


def picture(plot: Plot) -> str:
    """Return the plot as the text of an SVG file."""
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, _HEIGHT), dpi=_INCH, layout="constrained")
        axes: Axes = figure.subplots()
        if isinstance(plot, Lines):
            _lines(plot, axes)
        else:
            _stack(plot, axes)
        handles, names = axes.get_legend_handles_labels()
        in_a_row = _LEGEND_LETTERS // max((len(name) + _KEY_LETTERS for name in names), default=1)
        columns = max(1, min(in_a_row, len(names)))
        figure.legend(handles, names, loc="outside upper left", ncols=columns)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def _lines(plot: Lines, axes: Axes) -> None:
    at = sorted({float(x) for curve in plot.curves for x in curve.x})
    for place, curve in enumerate(plot.curves):
        colour = PALETTE[place % len(PALETTE)]
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
        axes.axhline(height, color=_ALARM, linewidth=1.2, linestyle=(0, (6, 3)), label=_legend(meaning))
    _along(axes, plot.x, at, tight=not plot.points)
    _up(axes, plot.y)


def _stack(plot: Stack, axes: Axes) -> None:
    below = [0.0] * (len(plot.edges) - 1)
    for colour, (use, values) in zip(PALETTE, plot.layers.items(), strict=False):
        tops = [low + value for low, value in zip(below, values, strict=True)]
        axes.stairs(tops, plot.edges, baseline=below, fill=True, color=colour, label=use)
        below = tops
    _along(axes, plot.x, plot.edges, tight=True)
    _up(axes, plot.y)
    axes.set_ylim(0, 1)


def _legend(name: str) -> str:
    """Return the name in a form that matplotlib shows, because it hides names that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def _along(axes: Axes, axis: Axis, values: Sequence[float], *, tight: bool = False) -> None:
    """Set up the horizontal axis. A logarithmic axis shows times, and is marked at each of them if there are only a
    few."""
    axes.set_xlabel(axis.label)
    if tight and len(values) > 1:
        axes.set_xlim(values[0], values[-1])
    if axis.logarithmic and values:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(values[:: math.ceil(len(values) / 10)])))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _place: duration(value))
        return
    _ticks(axes.xaxis, axis, values, 8)


def _up(axes: Axes, axis: Axis) -> None:
    axes.grid(visible=True, axis="y")
    axes.set_ylabel(axis.label)
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(bottom=0)
    _ticks(axes.yaxis, axis, axes.get_ylim(), 5)


def _ticks(side: XAxis | YAxis, axis: Axis, values: Sequence[float], about: int) -> None:
    side.set_major_locator(MaxNLocator(about))
    match axis.unit:
        case Unit.SHARE:
            side.set_major_formatter(PercentFormatter(1, symbol=" %"))
        case Unit.SECONDS:
            low, high = min(values, default=0.0), max(values, default=1.0)
            unit_s, name = next((one for one in _UNITS_S if high - low >= 2 * one[0]), _UNITS_S[-1])
            ticks = MaxNLocator(about, steps=_ROUND, integer=high - low >= 2).tick_values(low / unit_s, high / unit_s)
            side.set_major_locator(FixedLocator([unit_s * tick for tick in ticks]))
            side.set_major_formatter(lambda value, _place: f"{value / unit_s:,.10g} {name}" if value else "0")
        case Unit.NUMBER:
            side.set_major_formatter("{x:,.10g}")
