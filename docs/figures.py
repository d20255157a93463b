"""Draw the pictures of the pages from `figures.json`: `make diagrams`. `tests/test_docs.py` compares them.

`timeline.svg` and `entitlements.svg` show one run of `make demo` and of `make demo-entitlements`, read from the picture
that the demo has drawn, to a fifth of a second. `one-run.svg` follows one job of the first run. `architecture.svg`
shows the parts and who calls whom. `wait.svg` shows how long regular jobs wait with agents, by the answers of

    glean simulate tune LOG --lengths 20m,30m,1h,2h,4h --save 60 --restore 30 --seeds N

Each picture has its own background and its own colours for dark pages.
"""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
NODES = ("node1", "node2", "node3")
LANES = 6
"""The jobs that a node of the demo runs at once."""


class Slice(NamedTuple):
    """A slice of one job, in seconds since the campaign was submitted."""

    node: str
    lane: int
    job: int
    begin_s: float
    restored_s: float
    saves_s: float
    """The begin of its save, or its end if the job has ended without one."""
    end_s: float


class Regular(NamedTuple):
    """A regular job, or an owner's."""

    node: str
    lane: int
    lanes: int
    begin_s: float
    end_s: float
    name: str


@dataclass(frozen=True)
class Run:
    """A run of a demo."""

    end_s: int
    round_ends_s: tuple[float, ...]
    regular: tuple[Regular, ...]
    slices: tuple[Slice, ...]


_DATA = json.loads((FOLDER / "figures.json").read_text())


def _run(name: str) -> Run:
    data = _DATA[name]
    regular, slices = (Regular(*row) for row in data["regular"]), (Slice(*row) for row in data["slices"])
    return Run(data["end_s"], tuple(data["round_ends_s"]), tuple(regular), tuple(slices))


