"""What a replay gives: when every job ran, and what agents did meanwhile."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.workload import Codes, Counts, Seconds, Workload


class Stretches(NamedTuple):
    """Times in which work held a part of the machine without a break. One entry each, in order of their starts."""

    job: Counts
    """Its index in the workload; for agents -1."""
    start_s: Seconds
    end_s: Seconds
    units: Counts
    restore_s: Seconds
    """How much of it, from its start on, went into restoring."""
    save_s: Seconds
    """How much of it, up to its end, went into saving."""
    lost_s: Seconds
    """What it had computed and did not keep: it was killed, not saved."""
    node: Codes
    """Where, if the replay knows nodes; -1 where they are only counted, or where it has several."""

    def __len__(self) -> int:  # not the number of arrays
        return len(self.job)

    @property
    def compute_s(self) -> Seconds:
        """What each computed and kept, in seconds of one unit; times `units` is unit seconds."""
        return self.end_s - self.start_s - self.restore_s - self.save_s - self.lost_s

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.integer]) -> "Stretches":
        """These alone, in the order in which they are named."""
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
    """None at all."""
    none = np.empty(0)
    return Stretches(np.empty(0, np.int64), none, none, np.empty(0, np.int64), none, none, none, np.empty(0, np.int32))


class Parts(NamedTuple):
    """What stretches held of which nodes: one entry for each range of nodes of which a stretch held as many cores."""

    stretch: Counts
    node: Counts
    """The first of the range."""
    nodes: Counts
    """How many."""
    cores: Counts
    """Of each of them."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One replay of a workload. Jobs that were still waiting or running when it stopped have NaN for what had not come.

    `jobs` has at least one stretch of each job that started, more of one that was saved, moved or killed between.
    `agents` is empty without agents; agents that started and ended together may be one entry with all their units.
    """

    workload: Workload
    machine: Machine
    scheduler: str
    start_s: Seconds
    """When each job first started."""
    end_s: Seconds
    jobs: Stretches
    agents: Stretches
    saves: int = 0
    """Saves of regular jobs (preemption, migration); those of agents' jobs are in `agents`."""
    parts: Parts | None = None
    """Of `jobs`, where the replay knows nodes; see also `placing.placed`."""
    agent_jobs_end_s: Seconds | None = None
    """When each job of a finite low-priority queue was complete (NaN: it was not); None where the queue is endless."""
    until_s: float | None = None
    """Where the replay was to stop, whatever was left; None: when all jobs had ended."""

    @property
    def wait_s(self) -> Seconds:
        """From submission to the first start."""
        return self.start_s - self.workload.submit_s


def uninterrupted(
    workload: Workload, units: Counts, start_s: Seconds, end_s: Seconds, until_s: float | None = None
) -> Stretches:
    """The stretches of jobs that ran without a break, those that still run when the replay stops up to `until_s`."""
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
