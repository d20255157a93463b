"""The request for a replay, and the schedule that answers it."""

import math
from dataclasses import dataclass, replace

import numpy as np

from gleaner.control.simulation.model import Machine, NodeRanges, Schedule, Seconds, Stretches, Workload
from gleaner.control.simulation.replay.agents import Finite
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The arguments of `dispatch.replay`, which checks that the workload fits the machine."""

    workload: Workload
    machine: Machine
    scheduler: SchedulerSettings
    agents: AgentSettings | None = None
    until_s: float | None = None
    keep_waiting: int = 0

    def submit_s(self) -> Seconds:
        """Return the times of submission, which the loop fills in if the queue is kept full."""
        there = self.workload.submit_s
        return np.full(len(there), math.nan) if self.keep_waiting else there.copy()

    def schedule(
        self,
        submit_s: Seconds,
        start_s: Seconds,
        end_s: Seconds,
        jobs: Stretches,
        agents: Stretches,
        *,
        finite: Finite | None,
        saves: int = 0,
        parts: NodeRanges | None = None,
    ) -> Schedule:
        """Return the schedule that answers this request."""
        has_end = self.agents is not None and self.agents.queue.jobs
        return Schedule(
            workload=replace(self.workload, submit_s=submit_s.copy()) if self.keep_waiting else self.workload,
            machine=self.machine,
            scheduler=self.scheduler.kind.value,
            start_s=start_s.copy(),
            end_s=end_s.copy(),
            jobs=jobs,
            agents=agents,
            saves=saves,
            parts=parts,
            agent_jobs_end_s=finite.jobs["end_s"].copy() if finite and has_end else None,
            until_s=self.until_s,
        )
