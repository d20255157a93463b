"""The page around the plots, and the file."""

from base64 import b64encode
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from gleaner.control.simulation.metrics.tables import Table
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
from gleaner.control.simulation.report.pictures import bars_table, lines_table, picture

_HERE = Path(__file__).parent
_MANY, _FEW = 10, 4
"""Many columns fit beside each other only in small print. Few do not fill the page, and stay close together."""


def html(page: Page) -> str:
    """Return the report as HTML: styles and pictures are all in it. The same page gives the same bytes."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((_HERE / "page.html").read_text(encoding="utf-8"))
    sections = [
        (section.title, [Markup(_part(part)) for part in section.parts])  # noqa: S704 - what is in it was escaped
        for section in page.sections
    ]
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return template.render(page=page, sections=sections, style=style)


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
            return _figure(part, lines_table(part))
        case Bars():
            return _figure(part, bars_table(part))
        case Stack() | Gantt():
            return _figure(part)


def _card(label: str, value: str, remark: str) -> str:
    return (
        f'<div class="card"><span class="what">{escape(label)}</span>'
        f'<span class="value">{escape(value)}</span><span class="remark">{escape(remark)}</span></div>'
    )


def _figure(plot: Lines | Bars | Stack | Gantt, figures: Table | None = None) -> str:
    """Return the figure. As an image the picture can do nothing, whatever names are in it."""
    below = "" if figures is None else f"<details><summary>the figures</summary>{_table(figures)}</details>"
    source = b64encode(picture(plot).encode()).decode()
    image = f'<img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{source}">'
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{image}{below}</figure>"


def _table(table: Table) -> str:
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    head = "".join(f"<th{_side(table, place)}>{escape(name)}</th>" for place, name in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(f"<td{_side(table, place)}>{escape(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    columns = len(table.columns)
    dense = ' class="dense"' if columns >= _MANY else ' class="narrow"' if columns <= _FEW else ""
    return f'<div class="wide"><table{dense}>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _side(table: Table, place: int) -> str:
    return ' class="left"' if table.is_left(place) else ""
