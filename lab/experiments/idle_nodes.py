"""Agents on the idle nodes of the Lomonosov machines (Polyakov, Dubenskaya, Fedotova et al., 2018 to 2020)."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from gleaner.control.simulation.metrics.measures import Window, measure
from gleaner.control.simulation.model import Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerKind, SchedulerSettings
from gleaner.control.simulation.workloads import synthetic, traces
from gleaner.control.simulation.workloads.synthetic import Uniform
from lab.experiments.comparison import Experiment, Facts, Reproduction, Row

_DAY_S = 86400.0
_FOLDER = "GLEANER_TRACES"
_TUNINGS = 4
"""The number of steps in which the rate of arrivals is adjusted. Each step removes most of the error."""


class Model(StrEnum):
    """The source of the jobs."""

    LOG = "log"
    LUBLIN = "lublin"


class _Published(Facts):
    """The smallest and the largest published value of each figure, in per cent."""

    base: tuple[float, float]
    gain: tuple[float, float]
    idle_fewer: tuple[float, float]


class _Full(Facts):
    nodes: int


class _Arrivals(Facts):
    name: str
    nodes: int
    base: float
    effective: float
    least_length_min: float


class IdleNodesExperiment(Experiment):
    """The settings in `idle_nodes.toml`."""

    log: str
    model: Model = Model.LOG
    scheduler: SchedulerKind
    lengths_min: tuple[float, ...]
    costs_min: tuple[float, ...]
    slice_costs: float
    shortest_slice_min: float = 0
    waiting: int
    days: float
    warm_up_days: float
    seeds: int
    full: tuple[_Full, ...]
    published: _Published
    arrivals: tuple[_Arrivals, ...]
    variants: tuple[dict[str, Any], ...]
    explained_of_model: tuple[str, ...]
    """The reasons for differences if the jobs come from the model, because the log is missing."""

    @property
    def end_s(self) -> float:
        return (self.warm_up_days + self.days) * _DAY_S

    @property
    def window(self) -> Window:
        return Window(self.warm_up_days * _DAY_S, self.end_s)


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads in per cent of all node time, with one entry per seed."""

    regular: NDArray[np.float64]
    effective: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    """The mean wait of regular jobs, which has no meaning for a queue that is always full."""


@dataclass(frozen=True, slots=True)
class Site:
    """A machine with its jobs. A seed gives the same jobs in every run."""

    settings: IdleNodesExperiment
    nodes: int
    workloads: tuple[Workload, ...]
    keep_waiting: int

    def loads(self, agents: AgentSettings | None) -> Loads:
        """Replay the workload of each seed with these agents, and return the loads."""
        found: list[tuple[float, float, float]] = []
        for workload in self.workloads:
            schedule = replay(
                workload,
                of_nodes(self.nodes),
                SchedulerSettings(kind=self.settings.scheduler),
                agents,
                until_s=self.settings.end_s,
                keep_waiting=self.keep_waiting,
            )
            told = measure(schedule, window=self.settings.window)
            found.append((told.regular_load, told.effective_load, told.waits.mean_s or 0.0))
        columns = np.array(found).T
        return Loads(100 * columns[0], 100 * columns[1], columns[2])


def run(settings: Mapping[str, object], *, quick: bool) -> Reproduction:
    """Replay both experiments over all seeds, or over one seed and ten days with `quick`, and compare the results with
    the published ones.

    The rows also show the effect of each choice that was not published.
    """
    told = IdleNodesExperiment.model_validate(settings)
    if quick:
        told = told.model_copy(update={"seeds": 1, "days": 10.0})
    log = found_log(told.log)
    stand_in = (
        log.stem.split(".")[0]
        if log
        else f"the Lublin-Feitelson model, since {told.log} is absent (${_FOLDER} names its folder)"
    )
    checks: list[float] = []
    rows = [row for full in told.full for row in _full_rows(told, full.nodes, log, checks)]
    rows += [row for arrivals in told.arrivals for row in _arrival_rows(told, arrivals, log, checks)]
    rows += [_bound_row(arrivals) for arrivals in told.arrivals]
    rows.append(
        Row(
            "the bound in all runs above: idle time won, over the most that costs and length allow",
            "at most 1",
            max(checks),
            "the largest of them",
        )
    )
    for variant in told.variants:
        if log is None and variant.get("model") == Model.LUBLIN:  # this variant would equal the runs above
            continue
        rows += _variant_rows(told, variant, log)
    if log is None:
        told = told.model_copy(update={"explained": told.explained_of_model})
    lengths = ", ".join(f"{length:g}" for length in told.lengths_min)
    return told.compared(rows, lengths=lengths, jobs_from=stand_in)


