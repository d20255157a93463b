"""A job saved on one node and completed on another gives the identical result, and really went on."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from demo import cluster, proof, reference
from demo.campaign import left_by as files_and_log
from tests.effort import a_few
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

RUNS = 2
RUN_S = 12
"""Processor time of a run: it goes on long after a tenth of it was seen."""
TRIAL_EVENTS = 400


@dataclass(frozen=True, slots=True)
class Whole:
    """The campaign's runs, uninterrupted."""

    events: int
    runs: list[proof.Run]


@pytest.fixture(scope="module")
def whole() -> Whole:
    """As many events as take this machine RUN_S."""
    kept = reference.folder(reference.image_id()) / f"tests-{RUN_S}s"
    kept.mkdir(parents=True, exist_ok=True)
    trial = reference.compute(reference.Wanted(1, TRIAL_EVENTS), kept / "trial")
    events = round(RUN_S * TRIAL_EVENTS / (proof.cpu_s(trial.log) or 1))
    with ThreadPoolExecutor(RUNS) as pool:
        runs = pool.map(lambda i: reference.compute(reference.Wanted(i, events), kept / f"run-{i}"), range(1, RUNS + 1))
        return Whole(events, list(runs))


def left_by(job: int, results: Path) -> proof.SlicedRun:
    shown = cluster_harness.job(job)
    attempts = [a for a in shown["attempts"] if a["started_s"] is not None]
    return proof.SlicedRun(
        run=files_and_log(shown, shown["job"]["index"], results),
        nodes=[a["node"] for a in attempts],
        restores=sum(a["restored_from"] is not None for a in attempts),
    )


def printed(job: int) -> int:
    """Return how many events a run has printed."""
    return len(proof.event_numbers(cluster.log_of(job)))


@pytest.mark.parametrize("runtime", a_few(["docker", "criu"], 1))
def test_a_campaign_saved_on_one_node_and_completed_on_another_gives_the_identical_results(
    one_round: None, whole: Whole, tmp_path: Path, runtime: str
) -> None:
    cluster_harness.set_runtime(runtime)
    campaign, jobs = cluster_harness.submit_pythia(f"1-{RUNS}", whole.events, cpus=1)
    (first,) = set(cluster_harness.wait_running(jobs).values())
    assert bool(cluster.containers(first)) == (runtime == "docker")
    cluster.until(
        "a tenth of each run", lambda: min(map(printed, jobs)) > whole.events / 10, timeout_s=300, every_s=0.3
    )
    regular = cluster_harness.occupy([first])  # the agent there saves, and the runs go on elsewhere
    cluster.until("the campaign to end", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=900)
    cluster_harness.end(regular)

    results = cluster.fetch_results(campaign, tmp_path / "results")
    for job, uninterrupted in zip(jobs, whole.runs, strict=True):
        run = left_by(job, results)
        assert proof.doubts(run, uninterrupted, events=whole.events, restores_at_least=1, at_pace=None) == [], run.nodes
