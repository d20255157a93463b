"""Axes: the place of a value on paper, the values that get a tick, and the way they are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.control.simulation.metrics.tables import duration, number, percent
from gleaner.control.simulation.report.page import Axis, Unit

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS_S = tuple(
    step * unit_s
    for unit_s, steps in (
        (1, (1, 2, 5, 10, 15, 30)),
        (_MINUTE, (1, 2, 5, 10, 15, 30)),
        (_HOUR, (1, 2, 3, 6, 12)),
        (_DAY, (1, 2, 7, 14, 28, 91, 182, 364, 728, 3640)),
    )
    for step in steps
)


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic map from values to places on paper."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)


def scale(axis: Axis, values: Sequence[float], begin: float, end: float, *, snug: bool = False) -> Scale:
    """Return a scale that holds all the values. It ends at the next tick, or with `snug` at the outermost values."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if axis.logarithmic and low > 0:
        return Scale(low / 1.08, high * 1.08, begin, end, logarithmic=True)
    if axis.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = low + (abs(low) or 1.0)
    if not snug:
        step = tick_step(low, high, axis.unit)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, begin, end)


def tick_step(low: float, high: float, unit: Unit, about: int = 5) -> float:
    """Return a round distance that gives about `about` ticks.

    >>> tick_step(0, 100, Unit.NUMBER), tick_step(0, 7200, Unit.SECONDS)
    (20.0, 1800.0)
    """
    rough = (high - low) / about
    if unit is Unit.SECONDS and rough > 1:
        return float(next((step for step in _STEPS_S if step >= rough), _STEPS_S[-1] * math.ceil(rough / _STEPS_S[-1])))
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(step for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def ticks(axis: Axis, along: Scale, values: Sequence[float], about: int = 5) -> list[tuple[float, str]]:
    """Return pairs of a value and its text. A logarithmic axis is marked at the values themselves, if they are few."""
    if along.logarithmic:
        own = sorted(set(values))
        chosen = own if len(own) <= 8 else own[:: math.ceil(len(own) / 8)]
        return [(value, written(value, axis.unit)) for value in chosen]
    step = tick_step(along.low, along.high, axis.unit, about)
    first = math.ceil(along.low / step - 1e-9)
    last = math.floor(along.high / step + 1e-9)
    return [(index * step, _tick(index * step, step, axis.unit)) for index in range(first, last + 1)]


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


def _tick(value: float, step: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return f"{100 * value:.{_digits(100 * step)}f} %"
    if unit is Unit.SECONDS:
        unit_s, name = next(
            ((unit_s, name) for unit_s, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")) if step >= unit_s),
            (1, "s"),
        )
        return f"{value / unit_s:,.{_digits(step / unit_s)}f} {name}" if value else "0"
    return f"{value:,.{_digits(step)}f}"


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9)) if not float(step).is_integer() else 0
