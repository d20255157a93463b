"""The promises of the paper on OMFS: entitlements within a quantum, no ping-pong, no less work than with a split."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle_omfs import Job, as_workload
from tests.simulation.test_omfs import (
    BY_WORDS,
    ENTITLED,
    FREE,
    PERCENT,
    QUANTUM_S,
    SAVE_S,
    UNITS,
    by_words,
    may_start,
    ran,
)

from gleaner.control.simulation.model import Schedule, Workload, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import CostSettings, OmfsSettings, SchedulerKind, SchedulerSettings


@settings(deadline=None)
@given(jobs=may_start, rules=by_words)
def test_what_is_vacated_was_of_an_owner_above_its_entitlement_and_had_run_for_a_quantum(
    jobs: list[Job], rules: OmfsSettings
) -> None:
    """So there is no ping-pong: who has others vacated is within its entitlement, and stays safe while it is."""
    found = ran(jobs, rules)
    told = found.jobs
    until_s = told.end_s - told.save_s  # from here on it is not its owner's
    owner = np.array([job.owner for job in jobs])[told.job]
    is_vacated = until_s != found.end_s[told.job]
    for at_s, name in {(until_s[at], owner[at]) for at in np.flatnonzero(is_vacated)}:
        held = (owner == name) & (told.start_s < at_s) & ((until_s > at_s) | (is_vacated & (until_s == at_s)))
        leaving = held & (until_s == at_s)
        left = told.units[held].sum() - told.units[leaving].sum()
        assert left + told.units[leaving].max() > ENTITLED.get(name, 0)
    if rules.quantum_protects:
        assert np.all((until_s - told.start_s)[is_vacated] >= rules.quantum_s)


@settings(deadline=None)
@given(jobs=may_start, rules=by_words)
def test_where_nothing_comes_and_nothing_ends_nobody_is_vacated_any_more(jobs: list[Job], rules: OmfsSettings) -> None:
    """A evicts B, B evicts A would go on for ever: nobody's work is ever over here."""
    endless = [replace(job, run_s=1e6) for job in jobs]
    told = ran(endless, rules, until_s=20_000).jobs
    assert not np.any((told.end_s > 5_000) & (told.end_s < 20_000))


def longest_denied_s(jobs: list[Job], found: Schedule) -> float:
    """Return the longest unbroken wait of a job while its owner held so little that it was entitled to the job."""
    told = found.jobs
    until_s = told.end_s - told.save_s
    instants = sorted({*(job.submit_s for job in jobs), *told.start_s, *until_s, *told.end_s})
    longest_s = 0.0
    for number, job in enumerate(jobs):
        denied_s = 0.0
        own = told.job == number
        of_owner = np.array([other.owner == job.owner for other in jobs])[told.job]
        for at_s, next_s in pairwise(instants):
            is_running = np.any(own & (told.start_s <= at_s) & (at_s < told.end_s))
            is_waiting = job.submit_s <= at_s and not is_running and not found.end_s[number] <= at_s
            held = told.units[of_owner & (told.start_s <= at_s) & (at_s < until_s)].sum()
            is_denied = is_waiting and job.units <= ENTITLED.get(job.owner, 0) - held
            denied_s = denied_s + next_s - at_s if is_denied else 0.0
            longest_s = max(longest_s, denied_s)
    return longest_s


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(jobs=may_start, quantum_s=st.sampled_from([0.0, 7.0, 20.0]), save_s=st.integers(0, 3), protects=st.booleans())
def test_nobody_with_fitting_demand_is_below_its_entitlement_for_longer_than_a_quantum_and_a_save(
    jobs: list[Job], quantum_s: float, save_s: float, protects: bool
) -> None:
    rules = OmfsSettings(
        percent=PERCENT,
        quantum_s=quantum_s,
        quantum_protects=protects,
        save=CostSettings(constant_s=save_s),
        restore=CostSettings(constant_s=1),
    )
    assert longest_denied_s(jobs, ran(jobs, rules)) <= save_s + (quantum_s if protects else 0)


def test_the_measure_of_being_denied_sees_who_is() -> None:
    never = BY_WORDS.model_copy(update={"quantum_s": 1000.0})
    jobs = [Job(0, 100, 10, "B"), Job(30, 10, 5, "A")]
    assert longest_denied_s(jobs, ran(jobs, never)) == 70