def found_log(name: str) -> Path | None:
    """Return the path of the log, at `name` or in the folder of traces, or None if it is in neither place."""
    folders = (Path(), *(Path(folder) for folder in (os.environ.get(_FOLDER),) if folder))
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def full_queue(settings: IdleNodesExperiment, nodes: int, log: Path | None) -> Site:
    """Return the machine with more jobs than it can complete in the time, so that some always wait."""
    workloads = tuple(
        _jobs(settings, nodes, log, seed, node_s=1.1 * nodes * settings.end_s, least=settings.waiting)
        for seed in range(settings.seeds)
    )
    return Site(settings, nodes, workloads, settings.waiting)


def poisson(settings: IdleNodesExperiment, nodes: int, log: Path | None, load: float) -> Site:
    """Return the machine with jobs that arrive at random, at the rate that gives this load without agents.

    The submitted load must be higher than `load`, because some of the jobs still wait or run at the end of the window.
    """
    asked = load
    for _ in range(_TUNINGS):
        site = _arriving(settings, nodes, log, asked)
        asked *= load / (site.loads(None).regular.mean() / 100)
    return _arriving(settings, nodes, log, asked)


def _arriving(settings: IdleNodesExperiment, nodes: int, log: Path | None, load: float) -> Site:
    workloads = tuple(
        synthetic.arriving(
            _jobs(settings, nodes, log, seed, node_s=load * nodes * settings.end_s),
            of_nodes(nodes),
            load=load,
            rng=Generator(PCG64([seed, nodes, 1])),
        )
        for seed in range(settings.seeds)
    )
    return Site(settings, nodes, workloads, 0)


def agents_of(
    settings: IdleNodesExperiment, *, length_min: float, cost_min: float, synchronised: bool
) -> AgentSettings:
    """Return agents of one length. A save and a restore each take half of the costs."""
    each = CostSettings(constant_s=cost_min * 30)
    shortest_min = max(settings.slice_costs * cost_min, settings.shortest_slice_min)
    return AgentSettings(
        length_s=length_min * 60,
        synchronised=synchronised,
        shortest_slice_s=60 * min(length_min, shortest_min),
        save=each,
        restore=each,
    )


def least_length_min(base: float, effective: float, cost_min: float) -> float:
    """Return the least length of agents that brings the load from `base` to `effective`, in minutes.

    The agents are assumed to hold all idle nodes.

    >>> round(least_length_min(92.3, 98.8, 5), 1), round(least_length_min(88.8, 98.8, 5), 1)
    (32.1, 46.7)
    """
    won = (effective - base) / (100 - base)
    return cost_min / (1 - won)


def _jobs(
    settings: IdleNodesExperiment, nodes: int, log: Path | None, seed: int, *, node_s: float, least: int = 0
) -> Workload:
    """Return enough jobs to fill the node time, and `least` additional ones. All are submitted at 0."""
    rng = Generator(PCG64([seed, nodes]))
    source = _source(log if settings.model is Model.LOG else None, nodes)
    work_s = float((source.processors * source.run_s).mean())
    jobs = synthetic.drawn(source, int(1.5 * node_s / work_s) + least + 100, rng)
    enough = int(np.searchsorted(np.cumsum(jobs.processors * jobs.run_s), node_s)) + 1 + least
    return jobs.only(np.arange(min(enough, len(jobs))))


@cache
def _source(log: Path | None, nodes: int) -> Workload:
    """Return the jobs to draw from, which are those in the log that fit the machine, or those of the model without a
    log."""
    if log is not None:
        jobs = traces.read(log).workload
        return jobs.only(jobs.processors <= nodes)
    limits = synthetic.LimitSettings(factor=Uniform(low=1, high=4))
    asked = synthetic.SyntheticSettings(source=synthetic.Source.LUBLIN, jobs=20_000, limits=limits)
    return synthetic.make(asked, of_nodes(nodes))


def _kinds(settings: IdleNodesExperiment) -> Iterator[tuple[bool, float]]:
    for synchronised in (True, False):
        for cost_min in settings.costs_min:
            yield synchronised, cost_min


def _name(synchronised: bool, cost_min: float) -> str:
    return f"{'one end' if synchronised else 'one length'}, {cost_min:g} min"


