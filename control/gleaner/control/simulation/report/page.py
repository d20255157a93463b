"""The parts of a report: sections of text, tables and plots. `report.write` makes one HTML file of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gleaner.control.simulation.metrics.tables import Table


class Unit(StrEnum):
    """The way in which the figures of an axis are written."""

    NUMBER = "number"
    SHARE = "share"
    """1 is written as 100 %."""
    SECONDS = "seconds"
    """Written in minutes, hours or days."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity along one side of a plot."""

    label: str
    unit: Unit = Unit.NUMBER
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """One line through points. With `low` and `high` each point has a confidence interval."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over one axis, with lines across at the limits: pairs of a height and its meaning."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    limits: Sequence[tuple[float, str]] = ()
    points: bool = True
    """True if the points are marked. Hundreds of points are better not marked."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Shares of the machine on top of each other, over bins that begin and end at `edges` (one more than values)."""

    title: str
    x: Axis
    y: Axis
    edges: Sequence[float]
    layers: Mapping[str, Sequence[float]]


Plot: TypeAlias = Lines | Stack
Part: TypeAlias = str | Sequence[str] | Mapping[str, object] | Table | Plot
"""A paragraph, a list of remarks, settings to copy, a table or a plot. Nothing in it is read as HTML."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """One report. `subtitle` names its subject: the trace, the machine, the scheduler."""

    title: str
    subtitle: str
    sections: Sequence[Section]
