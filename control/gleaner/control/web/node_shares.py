"""The parts of each node's time, for the timeline's table. Pure.

The picture shows a slice's save as at least one point, which can represent minutes, whereas the table counts the
seconds. Slices show how a node was used while they ran, and snapshots of the cluster show its use at other times.
Slices that run at the same time share the time.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy.node_time import Use
from gleaner.control.queue.node_history import NodeSlice, NodeUses
from gleaner.control.web.timeline_chart import PARTS, letters_at

Floats = NDArray[np.float64]
LEAST_S = 1e-6
"""The minimum time that is used as a divisor."""
LOOKED_AT = tuple(use for use in Use if use.value in PARTS)


def node_shares(
    names: Sequence[str],
    looks: Sequence[NodeUses],
    slices: Iterable[NodeSlice],
    *,
    begin_s: float,
    end_s: float,
    look_s: float,
    now_s: float,
) -> dict[str, Mapping[str, float]]:
    """Return the parts of the known time of each of these nodes, which add up to 1.

    A node without data has no parts. A snapshot is valid for `look_s` seconds. The future is unknown.
    """
    until_s = max(begin_s, min(end_s, now_s))
    place_of = {name: place for place, name in enumerate(names)}
    mine = [each for each in slices if each.node in place_of]
    on = np.array([place_of[each.node] for each in mine], np.intp)
    claimed_s, ended_s = _column(each.claimed_s for each in mine), _column(_ended_s(each, now_s) for each in mine)
    begins_s, ends_s = (np.clip(at_s, begin_s, until_s) - begin_s for at_s in (claimed_s, ended_s))
    edges, sums = _merged(on, begins_s, ends_s, span_s=until_s - begin_s + 1.0)
    rows = np.arange(len(names))[:, None] * (until_s - begin_s + 1.0)
    from_s = np.clip(_column(look.begin_s for look in looks), begin_s, until_s) - begin_s
    to_s = np.clip(_column(look.begin_s + look_s for look in looks), begin_s, until_s) - begin_s
    alone_s = (to_s - from_s) - (np.interp(rows + to_s, edges, sums) - np.interp(rows + from_s, edges, sums))
    letters = letters_at(place_of, looks, [(place, place + 1) for place in range(len(looks))], len(looks))
    seconds = {PARTS[use]: np.where(letters == ord(use.value), alone_s, 0.0).sum(axis=1) for use in LOOKED_AT}
    spent = _spent(mine, claimed_s, ended_s, begin_s=begin_s, until_s=until_s)
    spent = {part: np.bincount(on, each, len(names)).astype(np.float64) for part, each in spent.items()}
    all_s = sum(spent.values(), np.zeros(len(names)))
    busy_s = np.interp(rows[:, 0] + (until_s - begin_s), edges, sums) - np.interp(rows[:, 0], edges, sums)
    for part, each in spent.items():
        seconds[part] = seconds.get(part, 0.0) + busy_s * each / np.where(all_s > 0, all_s, 1.0)
    known_s = sum(seconds.values(), np.zeros(len(names)))
    return {
        name: {part: float(each[place] / known_s[place]) for part, each in seconds.items() if each[place] > 0}
        for name, place in place_of.items()
    }


def _ended_s(each: NodeSlice, now_s: float) -> float:
    return max(each.claimed_s, now_s if each.ended_s is None else each.ended_s)


def _column(numbers: Iterable[float]) -> Floats:
    return np.fromiter(numbers, np.float64)


def _spent(
    slices: Sequence[NodeSlice], claimed_s: Floats, ended_s: Floats, *, begin_s: float, until_s: float
) -> dict[str, Floats]:
    """Return the seconds of each slice by part, between the two instants.

    As in `policy.node_time`, the times that an agent reports might exceed its slice, and are then scaled down.
    """

    def within(from_s: Floats, to_s: Floats) -> Floats:
        return np.clip(to_s, begin_s, until_s) - np.clip(from_s, begin_s, until_s)

    restore_s = _column(max(0.0, each.restore_s) for each in slices)
    lost_s = _column(max(0.0, each.lost_s) for each in slices)
    save_s = _column(0.0 if each.ended_s is None else max(0.0, each.save_s) for each in slices)
    reported_s = restore_s + lost_s + save_s
    scale = np.minimum(1.0, (ended_s - claimed_s) / np.where(reported_s > LEAST_S, reported_s, 1.0))
    restored_s = claimed_s + restore_s * scale
    computed_s = np.clip(ended_s - save_s * scale, restored_s, np.maximum(restored_s, ended_s))
    kept_s = np.clip(computed_s - lost_s * scale, restored_s, computed_s)  # in this order, whatever the rounding
    return {
        PARTS[Use.HARVESTED]: within(restored_s, kept_s),
        "restoring": within(claimed_s, restored_s),
        "lost": within(kept_s, computed_s),
        "saving": within(computed_s, ended_s),
    }


def _merged(on: NDArray[np.intp], begins_s: Floats, ends_s: Floats, *, span_s: float) -> tuple[Floats, Floats]:
    """Return the edges of the times in which any slice is on a node, and the sum of these times up to each edge.

    All nodes are on one axis, one after the other, `span_s` apart.
    """
    order = np.lexsort((begins_s, on))
    order = order[ends_s[order] > begins_s[order]]
    if not len(order):
        return np.zeros(1), np.zeros(1)
    from_s, to_s = (on * span_s + begins_s)[order], np.maximum.accumulate((on * span_s + ends_s)[order])
    firsts = np.flatnonzero(np.append(True, from_s[1:] > to_s[:-1]))
    from_s, to_s = from_s[firsts], to_s[np.append(firsts[1:], len(order)) - 1]
    sums = np.cumsum(to_s - from_s)
    return np.stack((from_s, to_s), 1).ravel(), np.stack((sums - (to_s - from_s), sums), 1).ravel()
