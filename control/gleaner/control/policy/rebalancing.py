"""Rebalancing: the migration of a job to another agent where it pays, with the cores of `policy.compaction`. Pure.

The cores choose a candidate; this module weighs its cost and its gain. Both are in core seconds, so that a wide job
and a whole node compare:

- The cost of a migration: while a job is saved and restored its cores compute nothing, so the cost is its cores times
  the seconds that both take. Writing to the storage delays others too; that is not counted.
- The gain of compaction: all cores of the node that gets empty, from the departure of its last job until the end of its
  agent. One job migrates every `every_s`. Jobs are assumed to last until the boundary, since their ends are unknown. A
  job that ends sooner would have freed its part of the node by itself, and the gain was less.
- The gain of migration to preferred nodes: the job's cores, from its restore there until the end of that agent. A core
  second on a preferred node is assumed to be worth one that is lost by migrating.

So no job migrates near a boundary, or if saving it takes too long. Compaction migrates a job to an earlier node in an
order that does not change, and priorities migrate a job to a higher priority. So no job migrates in a circle.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from gleaner.control.policy import compaction
from gleaner.control.policy.subjects import job_subject

POLICY = "moving"
Algorithm = Literal["compaction", "priorities"]


@dataclass(frozen=True, slots=True)
class AgentNode:
    """A node with an agent that runs until `end_s`."""

    name: str
    cpus: int
    memory_mib: int
    end_s: float


@dataclass(frozen=True, slots=True)
class AgentJob:
    """A job on one of these nodes. `cost_s` is the time to save and restore the job."""

    job: int
    node: str
    cpus: int
    memory_mib: int
    is_migratable: bool
    cost_s: float
    misfits: tuple[str, ...] = ()
    """The nodes that cannot restore the job."""


@dataclass(frozen=True, slots=True)
class RebalancingView:
    """The input of a decision. Jobs are in the order of their age, the oldest first."""

    now_s: float
    algorithm: Algorithm
    every_s: float
    prefer: tuple[tuple[str, ...], ...]
    """Classes of nodes, the most preferred first; all others come last."""
    waiting: int
    """Jobs that an agent could claim."""
    moving: int
    """Jobs that are migrating."""
    nodes: tuple[AgentNode, ...]
    jobs: tuple[AgentJob, ...]


@dataclass(frozen=True, slots=True)
class Relocation:
    """One job to migrate. For compaction, cost and gain are those of emptying the whole node."""

    job: int
    from_node: str
    to_node: str
    cost_core_s: float
    gain_core_s: float
    why: str


def pays(*, cost_core_s: float, gain_core_s: float) -> bool:
    """Return True if a migration gains more than it costs; the module's docstring defines both.

    >>> pays(cost_core_s=120, gain_core_s=119), pays(cost_core_s=120, gain_core_s=121)
    (False, True)
    """
    return gain_core_s > cost_core_s


def decide(view: RebalancingView) -> Relocation | None:
    """Return the job to migrate now, or None. The answer is None while a job waits or migrates."""
    if view.waiting or view.moving:
        return None
    # What fills up first comes first, and an agent that goes on longer is filled before one that ends.
    view = replace(view, nodes=tuple(sorted(view.nodes, key=lambda node: (-node.end_s, node.name))))
    return _compact(view) if view.algorithm == "compaction" else _prefer(view)


# ── compaction ──


def _compact(view: RebalancingView) -> Relocation | None:
    """Return the first job of the first node that can be emptied, if emptying that node pays."""
    stays: set[int] = set()
    while True:
        first = _one_move(view, stays)
        if first is None:
            return None
        job, _ = first
        steps = _emptying(view, job.node, stays)
        if steps:
            cost_core_s = sum(step.cpus * step.cost_s for step, _ in steps)
            node = next(node for node in view.nodes if node.name == job.node)
            left_s = node.end_s - view.now_s - view.every_s * (len(steps) - 1) - steps[-1][0].cost_s
            gain_core_s = node.cpus * max(0.0, left_s)
            if pays(cost_core_s=cost_core_s, gain_core_s=gain_core_s):
                return _told(*steps[0], cost_core_s, gain_core_s, f"{job.node} can be emptied")
        stays |= {each.job for each in view.jobs if each.node == job.node}


def _emptying(view: RebalancingView, node: str, stays: set[int]) -> list[tuple[AgentJob, str]]:
    """Return the migrations that empty the node, in order; empty if the node cannot be emptied."""
    steps: list[tuple[AgentJob, str]] = []
    while any(job.node == node for job in view.jobs):
        step = _one_move(view, stays)
        if step is None or step[0].node != node:
            return []
        steps.append(step)
        job, target = step
        view = replace(view, jobs=tuple(replace(j, node=target) if j.job == job.job else j for j in view.jobs))
    return steps


def _one_move(view: RebalancingView, stays: set[int]) -> tuple[AgentJob, str] | None:
    """Return the job that the core chooses and its target. The target has the memory and can restore the job."""
    place = {node.name: at for at, node in enumerate(view.nodes)}
    of_job = _counts([place.get(job.node, -1) for job in view.jobs])
    cpus = _counts([job.cpus for job in view.jobs])
    offers = _offers(
        view,
        stays,
        lambda migratable: compaction.compaction(_used(view), _total(view), of_job, cpus, migratable, False),
    )
    return next(((job, target.name) for job, target in offers), None)


# ── priorities ──


def _prefer(view: RebalancingView) -> Relocation | None:
    """Return the job that gains most of the highest class, as the core chooses it, if the migration pays."""
    rank = {name: len(view.prefer) - at for at, names in enumerate(view.prefer) for name in names}
    of_node = {node.name: rank.get(node.name, 0) for node in view.nodes}
    classes = _counts([of_node[node.name] for node in view.nodes])
    of_job = _counts([of_node.get(job.node, 0) for job in view.jobs])
    cpus = _counts([job.cpus for job in view.jobs])
    offers = _offers(
        view,
        set(),
        lambda migratable: compaction.priorities(_used(view), _total(view), classes, of_job, cpus, migratable, False),
    )
    for job, target in offers:
        cost_core_s = job.cpus * job.cost_s
        gain_core_s = job.cpus * max(0.0, target.end_s - view.now_s - job.cost_s)
        if pays(cost_core_s=cost_core_s, gain_core_s=gain_core_s):
            return _told(job, target.name, cost_core_s, gain_core_s, f"{target.name} is preferred")
    return None


# ── what both need ──


def _offers(
    view: RebalancingView, stays: set[int], chosen: Callable[[NDArray[np.bool_]], tuple[int, NDArray[np.int64]]]
) -> Iterator[tuple[AgentJob, AgentNode]]:
    """Yield the migratable jobs in the order in which a core chooses them, each with a target that can take the job."""
    stays = set(stays)
    while True:
        at, taken = chosen(np.array([job.is_migratable and job.job not in stays for job in view.jobs], np.bool_))
        if at < 0:
            return
        job, target = view.jobs[int(at)], view.nodes[int(taken.argmax())]
        stays.add(job.job)
        if _takes(view, target, job):
            yield job, target


def _told(job: AgentJob, target: str, cost_core_s: float, gain_core_s: float, reason: str) -> Relocation:
    why = f"{reason}: that costs {cost_core_s:.0f} core seconds and gains {gain_core_s:.0f}"
    return Relocation(job.job, job.node, target, cost_core_s, gain_core_s, why)


def _total(view: RebalancingView) -> NDArray[np.int64]:
    return _counts([node.cpus for node in view.nodes])


def _used(view: RebalancingView) -> NDArray[np.int64]:
    cpus = dict.fromkeys((node.name for node in view.nodes), 0)
    for job in view.jobs:
        if job.node in cpus:
            cpus[job.node] += job.cpus
    return _counts(list(cpus.values()))


def _takes(view: RebalancingView, target: AgentNode, job: AgentJob) -> bool:
    used_mib = sum(each.memory_mib for each in view.jobs if each.node == target.name)
    return target.name not in job.misfits and used_mib + job.memory_mib <= target.memory_mib


def _counts(numbers: Sequence[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


# ── stored and replayed ──

_VIEWS = TypeAdapter(RebalancingView)
_MOVES = TypeAdapter(Relocation)


def as_given(view: RebalancingView) -> dict[str, Any]:
    """Return the view as plain JSON."""
    given: dict[str, Any] = _VIEWS.dump_python(view, mode="json")
    return given


def as_answer(move: Relocation | None) -> dict[str, Any]:
    """Return the migration as plain JSON, with a sentence for its job."""
    if move is None:
        return {"move": None, "because": {}}
    return {"move": _MOVES.dump_python(move, mode="json"), "because": {job_subject(move.job): move.why}}


def replay(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a stored view, decided again."""
    return as_answer(decide(_VIEWS.validate_python(given)))
