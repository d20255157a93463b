"""The parts of a report: sections of text, tables and plots. `report.write` makes one HTML file of them."""

from collections.abc import Sequence
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


class Colour(StrEnum):
    """The meaning of a colour. A role has the same colour in every plot."""

    FIRST = "c1"
    SECOND = "c2"
    THIRD = "c3"
    FOURTH = "c4"
    FIFTH = "c5"
    SIXTH = "c6"
    REGULAR = "regular"
    COMPUTING = "computing"
    SAVING = "saving"
    RESTORING = "restoring"
    LOST = "lost"
    IDLE = "idle"


PALETTE = (Colour.FIRST, Colour.SECOND, Colour.THIRD, Colour.FOURTH, Colour.FIFTH, Colour.SIXTH)
"""The roles, in this order, of curves and bars that name none."""


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
    role: Colour | None = None


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
class Layer:
    """One layer of a stack: a value for each bin."""

    label: str
    values: Sequence[float]
    role: Colour


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers on top of each other, over bins that begin and end at `edges` (one more than there are values)."""

    title: str
    x: Axis
    y: Axis
    edges: Sequence[float]
    layers: Sequence[Layer]
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Bars of one colour, one for each category; None where there is nothing to show."""

    label: str
    values: Sequence[float | None]
    role: Colour | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars, side by side."""

    title: str
    y: Axis
    categories: Sequence[str]
    series: Sequence[Series]
    x_label: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a Gantt chart: rows `first` to `last` from start to end."""

    first: int
    last: int
    start: float
    end: float
    role: Colour
    label: str = ""


@dataclass(frozen=True, slots=True)
class Gantt:
    """A chart of who held which row at which time. The rest, which no block covers, is idle."""

    title: str
    x: Axis
    rows: Sequence[str]
    begin: float
    end: float
    blocks: Sequence[Span]
    row_label: str = "node"


@dataclass(frozen=True, slots=True)
class Card:
    """A figure to be seen first."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    """Figures in a row."""

    cards: Sequence[Card]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. Nothing in it is read as HTML."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy as it is, such as settings."""

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list of remarks."""

    lines: Sequence[str]


Part: TypeAlias = Cards | Text | Code | Points | Table | Lines | Stack | Bars | Gantt


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
