"""The values of a simulation, namely the regular jobs, the machine, and the schedule, which is the result of a replay.

The regular jobs are arrays with one entry per job, in order of submission.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario, cut

Seconds = NDArray[np.float64]
"""Seconds from the workload's own origin. Whole numbers are exact, so instants that are equal in the trace stay
equal."""
Counts = NDArray[np.int64]
Codes = NDArray[np.int32]
"""Indices into a tuple of names."""
Classes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Workload:
    """Regular jobs by time of submission, with ties in the order of the source. Every array has one entry per job."""

    name: str
    job: Counts
    """The jobs' numbers in the source."""
    submit_s: Seconds
    run_s: Seconds
    """The time for which each job runs on a node of speed 1, without interruption. It is never more than `limit_s`."""
    limit_s: Seconds
    """The run time that the scheduler assumes."""
    processors: Counts
    memory_mib: Seconds
    """The memory of each whole job, or 0 if the source does not show it."""
    user: Codes
    group: Codes
    job_class: Classes
    users: tuple[str, ...] = ("all",)
    groups: tuple[str, ...] = ("all",)

    def __len__(self) -> int:
        return len(self.job)

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in _ARRAYS}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"arrays of different lengths: {lengths}")

    def only(self, chosen: NDArray[np.bool_] | Counts) -> Self:
        """Return the workload with only these jobs, in the given order."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _ARRAYS})


_ARRAYS = ("job", "submit_s", "run_s", "limit_s", "processors", "memory_mib", "user", "group", "job_class")


def refuse_strangers(what: str, named: Iterable[str], known: tuple[str, ...], workload: str) -> None:
    """Raise `BadScenario` for the first user or group in the settings that the workload does not have."""
    strangers = sorted(set(named) - set(known))
    if strangers:
        some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise BadScenario(cut(f"{what} {strangers[0]!r} has no job in {workload}; there are: {some}"))


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The cleaning of a workload before its use, with each rule that matched jobs, and the number of jobs that it
    matched."""

    read: int
    rules: tuple[tuple[str, int], ...] = field(default=())
    """For example `("left out: cancelled before it started", 17)`."""


class Allocation(StrEnum):
    """The unit in which jobs are given a part of the machine."""

    NODES = "nodes"
    """Whole nodes, as many as the job's processors need."""
    PROCESSORS = "processors"
    """Processors of one pool, wherever they are. Most studies of backfilling assume this."""
    CORES = "cores"
    """Cores of nodes that several jobs can share, chosen by first fit."""


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that are alike."""

    nodes: int
    cores: int = 1
    name: str = "all"
    speed: float = 1.0
    """The speed, by which a job's `run_s` is divided. If a job has nodes of several classes, the speed of the slowest
    class counts."""
    priority: int = 0
    """The priority. Nodes of higher priority are filled first. Examples are better hardware, and scarce resources that
    migration keeps in use."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes in classes, in the order in which they are numbered."""

    classes: tuple[NodeClass, ...]
    allocation: Allocation = Allocation.NODES
    prefers_one: bool = False
    """True if, on shared nodes, a job goes to the first node that has room for all of it. If no node has room for the
    whole job, it is given the first free cores, wherever they are, as every job is by default in Slurm."""

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.classes)

    @property
    def cores(self) -> int:
        return sum(kind.nodes * kind.cores for kind in self.classes)

    @property
    def node_cores(self) -> Counts:
        """The cores of each node, in the order of the nodes' numbers."""
        return np.repeat(np.array([kind.cores for kind in self.classes]), [kind.nodes for kind in self.classes])

    @property
    def is_uniform(self) -> bool:
        """True if all nodes have the same speed and the same number of cores, so that counting them is enough."""
        return len({(kind.cores, kind.speed) for kind in self.classes}) == 1

    @property
    def is_counted(self) -> bool:
        """True if it does not matter which nodes a job has, because nodes are alike, and jobs are given whole nodes or
        parts of one pool."""
        has_levels = len({kind.priority for kind in self.classes}) > 1
        is_pool = self.allocation is Allocation.PROCESSORS
        return self.is_uniform and (is_pool or (self.allocation is Allocation.NODES and not has_levels))

    @property
    def units(self) -> int:
        """The number of units of the machine, which are nodes or processors."""
        return self.nodes if self.allocation is Allocation.NODES else self.cores

    @property
    def units_of_node(self) -> int:
        """The units of one agent, which takes a whole node. This is defined only for a uniform machine."""
        return 1 if self.allocation is Allocation.NODES else self.classes[0].cores

    def units_asked(self, processors: Counts) -> Counts:
        """Return the number of units that each job needs for its number of processors. This is defined only for a
        uniform machine."""
        if self.allocation is not Allocation.NODES:
            return processors
        return np.asarray(-(-processors // self.classes[0].cores), dtype=np.int64)


def of_processors(processors: int) -> Machine:
    """Return a pool of processors, each of which counts as a node for an agent."""
    return Machine((NodeClass(processors),), Allocation.PROCESSORS)


def of_nodes(nodes: int, cores: int = 1) -> Machine:
    """Return a machine of identical nodes, which jobs are given whole."""
    return Machine((NodeClass(nodes, cores),))


class Stretches(NamedTuple):
    """Stretches of time in which work held a part of the machine without a break. There is one entry per stretch, in
    order of starts."""

    job: Counts
    """The job's index in the workload, or -1 for agents."""
    start_s: Seconds
    end_s: Seconds
    units: Counts
    restore_s: Seconds
    """The duration of the restore, which begins with the stretch."""
    save_s: Seconds
    """The duration of the save, which ends with the stretch."""
    lost_s: Seconds
    """The computing time that was lost, because the work was killed and not saved."""
    node: Codes
    """The node, or -1 if nodes are only counted or if the stretch has several nodes."""

    @classmethod
    def of(
        cls,
        job: Counts,
        start_s: Seconds,
        end_s: Seconds,
        units: Counts,
        *,
        restore_s: Seconds | float = 0.0,
        save_s: Seconds | float = 0.0,
        node: NDArray[np.integer] | int = -1,
    ) -> Self:
        """Return stretches that lost nothing. A single number applies to all stretches."""
        restore_s, save_s, lost_s = (np.broadcast_to(value, len(job)) for value in (restore_s, save_s, 0.0))
        nodes = np.broadcast_to(np.asarray(node, np.int32), len(job))
        return cls(job, start_s, end_s, units, restore_s, save_s, lost_s, nodes)

    def __len__(self) -> int:  # not the number of arrays
        return len(self.job)

    @property
    def compute_s(self) -> Seconds:
        """The computing time of each stretch that was not lost, in seconds. Multiplied by `units`, it gives unit
        seconds."""
        return self.end_s - self.start_s - self.restore_s - self.save_s - self.lost_s

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.integer]) -> "Stretches":
        """Return only these stretches, in the given order."""
        columns: list[Any] = [column[chosen] for column in self]
        return Stretches(*columns)


