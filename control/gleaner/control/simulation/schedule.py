"""The answer of a replay: the times at which every job ran, and what agents did meanwhile."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.workload import Codes, Counts, Seconds, Workload


class Stretches(NamedTuple):
    """Times in which work held a part of the machine without a break. One entry per stretch, in order of starts."""

    job: Counts
    """The job's index in the workload; -1 for agents."""
    start_s: Seconds
    end_s: Seconds
    units: Counts
    restore_s: Seconds
    """The time of restoring, from the stretch's start on."""
    save_s: Seconds
    """The time of saving, up to the stretch's end."""
    lost_s: Seconds
    """The time that was computed and not kept: the work was killed, not saved."""
    node: Codes
    """The node, if the replay knows nodes; -1 where nodes are only counted, or where the stretch has several."""

    def __len__(self) -> int:  # not the number of arrays
        return len(self.job)

    @property
    def compute_s(self) -> Seconds:
        """The time that each stretch computed and kept, in seconds of one unit. Times `units` it is unit seconds."""
        return self.end_s - self.start_s - self.restore_s - self.save_s - self.lost_s

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.integer]) -> "Stretches":
        """Return these stretches alone, in the order in which they are named."""
        return Stretches(
            self.job[chosen],
            self.start_s[chosen],
            self.end_s[chosen],
            self.units[chosen],
            self.restore_s[chosen],
            self.save_s[chosen],
            self.lost_s[chosen],
            self.node[chosen],
        )


def no_stretches() -> Stretches:
    """Return a value without any stretch."""
    none = np.empty(0)
    return Stretches(np.empty(0, np.int64), none, none, np.empty(0, np.int64), none, none, none, np.empty(0, np.int32))


class NodeRanges(NamedTuple):
    """The parts of nodes that stretches held: one entry for each range of nodes with as many cores held of each."""

    stretch: Counts
    node: Counts
    """The first node of the range."""
    nodes: Counts
    """The number of nodes in the range."""
    cores: Counts
    """The cores held of each node."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One replay of a workload. A job that still waited or ran when the replay stopped has NaN for what had not come.

    `jobs` has at least one stretch of each job that started, and more of a job that was saved, migrated or killed.
    `agents` is empty without agents. Agents that started and ended together may be one entry with all their units.
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
    """The number of saves of regular jobs (preemption, migration). Saves of agents' jobs are in `agents`."""
    parts: NodeRanges | None = None
    """The parts of nodes that `jobs` held, where the replay knows nodes; see also `metrics.node_assignment.placed`."""
    agent_jobs_end_s: Seconds | None = None
    """The time when each job of a finite low-priority queue was complete (NaN: never); None for an endless queue."""
    until_s: float | None = None
    """The time at which the replay was to stop, whatever was left; None if it stopped when all jobs had ended."""

    @property
    def wait_s(self) -> Seconds:
        """The time from submission to the first start."""
        return self.start_s - self.workload.submit_s


def uninterrupted(
    workload: Workload, units: Counts, start_s: Seconds, end_s: Seconds, until_s: float | None = None
) -> Stretches:
    """Return the stretches of jobs that ran without a break. A job that still runs at the replay's end ends there."""
    last_s = end_s if until_s is None else np.where(np.isnan(end_s), until_s, end_s)
    ran = np.flatnonzero(~np.isnan(start_s) & ~np.isnan(last_s))
    ran = ran[np.argsort(start_s[ran], kind="stable")]
    zeros = np.zeros(len(ran))
    return Stretches(
        ran.astype(np.int64),
        start_s[ran],
        last_s[ran],
        units[ran],
        zeros,
        zeros,
        zeros,
        np.full(len(ran), -1, np.int32),
    )
