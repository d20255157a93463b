"""The picture of the nodes' use over time. Pure, except for drawing the picture."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COLOURS = {
    "regular": "#4c6a92",
    "computing": "#2a9d5c",
    "restoring": "#e9b44c",
    "saving": "#d1495b",
    "idle": "#eeeeee",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The use of a node: its kind, its time from `start_s` to `end_s` (seconds since the epoch), and the job that used
    it."""

    node: str
    kind: str
    start_s: float
    end_s: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class Loads:
    """Shares of the node time in the given period. Only computing counts as load, not saving and restoring."""

    without: float
    """The share that regular jobs used."""
    effective: float
    """The share that regular jobs used and in which our jobs computed."""
    operations: float
    """The share that was spent saving and restoring."""


def spans_of_attempts(jobs: Iterable[Mapping[str, object]]) -> list[Span]:
    """Return the parts of every slice, from the output of `glean show --json` for each job."""
    spans: list[Span] = []
    for job in jobs:
        for attempt in job["attempts"]:  # type: ignore[attr-defined]
            if attempt["started_s"] is None:
                continue
            name = f"{job['job']['name']} {job['job']['index']}"  # type: ignore[index]
            at_s = float(attempt["started_s"])
            for kind, length_s in (
                ("restoring", attempt["restore_s"]),
                ("computing", attempt["compute_s"]),
                ("saving", attempt["save_s"]),
            ):
                if length_s > 0:
                    spans.append(Span(attempt["node"], kind, at_s, at_s + length_s, name))
                at_s += length_s
    return spans


def loads(spans: Sequence[Span], nodes: Sequence[str], *, start_s: float, end_s: float) -> Loads:
    """Return the cluster's load from `start_s` to `end_s`, by whole nodes.

    A node computes while at least one of our jobs on it computes, because Slurm allocates whole nodes.

    >>> loads([Span("a", "regular", 0, 5), Span("a", "computing", 5, 9)], ["a"], start_s=0, end_s=10)
    Loads(without=0.5, effective=0.9, operations=0.0)
    """
    total_s = (end_s - start_s) * len(nodes)
    regular_s = computing_s = operating_s = 0.0
    for node in nodes:
        mine = [span for span in spans if span.node == node]
        cuts = sorted({start_s, end_s, *(s.start_s for s in mine), *(s.end_s for s in mine)})
        cuts = [cut for cut in cuts if start_s <= cut <= end_s]
        for left, right in pairwise(cuts):
            kinds = {span.kind for span in mine if span.start_s <= left and span.end_s >= right}
            if "regular" in kinds:
                regular_s += right - left
            elif "computing" in kinds:
                computing_s += right - left
            elif kinds:
                operating_s += right - left
    return Loads(regular_s / total_s, (regular_s + computing_s) / total_s, operating_s / total_s)


def draw(
    spans: Sequence[Span],
    nodes: Sequence[str],
    boundaries_s: Sequence[float],
    *,
    start_s: float,
    end_s: float,
    lanes: int,
    to: Path,
) -> None:
    """Write the picture. Each node is a band with `lanes` rows for our jobs, and regular jobs fill the whole band."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    figure, axes = plt.subplots(figsize=(12, 1.2 + 1.35 * len(nodes)), dpi=110)
    for row, node in enumerate(nodes):
        top = len(nodes) - row
        axes.add_patch(Rectangle((0, top - 0.92), end_s - start_s, 0.84, color=COLOURS["idle"], linewidth=0))
        mine = sorted((s for s in spans if s.node == node), key=lambda s: s.start_s)
        for span, at_level, levels in _stacked([span for span in mine if span.kind == "regular"]):
            at, width, height = span.start_s - start_s, span.end_s - span.start_s, 0.84 / levels
            bottom = top - 0.92 + height * at_level
            axes.add_patch(
                Rectangle((at, bottom), width, height, facecolor=COLOURS["regular"], edgecolor="white", linewidth=0.5)
            )
            middle = bottom + height / 2
            axes.text(at + width / 2, middle, span.what, ha="center", va="center", color="white", fontsize=9)
        for span, lane in _in_lanes([s for s in mine if s.kind != "regular"], lanes):
            height = 0.84 / lanes
            bottom = top - 0.08 - height * (lane + 1)
            axes.add_patch(
                Rectangle(
                    (span.start_s - start_s, bottom + height * 0.06),
                    span.end_s - span.start_s,
                    height * 0.88,
                    color=COLOURS[span.kind],
                    linewidth=0,
                )
            )
            if span.kind == "computing" and span.end_s - span.start_s > 15:
                axes.text(
                    (span.start_s + span.end_s) / 2 - start_s, bottom + height / 2, span.what,
                    ha="center", va="center", color="white", fontsize=5.5,
                )  # fmt: skip
    for boundary in boundaries_s:
        if start_s <= boundary <= end_s:
            axes.axvline(boundary - start_s, color="black", linestyle=":", linewidth=1)
    axes.set_xlim(0, end_s - start_s)
    axes.set_ylim(0, len(nodes) + 0.05)
    axes.set_yticks([len(nodes) - row - 0.5 for row in range(len(nodes))], list(nodes))
    axes.set_xlabel("seconds since the campaign was submitted (dotted: the shared ends of the rounds)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items()],
        ncols=len(COLOURS), loc="upper center", bbox_to_anchor=(0.5, 1.16), frameon=False,
    )  # fmt: skip
    figure.tight_layout()
    figure.savefig(to)
    plt.close(figure)


def _stacked(spans: Sequence[Span]) -> list[tuple[Span, int, int]]:
    """Return each span with its level and the number of levels, so that regular jobs that share a node are stacked.

    >>> one, two, later = Span("a", "regular", 0, 5), Span("a", "regular", 3, 8), Span("a", "regular", 8, 9)
    >>> [(at, of) for _, at, of in _stacked([one, two, later])]
    [(0, 2), (1, 2), (0, 1)]
    """
    placed: list[tuple[Span, int, int]] = []
    for span in spans:
        beside = [other for other in spans if other.start_s < span.end_s and span.start_s < other.end_s]
        taken = {level for other, level, _ in placed if other in beside}
        placed.append((span, next(level for level in range(len(beside)) if level not in taken), len(beside)))
    return placed


def _in_lanes(spans: Sequence[Span], lanes: int) -> list[tuple[Span, int]]:
    """Return each span with its lane. All parts of a slice (restoring, computing, saving) have the same lane.

    >>> parts = [Span("a", "restoring", 0, 0.2, "p 1"), Span("a", "computing", 0.2, 9, "p 1")]
    >>> [lane for _, lane in _in_lanes([*parts, Span("a", "computing", 0.1, 9, "p 2")], 2)]
    [0, 0, 1]
    """
    slices: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (s.what, s.start_s)):
        if slices and slices[-1][-1].what == span.what and span.start_s - slices[-1][-1].end_s <= 1.0:
            slices[-1].append(span)
        else:
            slices.append([span])
    placed: list[tuple[Span, int]] = []
    free_at_s = [float("-inf")] * lanes
    for parts in sorted(slices, key=lambda parts: parts[0].start_s):
        lane = next((i for i in range(lanes) if free_at_s[i] <= parts[0].start_s + 0.5), lanes - 1)
        free_at_s[lane] = parts[-1].end_s
        placed += [(part, lane) for part in parts]
    return placed
