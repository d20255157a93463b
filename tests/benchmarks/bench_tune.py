"""The time of `glean simulate tune` over 100,000 jobs, on all cores. `make bench-simulate` prints it.

The settings of the command (four lengths, with preemption and without) need nine replays for each seed, one of them
without agents. The trace of 100,000 jobs has five and a half years; a seed is a history of half a year, drawn from its
weeks.
"""

import os
import time
from dataclasses import dataclass

from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.tune import Sweep, compare, settings_of
from gleaner.control.simulation.tuning.variants import variation
from gleaner.control.simulation.workloads.synthetic import Exponential, LimitSettings, Source, SyntheticSettings, make

NODES = 4000
JOBS = 100_000
AGENTS = AgentSettings(save=CostSettings(constant_s=60), restore=CostSettings(constant_s=60))
LENGTHS_S = (1800.0, 3600.0, 7200.0, 14400.0)


@dataclass(frozen=True, slots=True)
class Swept:
    """One sweep: wall-clock seconds from the workload to the figures, processes and all."""

    settings: int
    seeds: int
    jobs: int
    workers: int
    seconds: float

    @property
    def said(self) -> str:
        """It in words."""
        return (
            f"Tuning: {self.settings} settings from {self.jobs:,} jobs, {self.seeds} histories of half a year each, on "
            f"{self.workers} cores in {self.seconds:.1f} s"
        )


def swept(*, jobs: int = JOBS, seeds: int = 10) -> Swept:
    """Time one sweep of a Lublin-Feitelson workload at 80 % load of 4,000 nodes."""
    limits = LimitSettings(factor=Exponential(mean=3))
    settings = SyntheticSettings(source=Source.LUBLIN, jobs=jobs, load=0.8, seed=1, limits=limits)
    machine, workers = of_nodes(NODES), len(os.sched_getaffinity(0))
    workload = make(settings, machine)
    tried = settings_of(AGENTS, LENGTHS_S, (True, False))
    began_s = time.perf_counter()
    compare(Sweep(workload, machine, SchedulerSettings(), variation(workload), tried), seeds, workers)
    return Swept(len(tried), seeds, jobs, workers, time.perf_counter() - began_s)
