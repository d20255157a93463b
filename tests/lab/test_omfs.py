"""The promises of OMFS, on the experiment's own machine."""

import pytest

from gleaner.lab.experiments import omfs
from gleaner.lab.experiments.catalog import settings_of
from gleaner.lab.experiments.comparison import Comparison

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def told() -> omfs.OmfsSettings:
    return omfs.OmfsSettings.model_validate(settings_of("omfs"))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return omfs.run(settings_of("omfs"), quick=True)


def ours(comparison: Comparison, *words: str) -> list[float]:
    """The figures of the rows that have all of these words, in order."""
    return [float(row.ours or 0) for row in comparison.rows if all(word in row.what for word in words)]


@pytest.mark.slow
@pytest.mark.parametrize("young", [False, True])
def test_an_owner_has_its_entitlement_within_a_quantum_and_a_save(told: omfs.OmfsSettings, young: bool) -> None:
    waits_s = [omfs.time_to_entitlement_s(told, seed, young=young) for seed in range(8)]
    assert max(waits_s) <= told.quantum_s + told.save_s
    assert min(waits_s) >= told.save_s
    assert (max(waits_s) > told.save_s) == young


@pytest.mark.slow
def test_a_large_job_starts_at_once_is_saved_once_and_computes_all_it_had_to(comparison: Comparison) -> None:
    large = [row.ours for row in comparison.rows if row.what.startswith("a job of 96 nodes")]
    assert large == [0.0, 120.0, "1, 14400"]


@pytest.mark.slow
def test_utilisation_is_at_least_that_of_capping_and_of_partitions(comparison: Comparison) -> None:
    shared, capping, partitions = (ours(comparison, "load", one) for one in ("OMFS", "capping", "partitions"))
    for one, cap, part in zip(shared, capping, partitions, strict=False):
        assert one > max(cap, part)


@pytest.mark.slow
def test_a_longer_quantum_means_fewer_saves(comparison: Comparison) -> None:
    often = ours(comparison, "contention", "quantum")[:4]
    assert sorted(often, reverse=True) == often


@pytest.mark.slow
def test_saves_are_bounded_by_the_quantum(told: omfs.OmfsSettings, comparison: Comparison) -> None:
    often = ours(comparison, "contention", "quantum")[:4]
    for quantum_s, jobs_an_hour in zip(told.contended.quanta_s[1:], often[1:], strict=True):
        running = told.nodes / told.contended.nodes
        assert jobs_an_hour <= running * 3600 / (quantum_s + told.save_s)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures() -> None:
    settings = settings_of("omfs") | {"seeds": 1}
    assert omfs.run(settings, quick=True) == omfs.run(settings, quick=True)
