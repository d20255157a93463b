"""The simulated machine: nodes with cores, in classes, and what a job is given of them."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gleaner.control.simulation.workload import Counts


class Allocation(StrEnum):
    """What a job is given."""

    NODES = "nodes"
    """Whole nodes, as many as its processors need."""
    PROCESSORS = "processors"
    """Processors of one pool, wherever they are: what most studies of backfilling assume."""
    CORES = "cores"
    """Cores of nodes that other jobs may share, first fit."""


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that are alike."""

    nodes: int
    cores: int = 1
    name: str = "all"
    speed: float = 1.0
    """A job of `run_s` seconds takes `run_s / speed` here; of several classes the slowest it uses counts."""
    priority: int = 0
    """Higher is filled first: better hardware, or a scarce resource that migration keeps in use."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes in classes, in the order in which they are numbered."""

    classes: tuple[NodeClass, ...]
    allocation: Allocation = Allocation.NODES
    prefers_one: bool = False
    """Whether a job goes to the first node that has room for all of it, and only if none has to the first free cores,
    wherever they are, as Slurm gives them unless told otherwise. Where nodes are shared."""

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.classes)

    @property
    def cores(self) -> int:
        return sum(kind.nodes * kind.cores for kind in self.classes)

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes have as many cores and one speed, so that counting them is enough."""
        return len({(kind.cores, kind.speed) for kind in self.classes}) == 1

    @property
    def is_counted(self) -> bool:
        """Whether it does not matter which nodes a job has: they are alike, given whole or as a pool."""
        has_levels = len({kind.priority for kind in self.classes}) > 1
        is_pool = self.allocation is Allocation.PROCESSORS
        return self.is_uniform and (is_pool or (self.allocation is Allocation.NODES and not has_levels))

    @property
    def units(self) -> int:
        """How many of what jobs are given there are: nodes, or processors."""
        return self.nodes if self.allocation is Allocation.NODES else self.cores

    @property
    def units_of_node(self) -> int:
        """How many units one agent takes: it has a node for itself. Only where the machine is uniform."""
        return 1 if self.allocation is Allocation.NODES else self.classes[0].cores

    def units_asked(self, processors: Counts) -> Counts:
        """What jobs of so many processors are given, in units. Only where the machine is uniform."""
        if self.allocation is not Allocation.NODES:
            return processors
        return np.asarray(-(-processors // self.classes[0].cores), dtype=np.int64)


def of_processors(processors: int) -> Machine:
    """A pool of processors, each of which is a node to an agent."""
    return Machine((NodeClass(processors),), Allocation.PROCESSORS)


def of_nodes(nodes: int, cores: int = 1) -> Machine:
    """Whole nodes, all alike."""
    return Machine((NodeClass(nodes, cores),))
