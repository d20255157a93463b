"""A job saved on one node and completed on another gives the identical result, and really went on."""

from pathlib import Path

import pytest
from demo import cluster, proof, reference
from demo.campaign import left_by as files_and_log
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

RUNS = 6


@pytest.fixture(scope="module")
def references() -> tuple[list[reference.Wanted], list[proof.Run]]:
    return reference.references()


def left_by(job: int, results: Path) -> proof.SlicedRun:
    shown = cluster_harness.job(job)
    attempts = [a for a in shown["attempts"] if a["started_s"] is not None]
    return proof.SlicedRun(
        run=files_and_log(shown, shown["job"]["index"], results),
        nodes=[a["node"] for a in attempts],
        restores=sum(a["restored_from"] is not None for a in attempts),
    )


def test_a_job_saved_on_one_node_and_completed_on_another_gives_the_identical_result(
    quiet: None, references: tuple[list[reference.Wanted], list[proof.Run]], tmp_path: Path
) -> None:
    wanted, whole = references
    events = wanted[0].events
    cluster.set_preemption(on=False)
    cluster.configure({"rounds": {"length_s": 45, "shortest_slice_s": 10}})
    elsewhere = cluster_harness.occupy(["node2", "node3"])
    campaign, jobs = cluster_harness.submit_pythia(f"1-{RUNS}", events, cpus=1)
    assert set(cluster_harness.wait_running(jobs[:1]).values()) == {"node1"}
    # Regular work wants node1 and node2 next, and leaves node3: the second slices must be there.
    next_ = cluster_harness.occupy(["node1", "node2"], wait=False)
    cluster.run("head", "scancel", elsewhere)
    cluster.until("regular work to have node1", lambda: cluster_harness.has_started(next_), timeout_s=80)
    cluster.until("a second slice on node3", lambda: "node3" in cluster_harness.running_on(jobs).values(), timeout_s=60)
    cluster.run("head", "scancel", next_)
    cluster.until("the campaign to end", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=900)

    results = cluster.fetch_results(campaign, tmp_path / "results")
    runs = [left_by(job, results) for job in jobs]
    pace = proof.pace(zip((run.run for run in runs), whole, strict=False))
    for job, run, uninterrupted in zip(jobs, runs, whole, strict=False):
        assert proof.doubts(run, uninterrupted, events=events, at_pace=pace) == [], f"job {job} on {run.nodes}"


@pytest.mark.extended
def test_a_fresh_start_in_place_of_a_restore_is_found_out(
    quiet: None, references: tuple[list[reference.Wanted], list[proof.Run]], tmp_path: Path
) -> None:
    """The proof must be able to fail: here all that was saved is broken, so the job has to start over."""
    wanted, whole = references
    events = wanted[0].events
    cluster.configure({"rounds": {"length_s": 45, "shortest_slice_s": 10}})
    campaign, jobs = cluster_harness.submit_pythia("1-1", events, cpus=1)
    company = cluster_harness.submit_pi(
        cluster_harness.IDLE_CPUS - 1, cpus=1
    )  # else the run is done before its first round ends
    cluster_harness.wait_running(jobs)
    cluster.until("the first slice's end", lambda: cluster_harness.states(jobs) == ["Saved"], timeout_s=80)
    packs = f"/srv/gleaner/jobs/{jobs[0]}/attempt-1/checkpoint-*/blocks.pack"
    cluster.run("head", "sh", "-c", f"for pack in {packs}; do echo broken >> $pack; done", user=cluster.SERVICE_USER)
    cluster.glean("cancel", *(str(job) for job in company))
    cluster.until("the job to end", lambda: cluster_harness.states(jobs) == ["Complete"], timeout_s=300)
    row = cluster_harness.job(jobs[0])
    assert any("broken" in event["what"] + event["detail"] for event in row["events"])
    results = cluster.fetch_results(campaign, tmp_path / "results")
    run = left_by(jobs[0], results)
    assert proof.files_differ(run.run, whole[0]) == []  # the result is right all the same
    assert any("started 2 times" in doubt for doubt in proof.doubts(run, whole[0], events=events))