RUNS = {name: _run(name) for name in ("timeline", "entitlements")}
FOLLOWED = tuple(slice_ for slice_ in sorted(RUNS["timeline"].slices, key=lambda one: one.begin_s) if slice_.job == 7)
EVENTS = (
    (128.0, FOLLOWED[-2].node, "the job computes in a gap"),
    (FOLLOWED[-2].end_s, FOLLOWED[-2].node, "it is saved, because the round ends"),
    (RUNS["timeline"].regular[1].begin_s, RUNS["timeline"].regular[1].node, "a regular job gets the node"),
    (FOLLOWED[-1].begin_s, FOLLOWED[-1].node, "the job continues on another node"),
)
KINDS = {
    "followed": "the job that is followed",
    "other": "other jobs of the campaign",
    "regular": "regular job",
    "idle": "idle",
}
PHASES = {
    "regular": "regular job",
    "followed": "computing",
    "restoring": "starting, restoring",
    "saving": "saving",
    "idle": "idle",
}
STYLE = """
.ground{fill:#ffffff} .ink{fill:#24292f} .soft{fill:#57606a} .line{stroke:#24292f} .grid{stroke:#d8dee4}
.regular{fill:#4c6a92} .other{fill:#bfe3cd} .followed{fill:#1f8a50} .idle{fill:#ebedf0} .bright{fill:#ffffff}
.vacated{fill:#1f8a50;stroke:#1f8a50} .kept{fill:#c8553d;stroke:#c8553d} .way{stroke:#1f8a50} .box{fill:#f6f8fa}
.restoring{fill:#e0a030} .saving{fill:#c8553d} .on{fill:#ffffff}
@media (prefers-color-scheme: dark) {
.ground{fill:#0d1117} .ink{fill:#e6edf3} .soft{fill:#9198a1} .line{stroke:#e6edf3} .grid{stroke:#30363d}
.regular{fill:#5b7fb0} .other{fill:#1d4a32} .followed{fill:#3fb975} .idle{fill:#21262d} .bright{fill:#ffffff}
.vacated{fill:#3fb975;stroke:#3fb975} .kept{fill:#f08a72;stroke:#f08a72} .way{stroke:#3fb975} .box{fill:#161b22}
.restoring{fill:#e9b44c} .saving{fill:#f08a72} .on{fill:#0d1117}
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
CALLS = (
    (210, 90, 320, 90, "HTTPS", "both"),
    (540, 90, 650, 90, "submits agents", "end"),
    (430, 150, 430, 265, "claims, reports", "both"),
    (715, 150, 715, 230, "starts, preempts", "end"),
    (340, 312, 210, 312, "checkpoints", "both"),
    (540, 312, 620, 312, "CRIU", "both"),
)
WAITS: dict[str, dict[str, list[list[float] | None]]] = _DATA["wait"]
"""For each log and way: change of the mean wait in per cent, and the ends of its 95 % interval, of each length. None:
not simulated."""
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


def _axis(left: float, y: float, scale: float, end_s: int) -> Iterator[str]:
    for second in range(0, end_s, 50):
        yield _line(left + second * scale, y, left + second * scale, y + 6)
        yield _text(left + second * scale, y + 22, str(second), kind="soft")
    yield _text(left + end_s * scale / 2, y + 40, "seconds since the campaign was submitted", kind="soft")


def one_run() -> str:
    """Return the picture of one job that moves from node to node."""
    run, left, scale, top, row, height = RUNS["timeline"], 70.0, 3.6, 62.0, 64.0, 46.0
    bottom = top + 3 * row

    def x(at_s: float) -> float:
        return left + at_s * scale

    def y(node: str) -> float:
        return top + NODES.index(node) * row

    def parts() -> Iterator[str]:
        yield from _legend(left, 14, KINDS, 222)
        for node in NODES:
            yield _text(left - 10, y(node) + 28, node, anchor="end")
            yield _box(x(0), y(node), run.end_s * scale, height, "idle")
        for other in run.slices:
            yield _box(x(other.begin_s), y(other.node), (other.end_s - other.begin_s) * scale, height, "other")
        for job in run.regular:
            yield _box(x(job.begin_s), y(job.node), (job.end_s - job.begin_s) * scale, height, "regular")
        for end_s in run.round_ends_s:
            yield _line(x(end_s), top - 6, x(end_s), bottom - 8, more=' stroke-dasharray="3 3"')
            yield _text(x(end_s), top - 10, "end of a round", kind="soft")
        for each in FOLLOWED:
            yield _box(x(each.begin_s), y(each.node) + 15, (each.end_s - each.begin_s) * scale, 16, "followed")
        for one, after in itertools.pairwise(FOLLOWED):
            more = ' stroke-width="2"'
            yield _line(x(one.end_s), y(one.node) + 23, x(after.begin_s), y(after.node) + 23, "way", more=more)
        yield from _axis(left, bottom - 12, scale, run.end_s)
        for number, (at_s, node, words) in enumerate(EVENTS, start=1):
            inside = 12 if number == 3 else 0
            yield from _number(x(at_s) + inside, y(node) + 23, number)
            column, line = divmod(number - 1, 2)
            yield from _number(left + 10 + 380 * column, bottom + 54 + 26 * line, number)
            yield _text(left + 28 + 380 * column, bottom + 59 + 26 * line, words, anchor="start")

    return _svg(860, 355, parts())


def whole_run(name: str) -> str:
    """Return the picture of all jobs of a run."""
    run, left, top, lane, row = RUNS[name], 70.0, 62.0, 16.0, 112.0
    scale = 763.2 / run.end_s

    def x(at_s: float) -> float:
        return left + at_s * scale

    def y(node: str, number: float = 0) -> float:
        return top + NODES.index(node) * row + number * lane

    def span(one: Slice, begin_s: float, end_s: float, kind: str) -> str:
        return _box(x(begin_s), y(one.node, one.lane) + 1, (end_s - begin_s) * scale, lane - 2, kind)

    def parts() -> Iterator[str]:
        owners = {"regular": "an owner's job"} if name == "entitlements" else {}
        yield from _legend(left, 14, PHASES | owners, 160)
        for node in NODES:
            yield _text(left - 10, y(node, LANES / 2) + 4, node, anchor="end")
            yield _box(x(0), y(node), run.end_s * scale, LANES * lane, "idle")
        for job in run.regular:
            width = (job.end_s - job.begin_s) * scale
            yield _box(x(job.begin_s), y(job.node, job.lane) + 1, width, job.lanes * lane - 2, "regular")
            words = job.name if width > 7 * len(job.name) else job.name.rpartition(" ")[2]
            middle = x((job.begin_s + job.end_s) / 2)
            yield _text(middle, y(job.node, job.lane + job.lanes / 2) + 5, words, kind="bright")
        for one in run.slices:
            yield span(one, one.begin_s, one.restored_s, "restoring")
            yield span(one, one.restored_s, one.saves_s, "followed")
            yield span(one, one.saves_s, one.end_s, "saving")
            middle = x((one.restored_s + one.saves_s) / 2)
            yield _text(middle, y(one.node, one.lane) + 12, str(one.job), kind="on", more=' font-size="11"')
        for end_s in run.round_ends_s:
            yield _line(x(end_s), top - 6, x(end_s), top + 3 * row - 12, more=' stroke-dasharray="3 3"')
            yield _text(x(end_s), top - 10, "end of a round", kind="soft")
        yield from _axis(left, top + 3 * row - 12, scale, run.end_s)

    return _svg(860, 440, parts())


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
        for x1, y1, x2, y2, words, tips in CALLS:
            more = ' marker-end="url(#tip)"' + (' marker-start="url(#tip)"' if tips == "both" else "")
            yield _line(x1, y1, x2, y2, more=more)
            level = y1 == y2
            yield _text((x1 + x2) / 2 + (0 if level else 8), (y1 + y2) / 2 + (-8 if level else -2), words,
                        anchor="middle" if level else "start", more=' font-size="12"')  # fmt: skip

    return _svg(860, 400, parts())


def wait() -> str:
    """Return the picture of regular jobs' wait with agents of several lengths, on three logs."""
    left, top, low, most, panel = 66.0, 86.0, -10.0, 366.0, 262.0
    highest = max(point[2] for ways in WAITS.values() for points in ways.values() for point in points if point)
    grid = 10 if highest <= 80 else 20
    high = math.ceil(highest / grid) * grid
    step = (panel - 24) / len(LENGTHS)

    def y(share: float) -> float:
        return top + (high - share) / (high - low) * (most - top)

    def parts() -> Iterator[str]:
        yield _text(left, 22, "Change of regular jobs' mean wait", anchor="start", more=' font-weight="bold"')
        yield from _legend(left, 36, WAYS, 300)
        for place, (log, ways) in enumerate(WAITS.items()):
            begin = left + place * panel
            yield _text(begin + (panel - 24) / 2, top - 12, log)
            for share in (int(low), *range(0, high + 1, grid)):
                yield _line(begin, y(share), begin + panel - 24, y(share), "grid" if share else "line")
                if place == 0:
                    yield _text(left - 8, y(share) + 4, f"{share:+d} %" if share else "0 %", anchor="end", kind="soft")
            for number, (way, points) in enumerate(ways.items()):
                for where, point in enumerate(points):
                    if number == 0:
                        yield _text(begin + (where + 0.5) * step, most + 18, LENGTHS[where], kind="soft",
                                    more=' font-size="11"')  # fmt: skip
                    if point is None:
                        continue
                    mean, least, most_of_it = point
                    at = begin + (where + 0.38 + 0.24 * number) * step
                    yield _line(at, y(least), at, y(most_of_it), way, more=' stroke-width="1.5"')
                    yield f'<circle cx="{at:.1f}" cy="{y(mean):.1f}" r="4" class="{way}"/>'
                    if (way, LENGTHS[where]) == AS_SHIPPED:
                        yield f'<circle cx="{at:.1f}" cy="{y(mean):.1f}" r="9" fill="none" class="line"/>'
                        yield _text(at, y(low) - 6, "as shipped", kind="soft", more=' font-size="11"')
        yield _text(left + 1.5 * panel - 12, most + 42, "length of the agents; with 95 % intervals", kind="soft")

    return _svg(860, 424, parts())


PICTURES = {
    "one-run.svg": one_run,
    "timeline.svg": lambda: whole_run("timeline"),
    "entitlements.svg": lambda: whole_run("entitlements"),
    "architecture.svg": architecture,
    "wait.svg": wait,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
