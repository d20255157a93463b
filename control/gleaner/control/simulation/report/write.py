"""The page around the plots, and the file."""

from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.report.gantt import draw_gantt
from gleaner.control.simulation.report.page import (
    Bars,
    Cards,
    Code,
    Gantt,
    Lines,
    Page,
    Part,
    Points,
    Stack,
    Text,
)
from gleaner.control.simulation.report.plots import bars_table, draw_bars, draw_lines, draw_stack, lines_table

_HERE = Path(__file__).parent
_MANY = 10
"""The number of columns from which on they fit beside each other only in small print."""


def html(page: Page) -> str:
    """Return the report as HTML: styles, pictures and script are all in it. The same page gives the same bytes."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((_HERE / "page.html").read_text(encoding="utf-8"))
    sections = [(section.title, [Markup(_part(part)) for part in section.parts]) for section in page.sections]  # noqa: S704 - what is in it was escaped
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    script = Markup((_HERE / "script.js").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return template.render(page=page, sections=sections, style=style, script=script)


def write(path: Path, page: Page) -> None:
    """Write the report, and replace an existing file. Raises `OSError`."""
    path.write_text(html(page), encoding="utf-8", newline="\n")


def _part(part: Part) -> str:
    match part:
        case Cards():
            return f'<div class="cards">{"".join(_card(*(c.label, c.value, c.remark)) for c in part.cards)}</div>'
        case Text():
            return f"<p>{escape(part.text)}</p>"
        case Code():
            return f"<pre>{escape(part.text)}</pre>"
        case Points():
            return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in part.lines)}</ul>"
        case Table():
            return _table(part)
        case Lines():
            return _figure(part.title, draw_lines(part), lines_table(part))
        case Bars():
            return _figure(part.title, draw_bars(part), bars_table(part))
        case Stack():
            return _figure(part.title, draw_stack(part))
        case Gantt():
            return _figure(part.title, draw_gantt(part))


def _card(label: str, value: str, remark: str) -> str:
    return (
        f'<div class="card"><span class="what">{escape(label)}</span>'
        f'<span class="value">{escape(value)}</span><span class="remark">{escape(remark)}</span></div>'
    )


def _figure(title: str, drawn: str, figures: Table | None = None) -> str:
    below = "" if figures is None else f"<details><summary>the figures</summary>{_table(figures)}</details>"
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawn}{below}</figure>"


def _table(table: Table) -> str:
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    head = "".join(f"<th{_side(table, place)}>{escape(name)}</th>" for place, name in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(f"<td{_side(table, place)}>{escape(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    dense = ' class="dense"' if len(table.columns) >= _MANY else ""
    return f'<div class="wide"><table{dense}>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _side(table: Table, place: int) -> str:
    return ' class="left"' if table.is_left(place) else ""
