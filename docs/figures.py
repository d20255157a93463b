"""Draw the pictures of the pages from data: `make diagrams`. `tests/test_docs.py` compares them.

`one-run.svg` follows one job through the demo; its times are those of `timeline.png`. `architecture.svg` shows the
parts and who calls whom. `wait.svg` shows how long regular jobs wait with agents. Its figures are the answers of

    glean simulate tune LOG --lengths 20m,30m,1h,2h,4h --save 60 --restore 30 --seeds 40

Each picture has its own background and its own colours for dark pages.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
NODES = ("node1", "node2", "node3")
REGULAR = (("node1", 88, 166), ("node2", 179, 212), ("node3", 0, 73))
"""Seconds since the campaign was submitted, from timeline.png."""
OTHERS = (
    ("node1", 2, 77),
    ("node1", 182, 210),
    ("node2", 3, 76),
    ("node2", 91, 166),
    ("node3", 91, 167),
    ("node3", 182, 207),
)
"""Times in which other jobs of the campaign compute."""
FOLLOWED = (("node2", 3, 50), ("node2", 54, 76), ("node2", 91, 164), ("node1", 182, 210))
EVENTS = (
    (128, "node2", "the job computes in a gap"),
    (164, "node2", "it is saved, because the round ends"),
    (179, "node2", "a regular job gets the node"),
    (182, "node1", "the job continues on another node"),
)
ROUND_ENDS_S, END_S = (88, 178), 212
KINDS = {
    "followed": "the job that is followed",
    "other": "other jobs of the campaign",
    "regular": "regular job",
    "idle": "idle",
}
STYLE = """
.ground{fill:#ffffff} .ink{fill:#24292f} .soft{fill:#57606a} .line{stroke:#24292f} .grid{stroke:#d8dee4}
.regular{fill:#4c6a92} .other{fill:#bfe3cd} .followed{fill:#1f8a50} .idle{fill:#ebedf0} .bright{fill:#ffffff}
.vacated{fill:#1f8a50;stroke:#1f8a50} .kept{fill:#c8553d;stroke:#c8553d} .way{stroke:#1f8a50} .box{fill:#f6f8fa}
@media (prefers-color-scheme: dark) {
.ground{fill:#0d1117} .ink{fill:#e6edf3} .soft{fill:#9198a1} .line{stroke:#e6edf3} .grid{stroke:#30363d}
.regular{fill:#5b7fb0} .other{fill:#1d4a32} .followed{fill:#3fb975} .idle{fill:#21262d} .bright{fill:#ffffff}
.vacated{fill:#3fb975;stroke:#3fb975} .kept{fill:#f08a72;stroke:#f08a72} .way{stroke:#3fb975} .box{fill:#161b22}
}
"""


@dataclass(frozen=True)
class Part:
    """A box of the picture of the architecture, with its place, size and lines of text."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...]


PARTS = (
    Part(20, 30, 190, 120, "You", ("glean, web page, Python", "campaign files, images", "results")),
    Part(320, 30, 220, 120, "Control", ("one machine", "queue, decisions, HTTP", "asks Slurm seldom")),
    Part(650, 30, 190, 120, "Slurm", ("as your site has it", "one more partition,", "of the lowest tier")),
    Part(20, 250, 190, 110, "Shared storage", ("checkpoints, results", "one folder")),
    Part(320, 230, 520, 150, "Idle node", ()),
    Part(340, 265, 200, 95, "Agent", ("an ordinary Slurm job", "claims, saves, restores")),
    Part(620, 265, 200, 95, "Your jobs", ("containers", "without network")),
)
ARROWS = (
    (210, 90, 320, 90, "HTTPS", "both"),
    (540, 90, 650, 90, "submits agents", "end"),
    (430, 150, 430, 265, "claims, reports", "both"),
    (715, 150, 715, 230, "starts, preempts", "end"),
    (340, 312, 210, 312, "checkpoints", "both"),
    (540, 312, 620, 312, "CRIU", "both"),
)
WAITS: dict[str, dict[str, list[list[float]]]] = json.loads((FOLDER / "wait.json").read_text())
"""For each log and way: change of the mean wait in per cent, and the ends of its 95 % interval, of each length."""
LENGTHS = ("20 min", "30 min", "1 h", "2 h", "4 h")
AS_SHIPPED = ("vacated", "1 h")
WAYS = {"vacated": "agents leave at once for a regular job", "kept": "agents keep their node to the end of the round"}


def _svg(width: int, height: int, parts: Iterator[str]) -> str:
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13">\n<style>{STYLE}</style>\n'
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0 1 L10 5 L0 9 z" class="ink"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" class="ground"/>\n{lines}\n</svg>\n'
    )


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "middle", kind: str = "ink", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}"{more}>{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "line", *, more: str = "") -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" fill="none" class="{kind}"{more}/>'


def _number(x: float, y: float, number: int) -> Iterator[str]:
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" class="ink"/>'
    yield _text(x, y + 4.5, str(number), kind="ground", more=' font-weight="bold"')


def _legend(x: float, y: float, kinds: dict[str, str], step: float) -> Iterator[str]:
    for place, (kind, words) in enumerate(kinds.items()):
        yield _box(x + place * step, y, 13, 13, kind)
        yield _text(x + place * step + 20, y + 11, words, anchor="start")


def one_run() -> str:
    """Return the picture of one job that moves from node to node."""
    left, scale, top, row, height = 70.0, 3.6, 62.0, 64.0, 46.0
    bottom = top + 3 * row

    def x(at_s: float) -> float:
        return left + at_s * scale

    def y(node: str) -> float:
        return top + NODES.index(node) * row

    def parts() -> Iterator[str]:
        yield from _legend(left, 14, KINDS, 222)
        for node in NODES:
            yield _text(left - 10, y(node) + 28, node, anchor="end")
            yield _box(x(0), y(node), END_S * scale, height, "idle")
        for kind, rows in (("other", OTHERS), ("regular", REGULAR)):
            for node, begin_s, end_s in rows:
                yield _box(x(begin_s), y(node), (end_s - begin_s) * scale, height, kind)
        for end_s in ROUND_ENDS_S:
            yield _line(x(end_s), top - 6, x(end_s), bottom - 8, more=' stroke-dasharray="3 3"')
            yield _text(x(end_s), top - 10, "end of a round", kind="soft")
        for node, begin_s, end_s in FOLLOWED:
            yield _box(x(begin_s), y(node) + 15, (end_s - begin_s) * scale, 16, "followed")
        for (node, _begin_s, end_s), (after, begin_s, _end_s) in itertools.pairwise(FOLLOWED):
            yield _line(x(end_s), y(node) + 23, x(begin_s), y(after) + 23, "way", more=' stroke-width="2"')
        for second in range(0, END_S, 50):
            yield _line(x(second), bottom - 12, x(second), bottom - 6)
            yield _text(x(second), bottom + 10, str(second), kind="soft")
        yield _text(x(END_S / 2), bottom + 28, "seconds since the campaign was submitted", kind="soft")
        for number, (at_s, node, words) in enumerate(EVENTS, start=1):
            inside = 12 if number == 3 else 0
            yield from _number(x(at_s) + inside, y(node) + 23, number)
            column, line = divmod(number - 1, 2)
            yield from _number(left + 10 + 380 * column, bottom + 54 + 26 * line, number)
            yield _text(left + 28 + 380 * column, bottom + 59 + 26 * line, words, anchor="start")

    return _svg(860, 355, parts())


def architecture() -> str:
    """Return the picture of the parts, and who calls whom."""

    def parts() -> Iterator[str]:
        for part in PARTS:
            yield (
                f'<rect x="{part.x}" y="{part.y}" width="{part.width}" height="{part.height}" rx="6" '
                f'class="{"idle" if part.lines == () else "box"} line"/>'
            )
            middle = part.x + part.width / 2
            yield _text(middle, part.y + 24, part.title, more=' font-weight="bold" font-size="15"')
            for place, line in enumerate(part.lines):
                yield _text(middle, part.y + 48 + 20 * place, line, kind="soft")
        for x1, y1, x2, y2, words, tips in ARROWS:
            more = ' marker-end="url(#tip)"' + (' marker-start="url(#tip)"' if tips == "both" else "")
            yield _line(x1, y1, x2, y2, more=more)
            level = y1 == y2
            yield _text((x1 + x2) / 2 + (0 if level else 8), (y1 + y2) / 2 + (-8 if level else -2), words,
                        anchor="middle" if level else "start", more=' font-size="12"')  # fmt: skip

    return _svg(860, 400, parts())


def wait() -> str:
    """Return the picture of regular jobs' wait with agents of several lengths, on three logs."""
    left, top, high, low, most, panel = 66.0, 86.0, 70.0, -10.0, 366.0, 262.0
    step = (panel - 24) / len(LENGTHS)

    def y(share: float) -> float:
        return top + (high - share) / (high - low) * (most - top)

    def parts() -> Iterator[str]:
        yield _text(left, 22, "Change of regular jobs' mean wait", anchor="start", more=' font-weight="bold"')
        yield from _legend(left, 36, WAYS, 300)
        for place, (log, ways) in enumerate(WAITS.items()):
            begin = left + place * panel
            yield _text(begin + (panel - 24) / 2, top - 12, log)
            for share in range(int(low), int(high) + 1, 10):
                yield _line(begin, y(share), begin + panel - 24, y(share), "grid" if share else "line")
                if place == 0:
                    yield _text(left - 8, y(share) + 4, f"{share:+d} %" if share else "0 %", anchor="end", kind="soft")
            for number, (way, points) in enumerate(ways.items()):
                for where, (mean, least, most_of_it) in enumerate(points):
                    at = begin + (where + 0.38 + 0.24 * number) * step
                    yield _line(at, y(least), at, y(most_of_it), way, more=' stroke-width="1.5"')
                    yield f'<circle cx="{at:.1f}" cy="{y(mean):.1f}" r="4" class="{way}"/>'
                    if (way, LENGTHS[where]) == AS_SHIPPED:
                        yield f'<circle cx="{at:.1f}" cy="{y(mean):.1f}" r="9" fill="none" class="line"/>'
                        yield _text(at, y(low) - 6, "as shipped", kind="soft", more=' font-size="11"')
                    if number == 0:
                        yield _text(begin + (where + 0.5) * step, most + 18, LENGTHS[where], kind="soft",
                                    more=' font-size="11"')  # fmt: skip
        yield _text(left + 1.5 * panel - 12, most + 42, "length of the agents; 95 % intervals of 40 seeds", kind="soft")

    return _svg(860, 424, parts())


PICTURES = {"one-run.svg": one_run, "architecture.svg": architecture, "wait.svg": wait}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
