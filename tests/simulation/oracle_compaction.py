"""Migration that can be read at a glance: what the array functions must agree with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(eq=False)
class Node:
    cores: int
    priority: int = 0
    used: int = 0

    @property
    def idle(self) -> int:
        return self.cores - self.used

    @property
    def is_partly_used(self) -> bool:
        return 0 < self.used < self.cores


@dataclass(eq=False)
class Job:
    on: dict[Node, int]
    migratable: bool = True

    @property
    def cores(self) -> int:
        return sum(self.on.values())


SomeNode = TypeVar("SomeNode", bound=Node)


def goes_to(job: Job, targets: Sequence[SomeNode], *, spreads: bool) -> dict[SomeNode, int]:
    """Return the cores that the job takes of each target, first fit; nothing if it does not fit."""
    if not spreads:
        return next(({node: job.cores} for node in targets if node.idle >= job.cores), {})
    if sum(node.idle for node in targets) < job.cores:
        return {}
    taken: dict[SomeNode, int] = {}
    for node in targets:
        taken[node] = min(node.idle, job.cores - sum(taken.values()))
    return {node: cores for node, cores in taken.items() if cores}


def compaction(
    nodes: Sequence[Node], jobs: Sequence[Job], *, spreads: bool = True
) -> tuple[Job, dict[Node, int]] | None:
    partly_used = [node for node in nodes if node.is_partly_used]
    for place, node in enumerate(partly_used):
        before = partly_used[:place]
        if node.used > sum(other.idle for other in before):
            continue
        for job in reversed(jobs):
            if job.migratable and list(job.on) == [node] and (taken := goes_to(job, before, spreads=spreads)):
                return job, taken
    return None


def priorities(
    nodes: Sequence[Node], jobs: Sequence[Job], *, spreads: bool = True
) -> tuple[Job, dict[Node, int]] | None:
    levels = sorted({node.priority for node in nodes})
    for high in reversed(levels):
        targets = [node for node in nodes if node.priority == high]
        for low in levels[: levels.index(high)]:
            lower = [job for job in jobs if job.migratable and max(node.priority for node in job.on) == low]
            for job in sorted(lower, key=lambda one: -one.cores):
                if taken := goes_to(job, targets, spreads=spreads):
                    return job, taken
    return None
