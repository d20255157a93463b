"""Node time: the use of nodes in steps of time, from snapshots of the cluster and the ends of attempts.

The module is pure. A snapshot shows the use of each node. Agents take whole nodes, so a node that regular jobs use in
part counts as fully theirs. An ended attempt shows how the time of its cores was spent. A band combines snapshots and
attempts. The part of the agents' time that no attempt accounts for is unused.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise

DAY_S = 24 * 3600
_ROUNDING = 1e-6
"""A smaller remainder of core seconds is a rounding error."""


class Use(StrEnum):
    """The use of a node in one snapshot. The values are the letters with which snapshots are stored."""

    REGULAR = "r"
    HARVESTED = "h"
    """An agent is there and has jobs."""
    AGENT = "a"
    """An agent is there and has no job."""
    IDLE = "i"
    UNUSABLE = "u"
    UNKNOWN = "-"
    """The use is unknown, or the node did not exist then."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A step length of the stored history, and the time for which these steps are kept, or None for the value in the
    settings."""

    step_s: int
    keep_days: int | None


RESOLUTIONS = (Resolution(60, 2), Resolution(600, 16), Resolution(3600, None))
"""The resolutions, the finest first. Each step is a multiple of the previous one. A day has 1,440 rows of the first
resolution and 24 of the last."""


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The use of nodes in one step, in node seconds (`node_s`) and core seconds (`core_s`)."""

    seen_s: float = 0.0
    """The part of the step in which control knew the nodes' use."""
    regular_node_s: float = 0.0
    regular_core_s: float = 0.0
    agent_node_s: float = 0.0
    agent_core_s: float = 0.0
    idle_node_s: float = 0.0
    idle_core_s: float = 0.0
    unusable_node_s: float = 0.0
    unusable_core_s: float = 0.0
    harvested_core_s: float = 0.0
    """Computing time that is kept in a checkpoint or a result. Slices that end with a failure of the program itself are
    included."""
    start_core_s: float = 0.0
    """The time to fetch inputs and images, and to start containers of new jobs."""
    restore_core_s: float = 0.0
    save_core_s: float = 0.0
    lost_core_s: float = 0.0
    """Computing time that is in no checkpoint and no result."""

    def __add__(self, other: "NodeTime") -> "NodeTime":
        return NodeTime(*(getattr(self, name) + getattr(other, name) for name in FIELDS))


FIELDS = tuple(field.name for field in fields(NodeTime))
_COLUMNS = {
    Use.REGULAR: "regular",
    Use.HARVESTED: "agent",
    Use.AGENT: "agent",
    Use.IDLE: "idle",
    Use.UNUSABLE: "unusable",
}


@dataclass(frozen=True, slots=True)
class AttemptTime:
    """The time of an attempt that has ended, in seconds, and the cores that it had."""

    claimed_s: float
    ended_s: float
    cores: int
    start_s: float
    restore_s: float
    harvested_s: float
    lost_s: float
    save_s: float


def shares_of_agents(time: NodeTime) -> dict[str, float]:
    """Return the node seconds of agents, by the use of their cores. A node counts in proportion to its cores.

    >>> shares_of_agents(NodeTime(agent_node_s=10, agent_core_s=80, harvested_core_s=60, save_core_s=8))["harvested"]
    7.5
    """
    kinds = {"harvested": time.harvested_core_s, "saving": time.save_core_s, "restoring": time.restore_core_s,
             "starting": time.start_core_s, "lost": time.lost_core_s}  # fmt: skip
    scale = time.agent_node_s / max(time.agent_core_s, sum(kinds.values()), 1.0)
    shares = {kind: core_s * scale for kind, core_s in kinds.items()}
    return shares | {"unused": max(0.0, time.agent_node_s - sum(shares.values()))}


def of_look(nodes: Iterable[tuple[Use, int]], *, begin_s: float, end_s: float, step_s: int) -> dict[int, NodeTime]:
    """Return the time of nodes that had these uses and cores from `begin_s` to `end_s`, keyed by the beginning of each
    step.

    >>> of_look([(Use.IDLE, 8)], begin_s=50, end_s=70, step_s=60)[60].idle_core_s
    80
    """
    counted: dict[str, list[int]] = {}
    for use, cores in nodes:
        if use in _COLUMNS:
            found = counted.setdefault(_COLUMNS[use], [0, 0])
            found[0] += 1
            found[1] += cores
    made: dict[int, NodeTime] = {}
    for begin, part_s in _steps(begin_s, end_s, step_s):
        amounts = {f"{name}_node_s": nodes * part_s for name, (nodes, _cores) in counted.items()}
        amounts |= {f"{name}_core_s": cores * part_s for name, (_nodes, cores) in counted.items()}
        made[begin] = NodeTime(seen_s=part_s, **amounts)
    return made