def _each(
    site: Site, without: Loads, checks: list[float], *, synchronised: bool, cost_min: float
) -> list[tuple[Loads, Loads]]:
    """Return the loads without and with agents, one pair for each length of agents.

    Also append to `checks`, for each length, the agents' gain from the idle nodes, divided by the bound for that
    length.
    """
    found: list[tuple[Loads, Loads]] = []
    for length_min in site.settings.lengths_min:
        agents = agents_of(site.settings, length_min=length_min, cost_min=cost_min, synchronised=synchronised)
        loads = site.loads(agents)
        won = (loads.effective - loads.regular).sum() / (100 - loads.regular).sum()
        checks.append(float(won / (1 - cost_min / length_min)))
        found.append((without, loads))
    return found


def _written(figures: list[float], form: str = "+.1f") -> str:
    return " ".join(format(figure, form) for figure in figures)


def _full_rows(settings: IdleNodesExperiment, nodes: int, log: Path | None, checks: list[float]) -> Iterator[Row]:
    site = full_queue(settings, nodes, log)
    without = site.loads(None)
    base = without.regular
    what = f"queue always full, {nodes} nodes"
    yield Row(f"{what}: regular load", _range(settings.published.base), f"{base.mean():.1f}", _spread(base))
    for synchronised, cost_min in _kinds(settings):
        pairs = _each(site, without, checks, synchronised=synchronised, cost_min=cost_min)
        gains = [float((after.effective - before.effective).mean()) for before, after in pairs]
        idle = [((100 - before.effective).mean(), (100 - after.effective).mean()) for before, after in pairs]
        fewer = [float(100 * (1 - after / before)) for before, after in idle]
        regular = [float((after.regular - before.regular).mean()) for before, after in pairs]
        yield Row(
            f"{what}, {_name(synchronised, cost_min)}: effective load",
            _range(settings.published.gain, "+g"),
            _written(gains),
            f"idle nodes fewer by {_written(fewer, '.0f')} % ({_range(settings.published.idle_fewer)} %); "
            f"regular load {_written(regular)}",
        )


def _arrival_rows(
    settings: IdleNodesExperiment, arrivals: _Arrivals, log: Path | None, checks: list[float]
) -> Iterator[Row]:
    site = poisson(settings, arrivals.nodes, log, arrivals.base / 100)
    without = site.loads(None)
    what = f"arrivals, {arrivals.name}"
    yield Row(f"{what}: regular load", arrivals.base, f"{without.regular.mean():.1f}", _spread(without.regular))
    for synchronised, cost_min in _kinds(settings):
        pairs = _each(site, without, checks, synchronised=synchronised, cost_min=cost_min)
        effective = [float(after.effective.mean()) for _, after in pairs]
        regular = [float((after.regular - first.regular).mean()) for first, after in pairs]
        waits = [float((after.wait_s - first.wait_s).mean() / 60) for first, after in pairs]
        yield Row(
            f"{what}, {_name(synchronised, cost_min)}: effective load",
            arrivals.effective,
            _written(effective, ".1f"),
            f"regular load {_written(regular)}; mean wait {_written(waits, '+.0f')} min",
        )


def _bound_row(arrivals: _Arrivals) -> Row:
    least = least_length_min(arrivals.base, arrivals.effective, 5)
    return Row(
        f"least length for {arrivals.effective:g} % from {arrivals.base:g} %, 5 min of costs, in minutes",
        arrivals.least_length_min,
        least,
        "had agents nothing else to lose",
    )


def _variant_rows(settings: IdleNodesExperiment, variant: dict[str, Any], log: Path | None) -> Iterator[Row]:
    """Yield the rows of a variant, for agents of one hour with costs of five minutes, first with shared ends and then
    without."""
    changed = settings.changed(variant)
    sites = [(f"full, {full.nodes}", full_queue(changed, full.nodes, log)) for full in changed.full]
    sites += [(one.name, poisson(changed, one.nodes, log, one.base / 100)) for one in changed.arrivals]
    for synchronised in (True, False):
        agents = agents_of(changed, length_min=60, cost_min=5, synchronised=synchronised)
        told: list[str] = []
        for name, site in sites:
            before, after = site.loads(None).effective.mean(), site.loads(agents).effective.mean()
            told.append(f"{name}: {before:.1f} → {after:.1f}")
        kind = "one end" if synchronised else "one length"
        yield Row(f"{variant['name']}: an hour, 5 min, {kind}", None, "; ".join(told), "how sensitive")


def _range(published: tuple[float, float], form: str = "g") -> str:
    return " to ".join(format(figure, form) for figure in published)


def _spread(figures: NDArray[np.float64]) -> str:
    return f"seeds {figures.min():.1f} to {figures.max():.1f}"
