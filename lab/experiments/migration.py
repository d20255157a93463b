"""Job compaction and migration with priorities on eight nodes (Rodríguez-Pascual et al., 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.metrics.node_time import EMPTY, FULL, MIXED, occupancy
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    CostSettings,
    Migration,
    SchedulerKind,
    SchedulerMigration,
    SchedulerSettings,
)
from lab.experiments.comparison import Experiment, Facts, Reproduction, Row

_PLACEMENTS = (("first free cores", False), ("one node if one has room", True))


class Arrivals(StrEnum):
    """The way in which submissions are spread over the day."""

    RANDOM = "random"
    """Each job is submitted at a uniformly random instant."""
    EVEN = "even"
    """Jobs are submitted at equal intervals."""
    DAILY = "daily"
    """Jobs are submitted at random, nine times as often at noon as at midnight."""


class _Published(Facts):
    load: float
    tolerance: float | None = None
    """The accepted difference between our share without compaction and the published one, in percentage points. It
    applies if each job is placed on one node where possible."""
    full: tuple[float, float] | None = None
    mixed: tuple[float, float] | None = None
    empty: tuple[float, float] | None = None


class MigrationExperiment(Experiment):
    """The settings in `migration.toml`."""

    nodes: int
    cores: int
    hours: float
    look_every_s: float
    high_nodes: int
    mean_cores: float
    mean_run_s: float
    memory_mib_per_core: float
    arrivals: Arrivals
    scheduler: SchedulerKind
    seeds: int
    variant_seeds: int
    cost: CostSettings
    compaction: tuple[_Published, ...]
    priorities: tuple[_Published, ...]
    variants: tuple[dict[str, Any], ...]

    @property
    def length_s(self) -> float:
        return self.hours * 3600


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """The time for which nodes are full, partly used and empty, in per cent, with one row per seed.

    If some nodes have a higher priority, only these nodes count.
    """

    without: NDArray[np.float64]
    moved: NDArray[np.float64]
    moves: float
    """The mean number of jobs that migrate in a run."""

    def told(self, state: int) -> str:
        """Return the means without and with migration.

        >>> share = np.array([[1.0, 2.0, 97.0]])
        >>> NodeTimes(share, share + 0.06, 1).told(FULL)
        '1.0 → 1.1'
        """
        return f"{self.without[:, state].mean():.1f} → {self.moved[:, state].mean():.1f}"

    def spread(self, state: int) -> str:
        """Return the range of single seeds without migration, and the range of the difference that migration makes."""
        low, high = np.percentile(self.without[:, state], (5, 95))
        difference = self.moved[:, state] - self.without[:, state]
        error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        return f"9 in 10 seeds {low:.1f} to {high:.1f}; difference {difference.mean():+.1f} ± {1.96 * error:.1f}"


def run(settings: Mapping[str, object], *, quick: bool) -> Reproduction:
    """Replay both experiments over all seeds, or over 8 seeds with `quick`, and compare the results with the published
    ones.

    The rows also show the effect of each choice that was not published.
    """
    told = MigrationExperiment.model_validate(settings)
    seeds, variant_seeds = (min(count, 8) if quick else count for count in (told.seeds, told.variant_seeds))
    rows = [row for name, prefers_one in _PLACEMENTS for row in _compaction_rows(told, name, prefers_one, seeds)]
    rows += _priority_rows(told, seeds)
    for variant in told.variants:
        rows += _variant_rows(told.changed(variant), variant["name"], variant_seeds)
    return told.compared(rows, seeds=seeds, variant_seeds=variant_seeds, mean_run_min=told.mean_run_s / 60)


def found(
    settings: MigrationExperiment, kind: Migration, load: float, seeds: int, *, prefers_one: bool = False
) -> NodeTimes:
    """Replay the same workloads without and with migration, and return the figures of both."""
    high = settings.high_nodes if kind is Migration.PRIORITIES else 0
    classes = [NodeClass(settings.nodes - high, settings.cores)]
    if high:
        classes.insert(0, NodeClass(high, settings.cores, "high", priority=1))
    machine = Machine(tuple(classes), Allocation.CORES, prefers_one)
    moves = SchedulerMigration(kind=kind, every_s=settings.look_every_s, save=settings.cost, restore=settings.cost)
    shares: list[list[NDArray[np.float64]]] = [[], []]
    moved = 0
    for seed in range(seeds):
        workload = submitted(settings, load, seed)
        for kept, migration in zip(shares, (SchedulerMigration(), moves), strict=True):
            scheduler = SchedulerSettings(kind=settings.scheduler, migration=migration)
            schedule = replay(workload, machine, scheduler, until_s=settings.length_s)
            by_node = occupancy(schedule, 0, settings.length_s).by_node
            if by_node is None:
                raise AssertionError("a machine of shared nodes knows them")
            kept.append(100 * by_node[: high or None].mean(axis=0))
            moved += schedule.saves
    return NodeTimes(np.array(shares[0]), np.array(shares[1]), moved / seeds)


def submitted(settings: MigrationExperiment, load: float, seed: int) -> Workload:
    """Return just enough jobs to use `load` per cent of the machine's time in a day."""
    draw = np.random.Generator(np.random.PCG64([seed, round(load)]))
    processors = settings.nodes * settings.cores
    core_s = load / 100 * processors * settings.length_s
    many = int(3 * core_s / (settings.mean_cores * settings.mean_run_s)) + 50
    size = np.minimum(draw.geometric(1 / settings.mean_cores, many), processors).astype(np.int64)
    run_s = np.ceil(draw.exponential(settings.mean_run_s, many))
    jobs = int(np.searchsorted(np.cumsum(size * run_s), core_s)) + 1
    size, run_s = size[:jobs], run_s[:jobs]
    codes = np.zeros(jobs, np.int32)
    return Workload(
        name=f"{load:g} % of a day",
        job=np.arange(1, jobs + 1),
        submit_s=_arrivals(settings.arrivals, jobs, draw) * settings.length_s // 1,
        run_s=run_s,
        limit_s=2 * run_s,
        processors=size,
        memory_mib=size.astype(np.float64) * settings.memory_mib_per_core,
        user=codes,
        group=codes,
        job_class=np.full(jobs, JobClass.CHECKPOINTABLE, np.int8),
    )


