"""A comparison with what was published, as a table and lines, and as a report."""

from collections.abc import Sequence

from gleaner.control.simulation.figures.tables import Table
from gleaner.control.simulation.report.page import Page, Part, Points, Section, Text
from gleaner.control.simulation.reproduce.comparison import Comparison


def table(comparison: Comparison) -> Table:
    """Published and ours side by side."""
    rows = tuple((row.what, _written(row.published), _written(row.ours), row.remark) for row in comparison.rows)
    return Table(("", "published", "ours", "remark"), rows, comparison.title, words=("remark",))


def lines(comparison: Comparison) -> str:
    """What had to be chosen, and why figures differ; empty if there is nothing to say."""
    said = [*_headed("Not published, so chosen here before the first comparison:", comparison.not_published)]
    said += _headed("Where ours differs:", comparison.explained)
    return "\n".join(said)


def page(comparisons: Sequence[Comparison]) -> Page:
    """All of them as one report."""
    sections: list[Section] = []
    for one in comparisons:
        parts: list[Part] = [Table(*_untitled(table(one)))]
        if one.not_published:
            parts += [Text("Not published, so chosen here before the first comparison:"), Points(one.not_published)]
        if one.explained:
            parts += [Text("Where ours differs:"), Points(one.explained)]
        sections.append(Section(one.title, parts))
    return Page("Published experiments, repeated", "Each with the settings file that is part of the program.", sections)


def _untitled(shown: Table) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], str, int, tuple[str, ...]]:
    return shown.columns, shown.rows, "", shown.left, shown.words


def _headed(head: str, each: Sequence[str]) -> list[str]:
    return [head, *(f"- {line}" for line in each)] if each else []


def _written(figure: str | float | None) -> str:
    if figure is None:
        return "-"
    return figure if isinstance(figure, str) else f"{figure:.4g}"
