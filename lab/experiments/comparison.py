"""The comparison of an experiment's results with the published ones, as a table and lines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from gleaner.control.simulation.metrics.tables import Table


class Facts(BaseModel):
    """A table of an experiment's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def changed(self, changes: dict[str, Any]) -> Self:
        """Return the table with other values. Raise `ValidationError` if the table lacks one of the names."""
        return type(self).model_validate(self.model_dump() | {k: v for k, v in changes.items() if k != "name"})


class Experiment(Facts):
    """The file of an experiment, with its settings, the published figures, and texts about both.

    In the texts, `{nodes}` stands for the setting with that name, or for a value that is known only after the replays.
    """

    title: str
    not_published: tuple[str, ...]
    explained: tuple[str, ...]

    def compared(self, rows: "Iterable[Row]", **known: object) -> "Reproduction":
        """Return the comparison of these rows. Values that are known only after the replays are put into the texts."""
        values = dict(self) | known
        title, not_published, explained = (
            tuple(line.format(**values) for line in lines)
            for lines in ((self.title,), self.not_published, self.explained)
        )
        return Reproduction(title[0], not_published, tuple(rows), explained)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `published` and `ours` are numbers, words if there is no number, or None if there is neither."""

    what: str
    published: str | float | None
    ours: str | float | None
    remark: str = ""
    """A remark, for example about the spread of single seeds, or the reason why the two figures differ."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The comparison of one experiment with its publication."""

    title: str
    not_published: tuple[str, ...]
    """The facts that the source does not give, one line for each, with our choice."""
    rows: tuple[Row, ...]
    explained: tuple[str, ...] = ()
    """The reasons why our figures differ from the published ones, one line for each."""


def table(comparison: Reproduction) -> Table:
    """Return both results side by side, with one row per figure."""
    rows = tuple((row.what, _written(row.published), _written(row.ours), row.remark) for row in comparison.rows)
    return Table(("", "published", "ours", "remark"), rows, comparison.title, words=("remark",))


def lines(comparison: Reproduction) -> str:
    """Return the facts that had to be chosen, and the reasons why figures differ, or an empty text if there are
    none."""
    said = [*_headed("Not published, so chosen here before the first comparison:", comparison.not_published)]
    said += _headed("Where ours differs:", comparison.explained)
    return "\n".join(said)


def _headed(head: str, each: Sequence[str]) -> list[str]:
    return [head, *(f"- {line}" for line in each)] if each else []


def _written(figure: str | float | None) -> str:
    if figure is None:
        return "-"
    return figure if isinstance(figure, str) else f"{figure:.4g}"