def no_stretches() -> Stretches:
    """Return an empty set of stretches."""
    none = np.empty(0)
    return Stretches.of(none.astype(np.int64), none, none, none.astype(np.int64))


class NodeRanges(NamedTuple):
    """The parts of nodes that stretches held. Each entry is a range of nodes with the same number of cores held on
    each."""

    stretch: Counts
    node: Counts
    """The first node of the range."""
    nodes: Counts
    """The number of nodes in the range."""
    cores: Counts
    """The number of cores held on each node of the range."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One replay of a workload. If a job still waited or ran when the replay stopped, its missing times are NaN.

    `jobs` has one stretch for each job that started, and several if the job was saved, migrated or killed. `agents` is
    empty if there are no agents. Agents that started and ended together can share one entry with all their units.
    """

    workload: Workload
    machine: Machine
    scheduler: str
    start_s: Seconds
    """The time at which each job first started."""
    end_s: Seconds
    jobs: Stretches
    agents: Stretches
    saves: int = 0
    """The number of saves of regular jobs, by preemption or migration. Saves of the agents' jobs are in `agents`."""
    parts: NodeRanges | None = None
    """The parts of nodes that `jobs` held, if the replay knows nodes."""
    agent_jobs_end_s: Seconds | None = None
    """The time at which each job of a finite low-priority queue was complete (NaN if never), or None for an endless
    queue."""
    until_s: float | None = None
    """The time at which the replay had to stop, or None if it stopped when all jobs had ended."""

    @property
    def wait_s(self) -> Seconds:
        """The time from submission to the first start."""
        return self.start_s - self.workload.submit_s


def uninterrupted(
    workload: Workload, units: Counts, start_s: Seconds, end_s: Seconds, until_s: float | None = None
) -> Stretches:
    """Return the stretches of jobs that ran without a break. The stretch of a job that still runs ends with the
    replay."""
    last_s = end_s if until_s is None else np.where(np.isnan(end_s), until_s, end_s)
    ran = np.flatnonzero(~np.isnan(start_s) & ~np.isnan(last_s))
    ran = ran[np.argsort(start_s[ran], kind="stable")]
    return Stretches.of(ran.astype(np.int64), start_s[ran], last_s[ran], units[ran])
