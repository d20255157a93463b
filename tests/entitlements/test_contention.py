"""Two accounts that want the same CPUs: an hour of a made cluster's time under the real loop."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.effort import IS_WHOLE
from tests.entitlements.entitlements_harness import POLL_S, EntitlementsHarness

from gleaner.control.policy.job_class import JobClass

HOUR_S = 3600.0
QUANTUM_S = 900.0
BURST_S = 60.0
CPUS = 18
BOUND_CPUS = CPUS * HOUR_S / QUANTUM_S
"""In an hour no CPU is saved more often than it has a quantum."""
SEEDS = (1, 2, 3) if IS_WHOLE else (1,)


@dataclass(frozen=True)
class Save:
    """A job of so many CPUs was told to save itself after it had run for so long without a break."""

    cpus: int
    ran_s: float


@dataclass
class Contention:
    """One account always has more waiting than the machine can run, the other one every other minute, short jobs.

    So it claims again and again what the first one has above its share. After half an hour they change places. What is
    vacated goes on later with what it had computed.
    """

    harness: EntitlementsHarness
    kind: JobClass
    draw: np.random.Generator
    left_s: dict[str, float] = field(default_factory=dict[str, float])
    computed_cpu_s: float = 0.0
    saves: list[Save] = field(default_factory=list[Save])

    def hour(self) -> None:
        """Let an hour pass."""
        cluster = self.harness.cluster
        began_s = cluster.now_s
        while (at_s := cluster.now_s - began_s) < HOUR_S:
            comes, stays = ("physics", "chemistry") if at_s < HOUR_S / 2 else ("chemistry", "physics")
            if int(at_s / BURST_S) % 2 == 0:
                self._submit(comes, upto=2, mean_s=20)
            self._submit(stays, upto=3, mean_s=900)
            self._round()
            for job in list(cluster.jobs.values()):
                if job.nodes and job.id not in cluster.goes_s:
                    self.left_s[job.id] -= POLL_S
                    self.computed_cpu_s += POLL_S * job.cpus
                    if self.left_s[job.id] <= 0:
                        cluster.end(job.id)

    def _submit(self, account: str, *, upto: int, mean_s: float) -> None:
        """Submit jobs until `upto` jobs of this account wait."""
        cluster = self.harness.cluster
        waiting = sum(1 for job in cluster.jobs.values() if job.account == account and not job.nodes)
        for _ in range(upto - waiting):
            job = f"{account}-{len(self.left_s)}"
            cluster.enter(job, account, int(self.draw.integers(1, 4)), self.kind)
            self.left_s[job] = float(self.draw.exponential(mean_s)) + 30

    def _round(self) -> None:
        cluster = self.harness.cluster
        before, acts, at_s = dict(cluster.jobs), len(cluster.acts), cluster.now_s
        self.harness.rounds()
        for act, job in cluster.acts[acts:]:
            if act == "signal":
                since_s = before[job].start_s
                assert since_s is not None
                self.saves.append(Save(before[job].cpus, at_s - since_s))

    @property
    def saved_cpus(self) -> int:
        return sum(save.cpus for save in self.saves)

    @property
    def utilisation(self) -> float:
        return self.computed_cpu_s / (CPUS * HOUR_S)


def hours(folder: Path, kind: JobClass, *, quantum_protects: bool = False) -> list[Contention]:
    """The same hours again for each way to decide: what is drawn depends on who waits, so not job by job."""
    found: list[Contention] = []
    half = {"physics": 50.0, "chemistry": 50.0}
    rules = {"entitled": half, "quantum_s": QUANTUM_S, "quantum_protects": quantum_protects}
    for seed in SEEDS:
        of_it = folder / f"{kind.name}-{quantum_protects}-{seed}"
        of_it.mkdir()
        harness = EntitlementsHarness(of_it, {**rules, "saves_per_hour_at_most": 1000})
        found.append(Contention(harness, kind, np.random.Generator(np.random.PCG64(seed))))
        found[-1].hour()
    return found


@pytest.mark.slow
def test_saves_stay_under_the_quantums_bound_and_utilisation_is_that_of_static_shares_at_least(tmp_path: Path) -> None:
    """Both for the same setting. Utilisation as a mean, since where jobs fit in differs from one hour to another."""
    static = hours(tmp_path, JobClass.NON_PREEMPTIBLE)
    shared = hours(tmp_path, JobClass.CHECKPOINTABLE, quantum_protects=True)
    for hour in shared:
        assert 0 < hour.saved_cpus <= BOUND_CPUS
        assert all(save.ran_s >= QUANTUM_S for save in hour.saves), "no job is saved twice within a quantum"
    assert not any(hour.saves for hour in static)
    assert np.mean([hour.utilisation for hour in shared]) >= np.mean([hour.utilisation for hour in static])


@pytest.mark.slow
def test_the_same_demand_goes_beyond_that_bound_where_the_quantum_does_not_protect(tmp_path: Path) -> None:
    """So the bound is the quantum's doing, not for want of claims."""
    assert all(hour.saved_cpus > BOUND_CPUS for hour in hours(tmp_path, JobClass.CHECKPOINTABLE))
