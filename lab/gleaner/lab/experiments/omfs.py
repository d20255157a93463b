"""OMFS: what its paper promises, checked, since it has no evaluation (Zvi and Oren, 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.model import Machine, Schedule, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import CostSettings, EntitlementSettings, SchedulerKind, SchedulerSettings
from gleaner.lab.experiments.comparison import Comparison, Experiment, Facts, Row

HOUR_S = 3600.0
Job = tuple[float, float, int, int]
"""A job's time of submission, run time, nodes and owner."""


class _Full(Facts):
    hours: float
    sizes: tuple[int, int]


class _Large(Facts):
    nodes: int
    run_s: float
    claimed_s: float


class _Shared(Facts):
    days: float
    busy_hours: float
    sizes: tuple[int, int]
    mean_run_s: float
    loads: tuple[float, float, float]
    saves_s: tuple[float, ...]


class _Contended(Facts):
    hours: float
    nodes: int
    short_s: float
    long_s: float
    every_s: float
    quanta_s: tuple[float, ...]


class OmfsSettings(Experiment):
    """The settings in `omfs.toml`."""

    nodes: int
    quantum_s: float
    save_s: float
    restore_s: float
    seeds: int
    entitled: dict[str, float]
    full: _Full
    large: _Large
    shared: _Shared
    contended: _Contended

    @property
    def machine(self) -> Machine:
        return of_nodes(self.nodes)

    @property
    def nodes_of(self) -> list[int]:
        """The nodes to which each owner is entitled."""
        return [int(self.nodes * share // 100) for share in self.entitled.values()]

    def scheduler(
        self,
        *,
        quantum_s: float | None = None,
        protects: bool = True,
        save_s: float | None = None,
        literal: bool = False,
    ) -> SchedulerSettings:
        """Return OMFS with the settings of the file, except those that are given here."""
        rules = EntitlementSettings(
            percent=self.entitled,
            quantum_s=self.quantum_s if quantum_s is None else quantum_s,
            quantum_protects=protects,
            literal=literal,
            save=CostSettings(constant_s=self.save_s if save_s is None else save_s),
            restore=CostSettings(constant_s=self.restore_s if save_s is None else save_s / 2),
        )
        return SchedulerSettings(kind=SchedulerKind.OMFS, omfs=rules)


def run(settings: Mapping[str, object], *, quick: bool) -> Comparison:
    """Check all promises over all seeds (`quick`: over 4)."""
    told = OmfsSettings.model_validate(settings)
    seeds = range(min(told.seeds, 4) if quick else told.seeds)
    rows = (
        *_entitlement_rows(told, seeds),
        *_large_rows(told),
        *_utilisation_rows(told, seeds),
        *_thrashing_rows(told, seeds),
    )
    shares = ", ".join(f"{owner} {share:g} %" for owner, share in told.entitled.items())
    return told.compared(rows, seeds=len(seeds), shares=shares)


def workload_of(told: OmfsSettings, jobs: Sequence[Job], name: str) -> Workload:
    """Return a workload of these jobs in order of submission. All are checkpointable."""
    submit_s, run_s, nodes, owner = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    owner = owner.astype(np.int32)
    return Workload(
        name=name,
        job=np.arange(1, len(jobs) + 1),
        submit_s=submit_s.astype(np.float64),
        run_s=run_s.astype(np.float64),
        limit_s=run_s.astype(np.float64),
        processors=nodes.astype(np.int64),
        memory_mib=np.zeros(len(jobs)),
        user=owner,
        group=owner,
        job_class=np.full(len(jobs), JobClass.CHECKPOINTABLE, np.int8),
        users=tuple(told.entitled),
        groups=tuple(told.entitled),
    )


def time_to_entitlement_s(told: OmfsSettings, seed: int, *, young: bool) -> float:
    """Return the time from the first owner's claim of all its nodes, on a full machine, until the owner has them.

    With `young` the machine was filled at one instant, less than a quantum before. Else it has been full for hours.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    low, high = told.full.sizes
    quantum_s = max(2, int(told.quantum_s))
    claimed_s = float(draw.integers(1, quantum_s) if young else draw.integers(4 * quantum_s, 8 * quantum_s))
    jobs: list[Job] = []
    for owner in range(1, len(told.entitled)):
        runs_s = np.ceil(draw.exponential(told.full.hours * HOUR_S, 8 * told.nodes))
        submit_s = np.sort(draw.integers(0, 1 if young else int(claimed_s), len(runs_s)))
        sizes = draw.integers(low, high + 1, len(runs_s))
        jobs += [(float(s), float(r), int(n), owner) for s, r, n in zip(submit_s, runs_s, sizes, strict=True)]
    claims: list[int] = []
    while sum(claims) < told.nodes_of[0]:
        claims.append(min(int(draw.integers(low, high + 1)), told.nodes_of[0] - sum(claims)))
    jobs += [(claimed_s, 24 * HOUR_S, nodes, 0) for nodes in claims]
    workload = workload_of(told, jobs, "a full machine")
    found = replay(workload, told.machine, told.scheduler(), until_s=claimed_s + 24 * HOUR_S)
    starts_s = found.start_s[workload.group == 0]
    return float(np.max(np.where(np.isnan(starts_s), np.inf, starts_s))) - claimed_s


def _entitlement_rows(told: OmfsSettings, seeds: Sequence[int]) -> list[Row]:
    bound_s = told.quantum_s + told.save_s
    rows: list[Row] = []
    for what, young in (("full for hours", False), ("filled less than a quantum ago", True)):
        waits_s = np.array([time_to_entitlement_s(told, seed, young=young) for seed in seeds])
        within = int(np.sum(waits_s <= bound_s))
        rows.append(
            Row(
                f"machine {what}: minutes until A has all it is entitled to, mean",
                f"within a quantum: {told.quantum_s / 60:g}",
                round(float(waits_s.mean()) / 60, 2),
                f"seeds {waits_s.min() / 60:.3g} to {waits_s.max() / 60:.3g}; within a quantum and a save "
                f"({bound_s / 60:g} minutes) in {within} of {len(seeds)}",
            )
        )
    return rows


def _large_rows(told: OmfsSettings) -> list[Row]:
    large = told.large
    owner = len(told.entitled) - 1
    jobs: list[Job] = [(0.0, large.run_s, large.nodes, owner), (large.claimed_s, HOUR_S, told.nodes_of[0], 0)]
    found = replay(workload_of(told, jobs, "a large job"), told.machine, told.scheduler())
    computed_s = float(found.jobs.compute_s[found.jobs.job == 0].sum())
    what = f"a job of {large.nodes} nodes, its owner entitled to {told.nodes_of[owner]}"
    return [
        Row(f"{what}: seconds until it starts on idle nodes", "at once", float(found.wait_s[0])),
        Row(f"{what}: seconds until A has its nodes back", "at once", float(found.wait_s[1]), "one save"),
        Row(
            f"{what}: saves, and seconds it computed in all",
            f"1, {large.run_s:g}",
            f"{found.saves}, {computed_s:g}",
            f"it ended after {found.end_s[0]:g} s",
        ),
    ]


def demand(told: OmfsSettings, load: float, seed: int) -> Workload:
    """Return the jobs of owners that want much for a while and then nothing for a while."""
    shared = told.shared
    draw = np.random.Generator(np.random.PCG64(seed))
    until_s = shared.days * 24 * HOUR_S
    mean_size = sum(shared.sizes) / 2
    jobs: list[Job] = []
    for owner, entitled in enumerate(told.nodes_of):
        gap_s = mean_size * shared.mean_run_s / (2 * load * entitled)  # twice the load, half of the time
        turns_s = np.cumsum(draw.exponential(shared.busy_hours * HOUR_S, 4 * int(until_s / shared.busy_hours / HOUR_S)))
        first = int(draw.integers(0, 2))
        for start_s, end_s in list(pairwise([0.0, *turns_s.tolist()]))[first::2]:
            at_s = start_s + draw.exponential(gap_s)
            while at_s < min(end_s, until_s):
                run_s = max(60.0, float(np.ceil(draw.exponential(shared.mean_run_s))))
                size = int(draw.integers(shared.sizes[0], shared.sizes[1] + 1))
                jobs.append((float(np.floor(at_s)), run_s, size, owner))
                at_s += draw.exponential(gap_s)
    return workload_of(told, jobs, f"demand in turns, load {load:g}")


def utilisation(found: Schedule, until_s: float) -> float:
    """Return the share of the machine's time in which jobs computed, without saves and restores."""
    return float(found.jobs.compute_s @ found.jobs.units) / (found.machine.units * until_s)


def capped(told: OmfsSettings, workload: Workload, until_s: float) -> float:
    """Return the utilisation where nobody may have more than the entitlement: no job may be preempted."""
    fixed = replace(workload, job_class=np.full(len(workload), JobClass.NON_PREEMPTIBLE, np.int8))
    return utilisation(replay(fixed, told.machine, told.scheduler(), until_s=until_s), until_s)


def partitioned(told: OmfsSettings, workload: Workload, until_s: float) -> float:
    """Return the utilisation where each owner has nodes of its own."""
    easy = SchedulerSettings(kind=SchedulerKind.EASY)
    parts = [
        nodes
        * utilisation(replay(workload.only(workload.group == owner), of_nodes(nodes), easy, until_s=until_s), until_s)
        for owner, nodes in enumerate(told.nodes_of)
    ]
    return sum(parts) / told.nodes


def _utilisation_rows(told: OmfsSettings, seeds: Sequence[int]) -> list[Row]:
    until_s = told.shared.days * 24 * HOUR_S
    rows: list[Row] = []
    for load in told.shared.loads:
        made = [demand(told, load, seed) for seed in seeds]
        ours = np.array([_shared(told, one, until_s) for one in made])
        caps = np.array([capped(told, one, until_s) for one in made])
        parts = np.array([partitioned(told, one, until_s) for one in made])
        what = f"load {load:g}: utilisation"
        rows += [
            Row(f"{what}, OMFS", "at least the two below", round(float(ours.mean()), 4), _seeds(ours)),
            Row(f"{what}, capping", None, round(float(caps.mean()), 4), f"OMFS less this: {_seeds(ours - caps)}"),
            Row(f"{what}, partitions", None, round(float(parts.mean()), 4), f"OMFS less this: {_seeds(ours - parts)}"),
        ]
    made = [demand(told, told.shared.loads[1], seed) for seed in seeds]
    for save_s in told.shared.saves_s:
        shares = np.array([_shared(told, one, until_s, save_s=save_s) for one in made])
        what = f"load {told.shared.loads[1]:g}: utilisation, OMFS, {save_s:g} s a save and half of it a restore"
        rows.append(Row(what, None, round(float(shares.mean()), 4), _seeds(shares)))
    return rows


def _shared(told: OmfsSettings, workload: Workload, until_s: float, save_s: float | None = None) -> float:
    return utilisation(replay(workload, told.machine, told.scheduler(save_s=save_s), until_s=until_s), until_s)


def _seeds(values: np.ndarray) -> str:
    return f"seeds {values.min():.4f} to {values.max():.4f}"


def contention(told: OmfsSettings, seed: int) -> Workload:
    """Return the jobs of two owners.

    The second owner fills the machine with long jobs. The first sends short jobs within its entitlement.
    """
    kind = told.contended
    draw = np.random.Generator(np.random.PCG64(seed))
    long: list[Job] = [(0.0, kind.long_s, kind.nodes, 1) for _ in range(4 * told.nodes // kind.nodes)]
    at_s = HOUR_S + np.floor(np.cumsum(draw.exponential(kind.every_s, int(2 * kind.hours * HOUR_S / kind.every_s))))
    short = [(float(one), kind.short_s, kind.nodes, 0) for one in at_s if one < kind.hours * HOUR_S]
    return workload_of(told, [*long, *short], "contention")


def _thrashing_rows(told: OmfsSettings, seeds: Sequence[int]) -> list[Row]:
    kind = told.contended
    rows: list[Row] = []
    for quantum_s in kind.quanta_s:
        least = told.save_s + max(quantum_s, 1.0)
        bound = told.nodes / kind.nodes * HOUR_S / least
        bounded = f"; the quantum's bound: {bound:.4g}" if quantum_s else "; no bound but a save's time"
        name = f"a quantum of {quantum_s / 60:g} minutes" if quantum_s else "no quantum"
        rows.append(_thrashing_row(told, seeds, name, told.scheduler(quantum_s=quantum_s), bounded))
    demoted = told.scheduler(protects=False)
    name = f"a quantum of {told.quantum_s / 60:g} minutes that only demotes"
    rows.append(_thrashing_row(told, seeds, name, demoted, ""))
    rows.append(_thrashing_row(told, seeds, "the listing", told.scheduler(literal=True), ""))
    return rows


def _thrashing_row(
    told: OmfsSettings, seeds: Sequence[int], name: str, scheduler: SchedulerSettings, bounded: str
) -> Row:
    hours = told.contended.hours
    until_s = hours * HOUR_S
    founds = [replay(contention(told, seed), told.machine, scheduler, until_s=until_s) for seed in seeds]
    preempted = [_preempted(found, until_s) for found in founds]
    often = np.array([float(times.sum()) / hours for times in preempted])
    saves = [found.saves / hours for found in founds]
    spent = [float((one.jobs.save_s + one.jobs.restore_s) @ one.jobs.units) / (told.nodes * until_s) for one in founds]
    owed = sum(int(times[found.workload.group == 0].sum()) for found, times in zip(founds, preempted, strict=True))
    waits_s = [float(np.nanmean(found.wait_s[found.workload.group == 0])) for found in founds]
    return Row(
        f"contention, {name}: jobs preempted an hour",
        "fewer with a quantum",
        round(float(often.mean()), 2),
        f"seeds {often.min():.3g} to {often.max():.3g}{bounded}; {np.mean(saves):.3g} by a save, the others while they "
        f"restored; {owed / len(seeds) / hours:.2g} of who is entitled; the same job up to "
        f"{max(int(times.max()) for times in preempted) / hours:.2g} times an hour; {np.mean(spent):.2%} of node time "
        f"in saves and restores; short jobs wait {np.mean(waits_s):.0f} s",
    )


def _preempted(found: Schedule, until_s: float) -> np.ndarray:
    """Return the number of times that each job was preempted."""
    told = found.jobs
    is_preempted = (told.end_s != found.end_s[told.job]) & (told.end_s < until_s)
    return np.bincount(told.job[is_preempted], minlength=len(found.workload))
