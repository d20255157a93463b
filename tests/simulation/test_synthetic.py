"""Workloads that are made have the distributions, the load and the owners they are asked for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import PCG64, Generator

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Workload, of_nodes, of_processors
from gleaner.control.simulation.workloads import lublin_feitelson, synthetic
from gleaner.control.simulation.workloads.synthetic import (
    COMMON_LIMITS_S,
    Constant,
    Distribution,
    Exponential,
    LimitSettings,
    LogNormal,
    OwnerSettings,
    Source,
    SyntheticSettings,
    Uniform,
    limits_s,
    make,
)

MANY = 200_000
POOL = of_processors(128)


def rng(seed: int = 1) -> Generator:
    return Generator(PCG64(seed))


def offered(workload: Workload, units: int) -> float:
    return float((workload.processors * workload.run_s).sum() / (units * workload.submit_s[-1]))


@pytest.mark.parametrize(
    ("distribution", "mean", "deviation"),
    [
        (Constant(value=7), 7, 0),
        (Exponential(mean=3600), 3600, 3600),
        (LogNormal(mean=3600, deviation=5400), 3600, 5400),
        (Uniform(low=100, high=500), 300, 400 / math.sqrt(12)),
    ],
)
def test_a_distribution_has_its_mean_and_deviation(distribution: Distribution, mean: float, deviation: float) -> None:
    values = distribution.draw(MANY, rng())
    assert values.mean() == pytest.approx(mean, rel=0.02)
    assert values.std() == pytest.approx(deviation, rel=0.05)


@settings(deadline=None)
@given(load=st.floats(0.05, 3), jobs=st.integers(50, 400), seed=st.integers(0, 99))
def test_the_jobs_arrive_at_the_load_asked_for(load: float, jobs: int, seed: int) -> None:
    made = make(SyntheticSettings(jobs=jobs, load=load, seed=seed), POOL)
    span_s = synthetic.span_s(made, POOL, load)
    assert (made.processors * made.run_s).sum() / (128 * span_s) == pytest.approx(load)
    assert 0 <= made.submit_s[0] <= made.submit_s[-1] <= span_s
    assert (np.diff(made.submit_s) >= 0).all()


def test_the_load_counts_whole_nodes_where_jobs_get_whole_nodes() -> None:
    settings = SyntheticSettings(jobs=MANY, load=0.5, sizes=Constant(value=1), run_s=Constant(value=1000))
    assert make(settings, of_nodes(10, 16)).submit_s[-1] == pytest.approx(MANY * 1000 / (10 * 0.5), rel=0.001)


@settings(deadline=None)
@given(
    source=st.sampled_from([Source.DISTRIBUTIONS, Source.LUBLIN]),
    processors=st.integers(1, 5000),
    factor=st.floats(1, 50),
    is_rounded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_job_fits_and_ends_within_its_limit(
    source: Source, processors: int, factor: float, is_rounded: bool, seed: int
) -> None:
    limits = LimitSettings(factor=Constant(value=factor), rounded=is_rounded)
    settings = SyntheticSettings(source=source, jobs=50, load=1, limits=limits, seed=seed, sizes=Exponential(mean=10))
    made = make(settings, of_processors(processors))
    assert made.processors.min() >= 1
    assert made.processors.max() <= processors
    assert (made.run_s >= 1).all()
    assert (made.run_s <= made.limit_s).all()
    assert (np.rint(made.run_s) == made.run_s).all()
    assert (np.rint(made.submit_s) == made.submit_s).all()


def test_limits_are_the_run_time_times_the_factor_rounded_up_to_what_users_ask_for() -> None:
    run_s = np.array([1.0, 100, 150, 151, 30_000, 86_400, 90_000])
    twice = LimitSettings(factor=Constant(value=2))
    assert limits_s(run_s, twice, rng()).tolist() == [300, 300, 300, 600, 64_800, 172_800, 259_200]
    assert limits_s(run_s, LimitSettings(rounded=False), rng()).tolist() == run_s.tolist()
    assert (np.diff(COMMON_LIMITS_S) > 0).all()


def test_owners_have_their_shares() -> None:
    owners = (
        OwnerSettings(user="carol", group="physics", share=1),
        OwnerSettings(user="bob", group="biology", share=2),
        OwnerSettings(user="alice", group="physics", share=1),
    )
    made = make(SyntheticSettings(jobs=MANY, owners=owners), POOL)
    assert (made.users, made.groups) == (("alice", "bob", "carol"), ("biology", "physics"))
    assert np.bincount(made.user) / MANY == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    assert np.bincount(made.group) / MANY == pytest.approx([0.5, 0.5], abs=0.01)


def test_classes_have_their_shares() -> None:
    made = make(SyntheticSettings(jobs=MANY, preemptible=0.2, checkpointable=0.5), POOL)
    shares = np.bincount(made.job_class, minlength=3) / MANY
    assert shares[[JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE]] == pytest.approx(
        [0.3, 0.2, 0.5], abs=0.01
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (SyntheticSettings(sizes=Constant(value=200)), "hardly ever at most 128 processors"),
        (SyntheticSettings(source=Source.DRAWN), "needs a trace"),
        (SyntheticSettings(preemptible=0.7, checkpointable=0.7), "are 1.4 of all jobs"),
        (SyntheticSettings(owners=(OwnerSettings(user="alice", share=0),)), "have no share"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: SyntheticSettings, why: str) -> None:
    with pytest.raises(BadScenario, match=why):
        make(settings, POOL)


def test_drawn_jobs_keep_what_belongs_together() -> None:
    source = make(SyntheticSettings(jobs=50, limits=LimitSettings(factor=Constant(value=3))), POOL)
    made = make(SyntheticSettings(source=Source.DRAWN, jobs=1000, load=0.8), POOL, source)
    rows = set(zip(source.processors.tolist(), source.run_s.tolist(), source.limit_s.tolist(), strict=True))
    assert set(zip(made.processors.tolist(), made.run_s.tolist(), made.limit_s.tolist(), strict=True)) <= rows
    assert offered(made, 128) == pytest.approx(0.8, rel=0.02)


def test_lublins_sizes_are_serial_powers_of_two_and_others_in_the_published_shares() -> None:
    size = lublin_feitelson.sizes(MANY, 128, rng())
    is_power = (size & (size - 1)) == 0
    assert (size == 1).mean() == pytest.approx(0.2927, abs=0.005)
    # Of what is drawn as any size some is a power of two by chance.
    assert 0.6686 < (is_power & (size > 1)).mean() < 0.6686 + 1 - 0.2927 - 0.6686
    # Two-stage uniform between 1.2, 5 and 7: the mean of the logarithm.
    log2 = np.log2(size[size > 1])
    assert log2.mean() == pytest.approx((0.875 * 1.2 + 5 + 0.125 * 7) / 2, abs=0.03)


def test_lublins_day_is_busiest_about_noon_and_quietest_before_dawn() -> None:
    cycle = lublin_feitelson.daily_cycle()
    assert cycle.mean() == pytest.approx(1)
    assert cycle.argmax() / 2 == pytest.approx(13, abs=1)
    assert cycle.argmin() / 2 == pytest.approx(4.5, abs=0.5)
    made = make(SyntheticSettings(source=Source.LUBLIN, jobs=MANY, load=0.8), POOL)
    assert offered(made, 128) == pytest.approx(0.8, rel=0.01)
    found = np.bincount((made.submit_s % 86_400 // 1800).astype(int), minlength=48) / MANY * 48
    assert found == pytest.approx(cycle, abs=0.15)
