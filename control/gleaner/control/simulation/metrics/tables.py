"""Tables of text, which are made once for the terminal, the report and other readers. This module needs no library."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose cells are texts. The first column names the row and is aligned left, and the other columns are
    figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    left: int = 1
    """The number of columns, counted from the first, that are aligned left."""
    words: tuple[str, ...] = ()
    """The names of further columns that are aligned left."""
    has_header: bool = True

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        columns: Mapping[str, str | Callable[[Row], object]],
        *,
        right: Collection[str] = (),
        title: str = "",
    ) -> Self:
        """Return a table of the rows. Each column has a name, and shows an attribute or a function of the row.

        The columns in `right` are figures, and all others are aligned left.

        >>> Table.of([3 + 4j], {"REAL": "real", "SUM": lambda value: value.real + value.imag}, right=("SUM",)).rows
        (('3.0', '7.0'),)
        """
        cells = (
            tuple(getattr(row, cell) if isinstance(cell, str) else cell(row) for cell in columns.values())
            for row in rows
        )
        shown = tuple(tuple("" if cell is None else str(cell) for cell in row) for row in cells)
        return cls(tuple(columns), shown, title, left=0, words=tuple(name for name in columns if name not in right))

    def is_left(self, place: int) -> bool:
        """Return True if that column is aligned left."""
        return place < self.left or self.columns[place] in self.words


def number(value: float | None, digits: int = 1) -> str:
    """Return a figure as text with commas between thousands, or an empty text for None.

    >>> number(12345.678), number(3.0, 0), number(None)
    ('12,345.7', '3', '')
    """
    return "" if value is None else f"{value:,.{digits}f}"


def shortest(value: float) -> str:
    """Return the shortest text that is read as the same number. A whole number has no decimal point.

    >>> shortest(3.0), shortest(0.1)
    ('3', '0.1')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def percent(share: float | None, digits: int = 2) -> str:
    """Return a fraction as a percentage, or an empty text for None.

    >>> percent(0.98765)
    '98.77 %'
    """
    return "" if share is None else f"{100 * share:.{digits}f} %"


def change(share: float | None, digits: int = 2) -> str:
    """Return a relative change as a percentage with its sign, or an empty text for None.

    >>> change(0.01), change(-0.5), change(0.0)
    ('+1.00 %', '-50.00 %', '0.00 %')
    """
    if share is None:
        return ""
    said = f"{100 * share:+.{digits}f} %"
    return said[1:] if float(said[:-2]) == 0 else said


def duration(seconds: float | None) -> str:
    """Return a time in a suitable unit, with enough digits to compare two times, or an empty text for None.

    A whole number has no decimals.

    >>> duration(0), duration(0.25), duration(75), duration(3600), duration(5400), duration(200000), duration(-30)
    ('0 s', '0.25 s', '75 s', '1 h', '1.50 h', '2.31 d', '-30 s')
    """
    if seconds is None:
        return ""
    size = abs(seconds)
    for unit, unit_s, least_s in (("d", 86400, 172800), ("h", 3600, 5400), ("min", 60, 120)):
        if size >= unit_s and float(seconds / unit_s).is_integer():
            return f"{seconds / unit_s:,.0f} {unit}"
        if size >= least_s:
            return f"{seconds / unit_s:.2f} {unit}"
    return f"{seconds:.0f} s" if size >= 10 or float(seconds).is_integer() else f"{seconds:.2f} s"
