"""The parts of a report, which are sections of text, tables and plots. `report.write` makes one HTML file of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gleaner.control.simulation.metrics.tables import Table


class Unit(StrEnum):
    """The way in which the figures of an axis are written."""

    NUMBER = "number"
    SHARE = "share"
    """The number 1 is written as 100 %."""
    SECONDS = "seconds"
    """A time is written in minutes, hours or days."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity along one side of a plot."""

    label: str
    unit: Unit = Unit.NUMBER
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """One line through points. With `low` and `high`, each point has a confidence interval."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over a common horizontal axis. `limits` are horizontal lines, each with its height and its meaning."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]
    limits: Sequence[tuple[float, str]] = ()
    points: bool = True
    """True if the points are marked, which is not useful for hundreds of points."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Shares of the machine, stacked on top of each other. The bins begin and end at the `edges`, one more than there
    are bins."""

    title: str
    x: Axis
    y: Axis
    edges: Sequence[float]
    layers: Mapping[str, Sequence[float]]


Plot: TypeAlias = Lines | Stack
Part: TypeAlias = str | Sequence[str] | Mapping[str, object] | Table | Plot
"""A paragraph, a list of remarks, settings to copy, a table or a plot. Its text is never interpreted as HTML."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the content below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """One report. `subtitle` names its subject, such as the trace, the machine and the scheduler."""

    title: str
    subtitle: str
    sections: Sequence[Section]
