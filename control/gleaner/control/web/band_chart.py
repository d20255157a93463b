"""Node time as a picture, with a column for each step, in which the parts of the band are stacked. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gleaner.control.policy.node_time import PARTS, BandStep

WIDTH, HEIGHT = 1000.0, 200.0
"""The size of the picture, in its own units."""
LEAST_STEPS = 12
HOUR_S = 3600.0
NAMES: Mapping[str, str] = {
    "regular": "regular jobs",
    "harvested": "harvested",
    "saving": "saving",
    "restoring": "restoring",
    "lost": "lost",
    "unused": "agents, not used or not reported yet",
    "idle": "idle",
    "unusable": "not usable",
}
"""The names of the band's parts, as the page shows them."""


@dataclass(frozen=True, slots=True)
class Range:
    """A period that users can choose for the band: its length and the length of its steps."""

    name: str
    words: str
    length_s: int
    step_s: int
    stored_step_s: int


RANGES = {
    each.name: each
    for each in (
        Range("hours", "24 hours", 24 * 3600, 600, 600),
        Range("days", "7 days", 7 * 86400, 3600, 3600),
        Range("weeks", "12 weeks", 84 * 86400, 86400, 3600),
    )
}


@dataclass(frozen=True, slots=True)
class BandLayer:
    """One part of the band in all steps: the shape to fill, the core hours, and their fraction of all core hours."""

    part: str
    name: str
    path: str
    core_h: float
    share: float


@dataclass(frozen=True, slots=True)
class StepColumn:
    """One step of the band: its position in the picture, and the core hours of its parts."""

    x: float
    width: float
    begin_s: float
    core_h: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BandChart:
    """The picture of a period. Its upper edge is at `most_cores`."""

    begin_s: float
    end_s: float
    most_cores: float
    layers: tuple[BandLayer, ...]
    columns: tuple[StepColumn, ...]


def band_chart(steps: Sequence[BandStep], *, now_s: float) -> BandChart | None:
    """Return the picture, or None if there are no data. The picture begins where the data begin.

    The elapsed part of the current step is drawn as the whole step.
    """
    first = next((place for place, step in enumerate(steps) if step.cores_s), 0)
    steps = steps[max(0, min(first, len(steps) - LEAST_STEPS)) :]
    lengths = [max(1.0, min(step.end_s, now_s) - step.begin_s) for step in steps]
    most = max((step.cores_s / length_s for step, length_s in zip(steps, lengths, strict=True)), default=0.0)
    if not most:
        return None
    width = WIDTH / len(steps)
    tops = [HEIGHT] * len(steps)
    whole = sum(step.cores_s for step in steps)
    layers: list[BandLayer] = []
    for part in PARTS:
        shapes: list[str] = []
        for place, (step, length_s) in enumerate(zip(steps, lengths, strict=True)):
            height = HEIGHT * getattr(step, part) / length_s / most
            if height > 0:
                tops[place] -= height
                left, right = f"{place * width:.1f}", f"{(place + 1) * width:.1f}"
                shapes.append(f"M{left} {tops[place]:.2f}H{right}v{height:.2f}H{left}z")
        core_s = sum(getattr(step, part) for step in steps)
        layers.append(BandLayer(part, NAMES[part], "".join(shapes), core_s / HOUR_S, core_s / whole))
    columns = (
        StepColumn(
            round(place * width, 1),
            round(width, 1),
            step.begin_s,
            {part: getattr(step, part) / HOUR_S for part in PARTS if getattr(step, part)},
        )
        for place, step in enumerate(steps)
    )
    return BandChart(steps[0].begin_s, steps[-1].end_s, most, tuple(layers), tuple(columns))
