"""The use of nodes over time as a picture, with a stripe for each node. A stripe has at most one point per unit of
width. Pure.

Each point of a stripe has one letter, for the node's `Use` or for the activity of a slice at that time. Later drawings
cover earlier ones: snapshots of the cluster come first, then slices, and finally restores and saves, which are short.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy.node_time import Use
from gleaner.control.queue.node_history import NodeSlice, NodeUses

WIDTH = 1000
"""The size of the picture, in its own units, and the greatest number of points of a stripe."""
RUNS_AT_MOST = 50_000
"""The maximum number of pieces of one colour that are drawn, with some 12 bytes each. A picture with more pieces has
fewer points."""
LOST, RESTORE, SAVE = "l", "R", "S"
PARTS: Mapping[str, str] = {
    Use.REGULAR: "regular",
    Use.HARVESTED: "harvested",
    SAVE: "saving",
    RESTORE: "restoring",
    LOST: "lost",
    Use.AGENT: "unused",
    Use.IDLE: "idle",
    Use.UNUSABLE: "unusable",
}
"""The parts of the picture by their letters. Their names are those of the style sheet."""
HEIGHTS = ((40, 18), (200, 8))
"""Pairs of a number of nodes and the height of a stripe, which applies to pictures with at most this number of
nodes."""
LEAST_HEIGHT = 3
_RUN = re.compile(rb"(.)\1*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stripe:
    """The stripe of one node, and its position from the top."""

    node: str
    top: int


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """The picture. Each of its parts is one path, made of pieces with the height of a stripe.

    The picture also contains the positions of agents' shared ends.
    """

    begin_s: float
    end_s: float
    stripe_height: int
    paths: Mapping[str, str]
    stripes: tuple[Stripe, ...]
    ends: tuple[float, ...]

    @property
    def height(self) -> int:
        """Return the height of the picture."""
        return self.stripe_height * len(self.stripes)


def timeline_chart(
    names: Sequence[str],
    looks: Sequence[NodeUses],
    slices: Iterable[NodeSlice],
    *,
    begin_s: float,
    end_s: float,
    look_s: float,
    now_s: float,
    ends_s: Iterable[float] = (),
) -> TimelineChart:
    """Return the picture of these nodes between two instants. A snapshot is valid for `look_s` seconds.

    The future stays empty.
    """
    height = next((height for most, height in HEIGHTS if len(names) <= most), LEAST_HEIGHT)
    drawn = list(slices)
    points = WIDTH
    while True:
        stripes = _stripes(names, looks, drawn, points=points, begin_s=begin_s, end_s=end_s, look_s=look_s, now_s=now_s)
        runs = [[(found.start(), found.end(), found[1]) for found in _RUN.finditer(stripe)] for stripe in stripes]
        if points == 1 or sum(map(len, runs)) <= RUNS_AT_MOST:
            break
        points //= 2
    shapes: dict[str, list[str]] = {letter: [] for letter in PARTS}
    made: list[Stripe] = []
    scale = WIDTH / points
    for place, (name, pieces) in enumerate(zip(names, runs, strict=True)):
        middle = place * height + height / 2
        for begin, end, letter in pieces:
            what = letter.decode()
            if what in shapes:
                shapes[what].append(f"M{begin * scale:g} {middle:g}h{(end - begin) * scale:g}")
        made.append(Stripe(name, place * height))
    places = (round(WIDTH * (at_s - begin_s) / (end_s - begin_s), 1) for at_s in ends_s if begin_s <= at_s <= end_s)
    paths = {PARTS[letter]: "".join(pieces) for letter, pieces in shapes.items() if pieces}
    return TimelineChart(begin_s, end_s, height, paths, tuple(made), tuple(places))


def _stripes(
    names: Sequence[str],
    looks: Sequence[NodeUses],
    slices: Sequence[NodeSlice],
    *,
    points: int,
    begin_s: float,
    end_s: float,
    look_s: float,
    now_s: float,
) -> list[bytearray]:
    """Return the letters of each node's points."""
    per_s = points / (end_s - begin_s)
    last = int(min(points, max(0.0, (now_s - begin_s) * per_s)))  # the future is unknown

    def bounds(from_s: float, until_s: float) -> tuple[int, int]:
        begin = max(0, int((from_s - begin_s) * per_s))
        end = min(last, max(begin + 1, round((until_s - begin_s) * per_s)))
        return (begin, end) if until_s > begin_s else (0, 0)

    place_of = {name: place for place, name in enumerate(names)}
    looked_at = letters_at(place_of, looks, [bounds(look.begin_s, look.begin_s + look_s) for look in looks], points)
    stripes = [bytearray(row.tobytes()) for row in looked_at]

    def draw(stripe: bytearray, letter: str, from_s: float, until_s: float) -> None:
        begin, end = bounds(from_s, until_s)
        if begin < end:
            stripe[begin:end] = letter.encode() * (end - begin)

    for each in slices:
        if each.node in place_of:
            until_s = now_s if each.ended_s is None else each.ended_s
            draw(stripes[place_of[each.node]], LOST if each.lost_s > 0 else Use.HARVESTED, each.claimed_s, until_s)
    for each in slices:
        if each.node in place_of:
            stripe = stripes[place_of[each.node]]
            if each.restore_s > 0:
                draw(stripe, RESTORE, each.claimed_s, each.claimed_s + each.restore_s)
            if each.save_s > 0 and each.ended_s is not None:
                draw(stripe, SAVE, each.ended_s - each.save_s, each.ended_s)
    return stripes


def letters_at(
    place_of: Mapping[str, int], looks: Sequence[NodeUses], bounds: Sequence[tuple[int, int]], points: int
) -> NDArray[np.uint8]:
    """Return, for each node, a row of points with the letters of its use.

    A letter fills the points between the bounds of its snapshot. One day can contain a million letters.
    """
    picture = np.full((len(place_of), points), ord(Use.UNKNOWN.value), np.uint8)
    rows: dict[tuple[str, ...], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
    for look, (begin, end) in zip(looks, bounds, strict=True):
        if begin >= end:
            continue
        key = tuple(look.names)
        if key not in rows:
            places = np.array([place_of.get(name, -1) for name in key], np.intp)
            rows[key] = (np.flatnonzero(places >= 0), places[places >= 0])
        wanted, into = rows[key]
        letters = np.frombuffer(look.letters.encode("ascii"), np.uint8)
        picture[into, begin:end] = letters[wanted, None]
    return picture
