"""The slices of one job as a picture, with a bar for each slice, divided into restoring, computing and saving. Pure."""

from dataclasses import dataclass

from gleaner.control.models.jobs import AttemptRow, JobDetail

WIDTH = 1000.0
"""The size of the picture, in its own units."""
BARS_AT_MOST = 200
"""The maximum number of slices that are drawn. If there are more, the latest are drawn."""


@dataclass(frozen=True, slots=True)
class SlicePart:
    """One part of a slice: its activity, and its position in the picture."""

    what: str
    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One slice."""

    attempt: int
    node: str
    parts: tuple[SlicePart, ...]


@dataclass(frozen=True, slots=True)
class SliceChart:
    """All slices that are drawn, between two instants."""

    begin_s: float
    end_s: float
    bars: tuple[Bar, ...]


def slice_chart(detail: JobDetail, *, now_s: float) -> SliceChart | None:
    """Return the picture, or None for a job that has never been claimed."""
    slices = detail.attempts[-BARS_AT_MOST:]
    if not slices:
        return None
    begin_s = min(slice_.claimed_s for slice_ in slices)
    ends = [slice_.ended_s if slice_.ended_s is not None else now_s for slice_ in slices]
    end_s = max(begin_s + 1.0, *ends)
    return SliceChart(begin_s, end_s, tuple(_bar(slice_, begin_s, end_s, now_s) for slice_ in slices))


def _bar(slice_: AttemptRow, begin_s: float, end_s: float, now_s: float) -> Bar:
    until_s = slice_.ended_s if slice_.ended_s is not None else now_s
    lasted_s = max(0.0, until_s - slice_.claimed_s)
    spent = {"restore": slice_.start_s + slice_.restore_s, "compute": slice_.compute_s, "save": slice_.save_s}
    if slice_.ended_s is None:
        spent["compute"] = lasted_s - spent["restore"] - spent["save"]
    rest_s = max(0.0, lasted_s - sum(spent.values()))  # its use has not been reported
    per_s = WIDTH / (end_s - begin_s)
    at_s, left_s, parts = slice_.claimed_s - begin_s, lasted_s, list[SlicePart]()
    for what, seconds in (("other", rest_s), *spent.items()):
        shown_s = min(max(0.0, seconds), left_s)  # a node's clock might be wrong
        left_s -= shown_s
        if shown_s > 0:
            parts.append(SlicePart(what, round(at_s * per_s, 2), round(max(shown_s * per_s, 0.5), 2), shown_s))
        at_s += shown_s
    return Bar(slice_.attempt, slice_.node, tuple(parts))