def _arrivals(arrivals: Arrivals, jobs: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return the times of submission in order, as fractions of the day from 0 to 1."""
    if arrivals is Arrivals.EVEN:
        return np.arange(jobs) / jobs
    chance = np.sort(draw.uniform(0, 1, jobs))
    if arrivals is Arrivals.RANDOM:
        return chance
    day = np.linspace(0, 1, 10_001)
    return np.interp(chance, day - 0.8 * np.sin(2 * np.pi * day) / (2 * np.pi), day)


def _pair(figures: tuple[float, float] | None) -> str | None:
    return None if figures is None else f"{figures[0]:g} → {figures[1]:g}"


def _compaction_rows(settings: MigrationExperiment, name: str, prefers_one: bool, seeds: int) -> list[Row]:
    rows: list[Row] = []
    for published in settings.compaction:
        ours = found(settings, Migration.COMPACTION, published.load, seeds, prefers_one=prefers_one)
        what = f"{name}, {published.load:g} %"
        rows.append(
            Row(
                f"{what}: partly used",
                _pair(published.mixed),
                ours.told(MIXED),
                f"{ours.spread(MIXED)}; {ours.moves:.0f} moves a day",
            )
        )
        if published.full:
            rows.append(Row(f"{what}: full", _pair(published.full), ours.told(FULL), ours.spread(FULL)))
            rows.append(Row(f"{what}: empty", _pair(published.empty), ours.told(EMPTY), ours.spread(EMPTY)))
    return rows


def _priority_rows(settings: MigrationExperiment, seeds: int) -> list[Row]:
    rows: list[Row] = []
    for published in settings.priorities:
        ours = found(settings, Migration.PRIORITIES, published.load, seeds)
        what = f"nodes of the higher priority, {published.load:g} %"
        full = _pair(published.full) or "about equal"
        rows.append(Row(f"{what}: full", full, ours.told(FULL), f"{ours.spread(FULL)}; {ours.moves:.0f} moves a day"))
        rows.append(Row(f"{what}: empty", _pair(published.empty), ours.told(EMPTY), ours.spread(EMPTY)))
    return rows


def _variant_rows(settings: MigrationExperiment, name: str, seeds: int) -> list[Row]:
    """Return the rows of a variant, one per placement with all loads, and one for the second experiment."""
    rows: list[Row] = []
    loads = [published.load for published in settings.compaction]
    for placement, prefers_one in _PLACEMENTS:
        ours = [found(settings, Migration.COMPACTION, load, seeds, prefers_one=prefers_one) for load in loads]
        told = "; ".join(f"{load:g} %: {each.told(MIXED)}" for load, each in zip(loads, ours, strict=True))
        rows.append(Row(f"{name}: partly used ({placement})", None, told, "how sensitive"))
    high = [found(settings, Migration.PRIORITIES, published.load, seeds) for published in settings.priorities]
    told = "; ".join(
        f"{published.load:g} %: full {each.told(FULL)}, empty {each.told(EMPTY)}"
        for published, each in zip(settings.priorities, high, strict=True)
    )
    return [*rows, Row(f"{name}: nodes of the higher priority", None, told, "how sensitive")]
