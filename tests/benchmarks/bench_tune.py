"""The time of `glean simulate tune`: 100 settings over 100,000 jobs, on all cores. `make bench-simulate` prints it.

The grid of the command (10 lengths, 5 margins, one end or each its own) needs 20 replays for each seed, since one
replay serves all margins. The other grid has a replay for each of its 100 settings: 50 lengths. The trace of 100,000
jobs has five and a half years; a seed is a history of half a year, drawn from its weeks.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended

from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.evidence import WaitLimit
from gleaner.control.simulation.tuning.sweep import default_workers
from gleaner.control.simulation.tuning.tune import Effort, Grid, Question, tune
from gleaner.control.simulation.workloads.synthetic import Exponential, LimitSettings, Source, SyntheticSettings, make

OUTPUT = Path("bench-output/tune.json")
NODES = 4000
JOBS = 100_000
AGENTS = AgentSettings(save=CostSettings(constant_s=60), restore=CostSettings(constant_s=60))
GRIDS = {
    "10 lengths, 5 margins": Grid(),
    "50 lengths, 1 margin": Grid(lengths_s=tuple(300.0 * step for step in range(1, 51)), margins_s=(30.0,)),
}


@dataclass(frozen=True, slots=True)
class Swept:
    """One sweep: wall-clock seconds from the workload to the recommendation, processes and all."""

    grid: str
    settings: int
    seeds: int
    replays: int
    jobs: int
    workers: int
    seconds: float

    @property
    def said(self) -> str:
        """It in words."""
        return (
            f"Tuning, {self.grid}: {self.settings} settings from {self.jobs:,} jobs, {self.seeds} seeds, "
            f"{self.replays} replays of half a year each, on {self.workers} cores in {self.seconds:.1f} s"
        )


def swept(name: str, *, jobs: int = JOBS, seeds: int = 10) -> Swept:
    """Time one sweep of a Lublin-Feitelson workload at 80 % load of 4,000 nodes."""
    limits = LimitSettings(factor=Exponential(mean=3))
    settings = SyntheticSettings(source=Source.LUBLIN, jobs=jobs, load=0.8, seed=1, limits=limits)
    machine, grid, workers = of_nodes(NODES), GRIDS[name], default_workers()
    workload = make(settings, machine)
    question = Question(WaitLimit(0.01), AGENTS, grid, seeds=seeds)
    counts = [0]
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as state:
        began_s = time.perf_counter()
        found = tune(
            workload,
            machine,
            SchedulerSettings(),
            question,
            Effort(Path(state), workers, progress=lambda done, _all: counts.append(done)),
        )
        seconds = time.perf_counter() - began_s
    return Swept(name, len(found.tried), seeds, counts[-1], jobs, workers, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    figures = StoredFigures(OUTPUT, sweeps=[])
    for name in GRIDS:
        found = swept(name, jobs=options.jobs, seeds=options.seeds)
        figures.add("sweeps", found)
        print(found.said)


if __name__ == "__main__":
    sys.exit(ended(main, "bench_tune", OUTPUT))
