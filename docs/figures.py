"""Draw the pictures of the README: `make diagrams`. `tests/test_docs.py` compares them.

`one-run.svg` follows one job through the demo; its times are those of `timeline.png`. `wait.svg` shows how long regular
jobs wait with agents. Its figures are the answer of

    glean simulate tune Theta-2022.swf.gz --lengths 20m,30m,1h,2h,4h --save 60 --restore 30 --seeds 40
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
NODES = ("node1", "node2", "node3")
REGULAR = (("node1", 88, 166, "regular job"), ("node2", 179, 212, "regular job"), ("node3", 0, 73, "regular job"))
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
NOTES = (
    (76, "node2", "saved here", "end"),
    (91, "node2", "goes on here", "start"),
    (182, "node1", "and on another node", "middle"),
)
"""Each with the side of the words that stands at that time, so that two notes do not overlap."""
END_S = 212
WAITS = {
    "vacated at once for a regular job (as shipped)": (
        ("20 min", 1.82, 0.36, 3.29), ("30 min", 1.55, -0.03, 3.14), ("1 h", 0.95, -0.67, 2.56),
        ("2 h", 1.55, 0.18, 2.92), ("4 h", 0.67, -1.03, 2.37),
    ),
    "kept to the end of the round": (
        ("20 min", -1.90, -3.93, 0.13), ("30 min", -0.29, -2.22, 1.63), ("1 h", 2.10, 0.43, 3.77),
        ("2 h", 7.54, 5.10, 9.98), ("4 h", 13.00, 9.94, 16.06),
    ),
}  # fmt: skip
"""Change of the mean wait in per cent by the length of the agents, and the ends of its 95 % interval."""
COLOURS = {"regular": "#4c6a92", "other": "#cfe8da", "followed": "#2a9d5c", "idle": "#eeeeee", "line": "#333333"}
OF_WAITS = ("#2a9d5c", "#d1495b")


def _svg(width: int, height: int, parts: Iterator[str]) -> str:
    lines = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        f"{lines}\n</svg>\n"
    )


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = COLOURS["line"]) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = COLOURS["line"]) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="{colour}" fill="none"/>'


def one_run() -> str:
    """Return the picture of one job that moves from node to node."""
    left, scale, top, row = 70.0, 3.6, 40.0, 70.0

    def x(at_s: float) -> float:
        return left + at_s * scale

    def y(node: str) -> float:
        return top + NODES.index(node) * row

    def parts() -> Iterator[str]:
        for node in NODES:
            yield _text(left - 10, y(node) + 30, node, anchor="end")
            yield _box(x(0), y(node), END_S * scale, 50, COLOURS["idle"])
        for node, begin_s, end_s in OTHERS:
            yield _box(x(begin_s), y(node), (end_s - begin_s) * scale, 50, COLOURS["other"])
        for node, begin_s, end_s, words in REGULAR:
            yield _box(x(begin_s), y(node), (end_s - begin_s) * scale, 50, COLOURS["regular"])
            yield _text(x((begin_s + end_s) / 2), y(node) + 30, words, colour="white")
        for node, begin_s, end_s in FOLLOWED:
            yield _box(x(begin_s), y(node) + 17, (end_s - begin_s) * scale, 16, COLOURS["followed"])
        for (node, _begin_s, end_s), (after, begin_s, _end_s) in itertools.pairwise(FOLLOWED):
            yield _line(x(end_s), y(node) + 25, x(begin_s), y(after) + 25, COLOURS["followed"])
        for at_s, node, words, anchor in NOTES:
            yield _line(x(at_s), y(node) + 17, x(at_s), y(node) - 2)
            yield _text(x(at_s), y(node) - 6, words, anchor=anchor)
        yield _text(
            x(END_S / 2), top + 3 * row, "seconds since the campaign was submitted: 0 to 212; pale: its other jobs"
        )

    return _svg(860, 270, parts())


def wait() -> str:
    """Return the picture of regular jobs' wait with agents of several lengths."""
    left, top, high, low, step, most = 70.0, 60.0, 20.0, -5.0, 130.0, 300.0

    def y(share: float) -> float:
        return top + (high - share) / (high - low) * (most - top)

    def parts() -> Iterator[str]:
        for share in (-5, 0, 5, 10, 15, 20):
            yield _line(left, y(share), left + 5 * step, y(share), COLOURS["line"] if share == 0 else COLOURS["idle"])
            yield _text(left - 8, y(share) + 4, f"{share:+d} %" if share else "0 %", anchor="end")
        for number, (words, points) in enumerate(WAITS.items()):
            colour = OF_WAITS[number]
            yield _box(left + 12, 14 + 18 * number, 12, 12, colour)
            yield _text(left + 30, 25 + 18 * number, words, anchor="start")
            for place, (length, mean, least, most_of_it) in enumerate(points):
                at = left + (place + 0.42 + 0.16 * number) * step
                yield _line(at, y(least), at, y(most_of_it), colour)
                yield f'<circle cx="{at:.1f}" cy="{y(mean):.1f}" r="4" fill="{colour}"/>'
                if number == 0:
                    yield _text(at + 0.08 * step, most + 20, length)
        yield _text(
            left + 2.5 * step,
            most + 42,
            "length of the agents; change of regular jobs' mean wait, 95 % intervals, 40 seeds",
        )

    return _svg(760, 360, parts())


PICTURES = {"one-run.svg": one_run, "wait.svg": wait}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
