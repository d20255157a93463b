"""The simulated machine: nodes with cores, in classes, and the units that a job is given."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gleaner.control.simulation.workload import Counts


class Allocation(StrEnum):
    """The unit that a job is given."""

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
    """The speed: a job of `run_s` seconds takes `run_s / speed`. Of several classes, the slowest used one counts."""
    priority: int = 0
    """The priority. A higher one is filled first: better hardware, or a scarce resource that migration keeps in use."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes in classes, in the order in which they are numbered."""

    classes: tuple[NodeClass, ...]
    allocation: Allocation = Allocation.NODES
    prefers_one: bool = False
    """True if, on shared nodes, a job goes to the first node that has room for all of it, and only if none has, to the
    first free cores, wherever they are. Slurm gives a job the first free cores unless told otherwise."""

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.classes)

    @property
    def cores(self) -> int:
        return sum(kind.nodes * kind.cores for kind in self.classes)

    @property
    def is_uniform(self) -> bool:
        """True where all nodes have as many cores and one speed, so that counting them is enough."""
        return len({(kind.cores, kind.speed) for kind in self.classes}) == 1

    @property
    def is_counted(self) -> bool:
        """True where any nodes are as good for a job as others: nodes are alike, given whole or as a pool."""
        has_levels = len({kind.priority for kind in self.classes}) > 1
        is_pool = self.allocation is Allocation.PROCESSORS
        return self.is_uniform and (is_pool or (self.allocation is Allocation.NODES and not has_levels))

    @property
    def units(self) -> int:
        """The number of units that jobs are given: nodes, or processors."""
        return self.nodes if self.allocation is Allocation.NODES else self.cores

    @property
    def units_of_node(self) -> int:
        """The units that one agent takes: an agent has a node for itself. Only where the machine is uniform."""
        return 1 if self.allocation is Allocation.NODES else self.classes[0].cores

    def units_asked(self, processors: Counts) -> Counts:
        """Return how many units jobs of these processors are given. Only where the machine is uniform."""
        if self.allocation is not Allocation.NODES:
            return processors
        return np.asarray(-(-processors // self.classes[0].cores), dtype=np.int64)


def of_processors(processors: int) -> Machine:
    """Return a pool of processors, each of which is a node to an agent."""
    return Machine((NodeClass(processors),), Allocation.PROCESSORS)


def of_nodes(nodes: int, cores: int = 1) -> Machine:
    """Return a machine of whole nodes, all alike."""
    return Machine((NodeClass(nodes, cores),))
