"""The synthetic traces of the Slurm simulator (Lucero, 2011), and their replay faster than real time."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator

from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.model import Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerKind, SchedulerSettings
from gleaner.lab.experiments.comparison import Comparison, Experiment, Facts, Row


class _Descendant(Facts):
    name: str
    times: str


class _StandIn(Facts):
    scheduler: SchedulerKind
    cores: tuple[int, int]
    arrive_in_s: float
    limit_factor: float
    seeds: int


class SlurmSimulatorExperiment(Experiment):
    """The settings in `slurm_simulator.toml`."""

    nodes: int
    cores: int
    jobs: int
    run_s: tuple[int, int]
    simulated_s: tuple[int, int]
    took_s: tuple[int, int]
    times_real_time: float
    descendants: tuple[_Descendant, ...]
    stand_in: _StandIn
    variants: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The seconds that were simulated, one entry a seed, and the median time of a replay."""

    simulated_s: tuple[float, ...]
    took_s: float
    mean_wait_s: float

    @property
    def times_real_time(self) -> float:
        return float(np.median(self.simulated_s)) / self.took_s

    @property
    def span(self) -> str:
        """The seconds simulated, from the shortest to the longest."""
        return f"{min(self.simulated_s):,.0f} to {max(self.simulated_s):,.0f}"


def run(settings: Mapping[str, object], *, quick: bool) -> Comparison:
    """Replay the traces and time the replays (`quick`: one of each kind). Only the times differ from run to run."""
    told = SlurmSimulatorExperiment.model_validate(settings)
    seeds = 1 if quick else told.stand_in.seeds
    ours = replayed(told, told.stand_in, seeds)
    rows = [
        Row("simulated seconds", _span(told.simulated_s), ours.span, "to the last end; arrivals were chosen so"),
        Row(
            "took, in seconds",
            _span(told.took_s),
            f"{ours.took_s:.4f}",
            "the median, on this machine, once it is compiled",
        ),
        Row("times as fast as real time", told.times_real_time, f"{ours.times_real_time:,.0f}"),
        Row("mean wait, in seconds", None, ours.mean_wait_s),
    ]
    rows += [Row(f"{other.name}: times as fast as real time", other.times, None) for other in told.descendants]
    for variant in told.variants:
        changed = replayed(told, told.stand_in.changed(variant), seeds)
        rows.append(
            Row(
                f"{variant['name']}: times as fast as real time",
                None,
                f"{changed.times_real_time:,.0f}",
                f"{changed.span} simulated, mean wait {changed.mean_wait_s:,.0f} s; how sensitive",
            )
        )
    return told.compared(rows, hours=told.run_s[1] / 3600)


def replayed(settings: SlurmSimulatorExperiment, stand_in: _StandIn, seeds: int) -> Replayed:
    """Replay one workload a seed, and return the figures. A first replay compiles everything and is not counted."""
    machine = of_nodes(settings.nodes, settings.cores)
    scheduler = SchedulerSettings(kind=stand_in.scheduler)
    simulated_s: list[float] = []
    took_s: list[float] = []
    wait_s: list[float] = []
    replay(submitted(settings, stand_in, 0), machine, scheduler)
    for seed in range(seeds):
        workload = submitted(settings, stand_in, seed)
        began_s = time.perf_counter()
        schedule = replay(workload, machine, scheduler)
        took_s.append(time.perf_counter() - began_s)
        simulated_s.append(float(schedule.end_s.max() - workload.submit_s[0]))
        wait_s.append(float(schedule.wait_s.mean()))
    return Replayed(tuple(simulated_s), float(np.median(took_s)), float(np.mean(wait_s)))


def submitted(settings: SlurmSimulatorExperiment, stand_in: _StandIn, seed: int) -> Workload:
    """Return a trace of uniform sizes, run times and instants."""
    draw = Generator(PCG64(seed))
    jobs = settings.jobs
    run_s = draw.integers(settings.run_s[0], settings.run_s[1] + 1, jobs).astype(np.float64)
    codes = np.zeros(jobs, np.int32)
    return Workload(
        name=f"{jobs} jobs",
        job=np.arange(1, jobs + 1),
        submit_s=np.floor(np.sort(draw.uniform(0, stand_in.arrive_in_s, jobs))),
        run_s=run_s,
        limit_s=np.ceil(stand_in.limit_factor * run_s),
        processors=draw.integers(stand_in.cores[0], stand_in.cores[1] + 1, jobs),
        memory_mib=np.zeros(jobs),
        user=codes,
        group=codes,
        job_class=np.full(jobs, JobClass.NON_PREEMPTIBLE, np.int8),
    )


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]:,} to {ends[1]:,}"
