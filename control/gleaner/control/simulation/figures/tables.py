"""Tables of text, made once for the terminal, the report and whoever else shows them. No library is needed here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as people read them. The first column names the row and stands left; the others are figures."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    left: int = 1
    """So many columns, from the first on, stand left."""
    words: tuple[str, ...] = ()
    """Further columns that stand left."""

    def is_left(self, place: int) -> bool:
        """Whether that column stands left."""
        return place < self.left or self.columns[place] in self.words


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands apart; nothing for what is not known.

    >>> number(12345.678), number(3.0, 0), number(None)
    ('12,345.7', '3', '')
    """
    return "" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share of 1 as a percentage.

    >>> percent(0.98765)
    '98.77 %'
    """
    return "" if share is None else f"{100 * share:.{digits}f} %"


def change(share: float | None, digits: int = 2) -> str:
    """A relative change with its sign.

    >>> change(0.01), change(-0.5), change(0.0)
    ('+1.00 %', '-50.00 %', '0.00 %')
    """
    if share is None:
        return ""
    said = f"{100 * share:+.{digits}f} %"
    return said[1:] if float(said[:-2]) == 0 else said


def duration(seconds: float | None) -> str:
    """A time in the unit that suits it, with enough digits to compare two, and none where it is whole.

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
