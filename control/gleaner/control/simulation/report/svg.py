"""SVG elements as text: the frame of a plot, its axes, and areas that show their figures under the pointer.

Colours are classes that the page's style gives a light and a dark value, so a plot holds none itself.
"""

from collections.abc import Iterable, Sequence
from html import escape

from gleaner.control.simulation.report.axes import Scale
from gleaner.control.simulation.report.page import Role

WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 18, 14, 46


def element(name: str, text: str | None = None, **attributes: object) -> str:
    """Return one element. Numbers are written to a tenth of a pixel, and `_` in a name stands for `-`.

    >>> element("line", x1=1.0, y1=2.25, class_="grid")
    '<line x1="1" y1="2.2" class="grid"/>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text)}</{name}>"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return escape(str(value), quote=True).replace("\n", "&#10;")


def picture(title: str, body: Iterable[str], height: int = HEIGHT) -> str:
    """Return the whole picture, as wide as the page lets it be."""
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return head + "".join(body) + "</svg>"


def path(points: Sequence[tuple[float, float]]) -> str:
    """Return the `d` of a line through the points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def left_axis(label: str, along: Scale, marks: Sequence[tuple[float, str]]) -> list[str]:
    """Return lines across at the ticks, their texts, and the label up the side."""
    drawn: list[str] = []
    for value, text in marks:
        y = along(value)
        drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(element("text", text, x=LEFT - 8, y=y + 4, class_="tick", text_anchor="end"))
    return [*drawn, up_the_side(label, along)]


def up_the_side(label: str, along: Scale) -> str:
    """Return the label of a vertical axis, turned to read upwards."""
    middle = (along.begin + along.end) / 2
    turned = f"rotate(-90 14 {middle:.0f})"
    return element("text", label, x=14, y=middle, class_="label", text_anchor="middle", transform=turned)


def bottom_axis(label: str, along: Scale, marks: Sequence[tuple[float, str]], height: int = HEIGHT) -> list[str]:
    """Return the ground line, the ticks on it and the label below."""
    base = height - BOTTOM
    drawn = [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="base")]
    for value, text in marks:
        x = along(value)
        drawn.append(element("line", x1=x, x2=x, y1=base, y2=base + 5, class_="base"))
        drawn.append(element("text", text, x=x, y=base + 19, class_="tick", text_anchor="middle"))
    drawn.append(
        element("text", label, x=(LEFT + WIDTH - RIGHT) / 2, y=height - 6, class_="label", text_anchor="middle")
    )
    return drawn


def hit(x: float, width: float, tip: str, cross: float | None = None, height: int = HEIGHT) -> str:
    """Return an area of full height that shows `tip` under the pointer, and then a line at `cross`."""
    base = height - BOTTOM
    drawn = element("rect", x=x, y=TOP, width=max(width, 0.5), height=base - TOP, data_tip=tip)
    if cross is not None:
        drawn += element("line", x1=cross, x2=cross, y1=TOP, y2=base, class_="cross")
    return f'<g class="hit">{drawn}</g>'


def legend(entries: Sequence[tuple[str, Role]]) -> str:
    """Return the names of the colours, as HTML."""
    keys = (f'<span class="key"><i class="bg {role}"></i>{escape(label)}</span>' for label, role in entries)
    return f'<div class="legend">{"".join(keys)}</div>'
