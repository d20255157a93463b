"""Rebalancing: the migration of a job to another agent if it pays off, by compaction or by priorities.

The module is pure. Its algorithms follow Rodríguez-Pascual et al., "Job migration in HPC clusters by means of
checkpoint/restart", The Journal of Supercomputing, 2019, sections 3.3.4 and 4.4 to 4.5. Where the released plug-in
differs in detail, they follow the plug-in. Both algorithms migrate one job at a time, and the caller uses them only
while no job waits or migrates. A waiting job makes better use of idle cores than a migration, and a second migration at
the same time would rely on cores that are no longer idle.

A node is partly used if some of its cores are used and some are not.

Each algorithm chooses a candidate, and then weighs the cost of its migration against the gain. Both are in core
seconds, so that a wide job and a whole node are comparable:

- The cost of a migration: while a job is saved and restored, its cores compute nothing, so the cost is its cores times
  the seconds that both take. Writing to the storage also delays other jobs, but this is not counted.
- The gain of compaction: all cores of the node that becomes empty, from the departure of its last job until the end of
  its agent. One job migrates every `every_s` seconds. Jobs are assumed to last until the boundary, because their ends
  are unknown. If a job ends sooner, it would have freed its part of the node anyway, and the real gain is smaller.
- The gain of migration to preferred nodes: the job's cores, from its restore there until the end of that agent. A core
  second on a preferred node is assumed to be worth as much as one that a migration loses.

Therefore no job migrates near a boundary, or if saving it takes too long. Compaction migrates a job only to an earlier
node in a fixed order, and priorities only to a node of a higher class, so no job migrates in a circle.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

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
    """The input of a decision. The jobs are sorted by age, the oldest first."""

    now_s: float
    algorithm: Algorithm
    every_s: float
    prefer: tuple[tuple[str, ...], ...]
    """Classes of nodes, the most preferred first. All other nodes come last."""
    waiting: int
    """The number of jobs that an agent could claim."""
    moving: int
    """The number of jobs that are migrating."""
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


def decide(view: RebalancingView) -> Relocation | None:
    """Return the job to migrate now, or None. The answer is None while a job waits or migrates."""
    if view.waiting or view.moving:
        return None
    # Nodes are sorted in the order in which they are filled. An agent that runs longer is filled before one that ends
    # sooner.
    view = replace(view, nodes=tuple(sorted(view.nodes, key=lambda node: (-node.end_s, node.name))))
    return _compact(view) if view.algorithm == "compaction" else _prefer(view)


# ── compaction ──


def _compact(view: RebalancingView) -> Relocation | None:
    """Return the first job of the first node that can be emptied, if emptying that node pays off."""
    stays: set[int] = set()
    while first := compaction(view, stays):
        node = next(node for node in view.nodes if node.name == first[0].node)
        steps = _emptying(view, node, stays)
        if steps:
            cost_core_s = sum(step.cpus * step.cost_s for step, _ in steps)
            left_s = node.end_s - view.now_s - view.every_s * (len(steps) - 1) - steps[-1][0].cost_s
            gain_core_s = node.cpus * max(0.0, left_s)
            if gain_core_s > cost_core_s:
                return _told(*steps[0], cost_core_s, gain_core_s, f"{node.name} can be emptied")
        stays |= {each.job for each in view.jobs if each.node == node.name}
    return None


def _emptying(view: RebalancingView, node: AgentNode, stays: set[int]) -> list[tuple[AgentJob, AgentNode]]:
    """Return the migrations that empty the node, in order, or none if the node cannot be emptied."""
    steps: list[tuple[AgentJob, AgentNode]] = []
    while any(job.node == node.name for job in view.jobs):
        step = compaction(view, stays)
        if step is None or step[0].node != node.name:
            return []
        steps.append(step)
        job, target = step
        view = replace(view, jobs=tuple(replace(j, node=target.name) if j.job == job.job else j for j in view.jobs))
    return steps


def compaction(view: RebalancingView, stays: set[int]) -> tuple[AgentJob, AgentNode] | None:
    """Return the job whose migration makes partly used nodes full or empty, and its target.

    Nodes are in the order in which they are filled. One node is emptied: the first partly used node whose used cores
    fit into the idle cores of the partly used nodes before it. Its youngest job migrates first. Its jobs are placed on
    the nodes before it by first fit, so the number of partly used nodes never grows.
    """
    free = _free(view)
    before: list[AgentNode] = []
    for node in view.nodes:
        if not 0 < free[node.name] < node.cpus:
            continue
        if node.cpus - free[node.name] <= sum(free[other.name] for other in before):
            for job in reversed(view.jobs):
                if job.node == node.name and job.is_migratable and job.job not in stays:
                    target = next((other for other in before if free[other.name] >= job.cpus), None)
                    if target is not None and _takes(view, target, job):
                        return job, target
        before.append(node)
    return None


# ── priorities ──


def _prefer(view: RebalancingView) -> Relocation | None:
    """Return the job that gains most in the highest class, if its migration pays off."""
    for job, target in priorities(view):
        cost_core_s = job.cpus * job.cost_s
        gain_core_s = job.cpus * max(0.0, target.end_s - view.now_s - job.cost_s)
        if gain_core_s > cost_core_s:
            return _told(job, target, cost_core_s, gain_core_s, f"{target.name} is preferred")
    return None


def priorities(view: RebalancingView) -> Iterator[tuple[AgentJob, AgentNode]]:
    """Yield the jobs that could migrate to nodes of a higher class, in the order in which they are tried.

    Targets are tried from the highest class down, and for each class of targets the jobs from the lowest class up.
    Among the jobs of one class, the largest that fits on a node of the target class migrates, and among equal jobs the
    first. The job is placed by first fit. Each job is tried once, so if its target lacks memory, no lower class is
    tried.
    """
    rank = {name: len(view.prefer) - at for at, names in enumerate(view.prefer) for name in names}
    here = {node.name: rank.get(node.name, 0) for node in view.nodes}
    free = _free(view)
    candidates = [job for job in view.jobs if job.is_migratable]
    for high in sorted(set(here.values()), reverse=True):
        lower = [job for job in candidates if here.get(job.node, 0) < high]
        for job in sorted(lower, key=lambda job: (here.get(job.node, 0), -job.cpus)):
            fitting = (node for node in view.nodes if here[node.name] == high and free[node.name] >= job.cpus)
            target = next(fitting, None)
            if target is None:
                continue
            candidates.remove(job)
            if _takes(view, target, job):
                yield job, target


# ── common functions ──


def _told(job: AgentJob, target: AgentNode, cost_core_s: float, gain_core_s: float, reason: str) -> Relocation:
    why = f"{reason}: that costs {cost_core_s:.0f} core seconds and gains {gain_core_s:.0f}"
    return Relocation(job.job, job.node, target.name, cost_core_s, gain_core_s, why)


def _free(view: RebalancingView) -> dict[str, int]:
    """Return the idle cores of each node."""
    free = {node.name: node.cpus for node in view.nodes}
    for job in view.jobs:
        if job.node in free:
            free[job.node] -= job.cpus
    return free


def _takes(view: RebalancingView, target: AgentNode, job: AgentJob) -> bool:
    used_mib = sum(each.memory_mib for each in view.jobs if each.node == target.name)
    return target.name not in job.misfits and used_mib + job.memory_mib <= target.memory_mib


# ── storing and replaying ──

_VIEWS = TypeAdapter(RebalancingView)
_MOVES = TypeAdapter(Relocation)


def as_input(view: RebalancingView) -> dict[str, Any]:
    """Return the view as plain JSON."""
    given: dict[str, Any] = _VIEWS.dump_python(view, mode="json")
    return given


def as_answer(move: Relocation | None) -> dict[str, Any]:
    """Return the migration as plain JSON, with a sentence for its job."""
    if move is None:
        return {"move": None, "because": {}}
    return {"move": _MOVES.dump_python(move, mode="json"), "because": {f"job {move.job}": move.why}}


def replay(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decide again on a stored view, and return the answer."""
    return as_answer(decide(_VIEWS.validate_python(given)))