def of_attempts(attempts: Iterable[AttemptTime], *, step_s: int) -> dict[int, NodeTime]:
    """Return the core seconds of attempts, keyed by the beginning of each step.

    An attempt first starts or restores, then computes, and saves at its end. If the times that its agent reports exceed
    the attempt's duration by control's clock, they are scaled down, so that the sum stays correct.
    """
    sums = tuple(_Spread(step_s) for _ in range(5))
    for attempt in attempts:
        spent = (attempt.start_s, attempt.restore_s, attempt.harvested_s, attempt.lost_s, attempt.save_s)
        lasted_s, all_s = max(0.0, attempt.ended_s - attempt.claimed_s), sum(spent)
        scale = min(1.0, lasted_s / all_s) if all_s else 1.0
        at_s = attempt.claimed_s
        for place, (seconds, spread) in enumerate(zip(spent, sums, strict=True)):
            if seconds > 0:
                if place == len(spent) - 1:
                    at_s = attempt.ended_s - seconds * scale
                spread.add(seconds * attempt.cores, begin_s=at_s, end_s=at_s + seconds * scale)
                at_s += seconds * scale
    start, restore, harvested, lost, save = (spread.by_step() for spread in sums)
    return {
        begin: NodeTime(
            start_core_s=start.get(begin, 0.0),
            restore_core_s=restore.get(begin, 0.0),
            harvested_core_s=harvested.get(begin, 0.0),
            lost_core_s=lost.get(begin, 0.0),
            save_core_s=save.get(begin, 0.0),
        )
        for begin in {*start, *restore, *harvested, *lost, *save}
    }


class _Spread:
    """The sums per step of amounts that are each spread evenly over a period.

    Ten thousand slices of an hour or more can end at the same instant. Adding an amount therefore takes the same time
    for any number of steps, because only its first and last step and the limits of the steps between them are stored.
    """

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self._edges: dict[int, float] = {}
        self._changes: dict[int, float] = {}

    def add(self, amount: float, *, begin_s: float, end_s: float) -> None:
        """Spread this amount over this period."""
        step_s, edges, changes = self._step_s, self._edges, self._changes
        first, last = math.floor(begin_s / step_s), math.floor(end_s / step_s)
        if first == last:
            edges[first] = edges.get(first, 0.0) + amount
            return
        per_s = amount / (end_s - begin_s)
        edges[first] = edges.get(first, 0.0) + per_s * ((first + 1) * step_s - begin_s)
        edges[last] = edges.get(last, 0.0) + per_s * (end_s - last * step_s)
        changes[first + 1] = changes.get(first + 1, 0.0) + per_s * step_s
        changes[last] = changes.get(last, 0.0) - per_s * step_s

    def by_step(self) -> dict[int, float]:
        """Return the sum in each step, keyed by the step's beginning."""
        found, level, places = dict(self._edges), 0.0, sorted(self._changes)
        for place, after in pairwise(places):
            level += self._changes[place]
            if level > _ROUNDING:
                for each in range(place, after):
                    found[each] = found.get(each, 0.0) + level
        return {place * self._step_s: amount for place, amount in found.items()}


def _steps(begin_s: float, end_s: float, step_s: int) -> Iterable[tuple[int, float]]:
    """Yield the beginning of each step between two instants, and the seconds between them that belong to it.

    There is at least one step.
    """
    first, last = math.floor(begin_s / step_s), math.floor(end_s / step_s)
    for number in range(first, last + 1):
        begin = number * step_s
        part_s = min(end_s, begin + step_s) - max(begin_s, begin)
        if part_s > 0 or number == first == last:
            yield begin, max(0.0, part_s)


@dataclass(frozen=True, slots=True)
class BandStep:
    """One step of a band. All values are core seconds."""

    begin_s: float
    end_s: float
    regular: float
    harvested: float
    saving: float
    restoring: float
    """The cores restored jobs or started new ones."""
    lost: float
    unused: float
    """The cores belonged to an agent, and no ended attempt accounts for them."""
    idle: float
    unusable: float

    @property
    def cores_s(self) -> float:
        """Return all known core seconds of this step."""
        return math.fsum(getattr(self, part) for part in PARTS)


PARTS = ("regular", "harvested", "saving", "restoring", "lost", "unused", "idle", "unusable")
"""The parts of a band, from the bottom."""


def band(times: Mapping[int, NodeTime], *, begin_s: float, end_s: float, step_s: int) -> tuple[BandStep, ...]:
    """Return a band with steps of this length. `times` can have steps of any shorter length.

    Times outside the band are left out.
    """
    first = math.floor(begin_s / step_s)
    sums = [NodeTime()] * max(0, math.ceil(end_s / step_s) - first)
    for begin, time in times.items():
        place = begin // step_s - first
        if 0 <= place < len(sums):
            sums[place] += time
    return tuple(
        band_step(time, begin_s=(first + place) * step_s, end_s=(first + place + 1) * step_s)
        for place, time in enumerate(sums)
    )


def band_step(time: NodeTime, *, begin_s: float, end_s: float) -> BandStep:
    """Return the step of a band with this node time."""
    begun = time.start_core_s + time.restore_core_s
    used = time.harvested_core_s + time.save_core_s + begun + time.lost_core_s
    return BandStep(
        begin_s,
        end_s,
        time.regular_core_s,
        time.harvested_core_s,
        time.save_core_s,
        begun,
        time.lost_core_s,
        max(0.0, time.agent_core_s - used),
        time.idle_core_s,
        time.unusable_core_s,
    )


def finest(*, begin_s: float, now_s: float, steps_at_most: int, end_s: float, keep_days: int) -> int:
    """Return the shortest step that is still stored from `begin_s` on and gives at most `steps_at_most` steps."""
    for each in RESOLUTIONS[:-1]:
        kept_s = (each.keep_days or keep_days) * DAY_S
        if now_s - begin_s <= kept_s and (end_s - begin_s) / each.step_s <= steps_at_most:
            return each.step_s
    return RESOLUTIONS[-1].step_s
