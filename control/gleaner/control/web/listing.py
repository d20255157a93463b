"""Searching, sorting and dividing into pages, for lists that control holds completely in memory. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import StringConstraints

from gleaner.control.models.base import Reply
from gleaner.control.models.searches import ROWS_A_PAGE, PageSearch

Row = TypeVar("Row", bound=Reply)


class ListSearch(PageSearch):
    """A search in a list that is in memory. If its order does not name a column of the list, the rows keep their
    order."""

    order: Annotated[str, StringConstraints(pattern=r"^(-?[a-z_]{1,40})?$")] = ""


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """One page of a list, and the number of all matching rows."""

    rows: tuple[Row, ...]
    total: int


def listing(rows: Sequence[Row], wanted: ListSearch) -> Listing[Row]:
    """Return one page of the rows that contain the text in any of their fields."""
    text = wanted.text.casefold()
    found = [row for row in rows if not text or any(text in word for word in _words(row))]
    name = wanted.order.removeprefix("-")
    if rows and name in type(rows[0]).model_fields:
        found.sort(key=lambda row: _rank(getattr(row, name)), reverse=wanted.order.startswith("-"))
    return Listing(tuple(found[wanted.skipped : wanted.skipped + ROWS_A_PAGE]), len(found))


def _words(row: Reply) -> list[str]:
    return [str(value).casefold() for value in row.model_dump().values() if value is not None]


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a sort key for any value: missing values first, then numbers, then words."""
    match value:
        case None:
            return 0, 0.0, ""
        case bool() | int() | float():
            return 1, float(value), ""
        case tuple():
            return 1, float(len(value)), ""  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return 2, 0.0, str(value)
