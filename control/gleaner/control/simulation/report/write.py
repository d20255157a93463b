"""The page around the plots, and the file that contains it."""

import json
from base64 import b64encode
from pathlib import Path

import jinja2
from markupsafe import Markup

from gleaner.control.simulation.report.page import Page, Plot
from gleaner.control.simulation.report.pictures import picture

_HERE = Path(__file__).parent


def html(page: Page) -> str:
    """Return the report as HTML, with all styles and pictures in it. The same page always gives the same bytes."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((_HERE / "page.html").read_text(encoding="utf-8"))
    style = Markup((_HERE / "style.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return template.render(page=page, style=style, source=_source, settings=_settings)


def write(path: Path, page: Page) -> None:
    """Write the report. An existing file is replaced. Raises `OSError`."""
    path.write_text(html(page), encoding="utf-8", newline="\n")


def _source(plot: Plot) -> str:
    """Return the plot as a data URL. In an image, scripts cannot run, whatever names the plot contains."""
    return f"data:image/svg+xml;base64,{b64encode(picture(plot).encode()).decode()}"


def _settings(tables: object) -> str:
    return json.dumps(tables, indent=2)