def test_an_owner_loses_no_more_than_is_asked_for_and_nothing_goes_round() -> None:
    """B has ten jobs on ten units, A keeps asking for more than its five: five saves, ever."""
    jobs = [Job(0, 10_000, 1, "B") for _ in range(10)] + [Job(50, 100, 1, "A") for _ in range(200)]
    found = ran(jobs, FREE)
    assert found.saves == 5
    assert np.all(np.isin(found.jobs.job[found.jobs.start_s == 50], range(10, 15)))


def test_who_lost_all_for_a_claim_may_claim_in_turn_at_the_same_instant() -> None:
    """A's claim takes B's seven units, two too many; B is below its three then, and C above its two."""
    jobs = [Job(0, 100, 7, "B")] + [Job(0, 100, 1, "C") for _ in range(3)]
    rules = BY_WORDS.model_copy(update={"quantum_s": 0.0})
    found = ran([*jobs, Job(1, 10, 3, "B"), Job(20, 10, 5, "A")], rules)
    assert found.start_s[4:].tolist() == [22, 22]
    assert found.saves == 2


def test_a_claim_on_a_machine_full_of_young_jobs_starts_after_a_quantum_and_a_save() -> None:
    jobs = [Job(0, 1000, 1, "B") for _ in range(10)] + [Job(3, 100, 5, "A")]
    assert ran(jobs, BY_WORDS).start_s[10] == QUANTUM_S + SAVE_S


def test_a_job_larger_than_the_entitlement_runs_on_idle_units_and_is_saved_when_they_are_claimed() -> None:
    found = ran([Job(0, 60, 9, "C"), Job(20, 10, 3, "B"), Job(24, 5, 4, "A")], BY_WORDS)
    assert found.start_s.tolist() == [0, 22, 24]
    assert found.end_s.tolist() == [32 + 1 + 40, 32, 29]


def utilisation(found: Schedule, until_s: float) -> float:
    return float(found.jobs.compute_s @ found.jobs.units) / (UNITS * until_s)


def busy(seed: int, *, until_s: float) -> list[Job]:
    """Owners come and go: each submits for a while what would fill the machine, then nothing."""
    chance = np.random.Generator(np.random.PCG64(seed))
    jobs: list[Job] = []
    for owner, entitled in ENTITLED.items():
        at_s = 0.0
        while at_s < until_s:
            if chance.random() < 0.5:
                for _ in range(12):
                    run_s, units = float(chance.integers(10, 100)), int(chance.integers(1, entitled + 1))
                    jobs.append(Job(at_s + float(chance.integers(0, 200)), run_s, units, owner))
            at_s += 200
    return sorted(jobs, key=lambda job: job.submit_s)


def capped(workload: Workload) -> Workload:
    """The same jobs, none of which may be preempted: nobody ever gets more than the entitlement."""
    return replace(workload, job_class=np.zeros(len(workload), np.int8))


@pytest.mark.parametrize("quantum_s", [0.0, 30.0])
def test_utilisation_is_at_least_that_of_capping_and_of_partitions_on_average(quantum_s: float) -> None:
    until_s = 2000.0
    rules = FREE.model_copy(update={"quantum_s": quantum_s})
    gains: dict[str, list[float]] = {"capping": [], "partitions": []}
    for seed in range(20):
        workload = as_workload(busy(seed, until_s=until_s), groups=list(PERCENT))
        scheduler = SchedulerSettings(kind=SchedulerKind.OMFS, omfs=rules)
        ours = utilisation(replay(workload, of_processors(UNITS), scheduler, until_s=until_s), until_s)
        cap = utilisation(replay(capped(workload), of_processors(UNITS), scheduler, until_s=until_s), until_s)
        easy = SchedulerSettings(kind=SchedulerKind.EASY)
        split = sum(
            utilisation(
                replay(workload.only(workload.group == code), of_processors(entitled), easy, until_s=until_s), until_s
            )
            for code, entitled in enumerate(ENTITLED.values())
        )
        gains["capping"].append(ours - cap)
        gains["partitions"].append(ours - split)
    for gain in gains.values():
        assert np.mean(gain) > 0.05
        assert min(gain) > -0.005
