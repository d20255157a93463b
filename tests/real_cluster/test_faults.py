"""Nothing is lost, whatever dies; and a dead agent leaves nothing on its node."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness, owners_harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SAMPLES = "10000000"
"""Half a minute, with the rests."""
LEASE_S = 20
"""Of the demo's settings."""


@pytest.mark.extended
def test_the_jobs_of_a_node_that_is_killed_outright_complete_elsewhere(one_round: None) -> None:
    jobs = cluster_harness.submit_pi(2, samples=SAMPLES, cpus=6)
    job, victim = next(iter(cluster_harness.wait_running(jobs).items()))
    try:
        cluster.kill_node(victim)
        cluster.until(
            "the lost job to wait again", lambda: cluster_harness.states([job])[0] in {"New", "Saved"}, timeout_s=60
        )
        assert cluster_harness.job(job)["attempts"][-1]["ending"] == "lost"
        assert cluster_harness.job(job)["failures"] == 0
        cluster.until("all jobs to complete", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=300)
        row = cluster_harness.job(job)
        assert row["job"]["outcome"] == "succeeded"
        assert row["attempts"][-1]["node"] != victim
    finally:
        cluster.start_node(victim)
    cluster.until("nothing of ours to be left there", lambda: not cluster.containers(victim), timeout_s=120)


def test_control_killed_and_restarted_in_mid_campaign_loses_nothing(one_round: None) -> None:
    jobs = cluster_harness.submit_pi(3, samples=SAMPLES, cpus=3)
    cluster_harness.wait_running(jobs)
    assert cluster_harness.states(jobs) == ["Running"] * 3
    cluster.kill_control()
    cluster.until("all jobs to complete", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=300)
    assert all(cluster_harness.job(job)["job"]["outcome"] == "succeeded" for job in jobs)
    endings = [[attempt["ending"] for attempt in cluster_harness.job(job)["attempts"]] for job in jobs]
    assert endings == [["succeeded"]] * 3, "a live attempt was taken for dead"


@pytest.mark.extended
@pytest.mark.parametrize("after_s", [0.2, 0.5, 1.0])
def test_control_killed_in_the_middle_of_a_rerun_runs_all_its_jobs_again_or_none(quiet: None, after_s: float) -> None:
    words = ("--group", "physics", "--image", cluster_harness.PI, "--name", "again", "--hold", "--array", "1-5000")
    campaign = str(cluster.glean("submit", *words, after=("true",))["campaign"])
    cluster.glean("cancel", "--campaign", campaign)
    rerun = ("rerun", "--campaign", campaign, "--only", "1-5000")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(cluster.glean, *rerun)
        time.sleep(after_s)  # no event tells when control writes
        cluster.kill_control()
        asked.exception()  # its answer may be lost
    cluster.until("control to lead again", cluster.is_leading, timeout_s=60)
    ended = cluster.api("GET", f"/campaigns/{campaign}")["cancelled"]
    assert ended in {0, 5000}
    if ended:
        assert len(cluster.glean(*rerun)["jobs"]) == 5000
    cluster.glean("cancel", "--campaign", campaign)
    assert cluster.api("GET", f"/campaigns/{campaign}")["cancelled"] == 5000


@pytest.mark.extended
def test_a_fetch_in_which_control_is_killed_is_taken_up_again(one_round: None) -> None:
    jobs = cluster_harness.submit_pi(3, samples=SAMPLES, cpus=3)
    cluster.until("all jobs to complete", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=300)
    campaign, token = cluster_harness.job(jobs[0])["job"]["campaign"], "/tmp/alices-token"
    cluster.run("head", "install", "--owner=alice", "--mode=600", f"{cluster.TOKEN_FILE}-physics", token)
    words = f"env GLEANER_CLIENT__TOKEN_FILE={token} glean results --campaign {campaign} --to /tmp/fetched"
    cluster.signal_web("STOP")  # so the fetch waits for its answer
    begin = f"{words} >/dev/null 2>&1 & until pgrep -u alice -f '[g]lean results'; do sleep 0.1; done"
    cluster.run("head", "sh", "-c", begin, user="alice")
    cluster.signal_web("KILL")
    cluster.kill_control()
    cluster.until("control to lead again", cluster.is_leading, timeout_s=60)
    fetch = partial(cluster.run, "head", *words.split(), user="alice")
    cluster.until("the results", fetch, timeout_s=60)
    assert fetch() == "3 results already there, not fetched again\n"
    assert len(cluster.run("head", "find", "/tmp/fetched", "-name", "pi.txt").split()) == 3
    cluster.run("head", "rm", "-r", "/tmp/fetched", token)


@pytest.mark.extended
def test_agents_claim_and_keep_jobs_while_the_peoples_door_hangs_and_is_killed_and_the_page_comes_back(
    one_round: None,
) -> None:
    jobs = cluster_harness.submit_pi(2 * len(cluster.NODES), samples=SAMPLES)
    (node, *_) = cluster_harness.wait_running(jobs[:1]).values()
    first, began_s = set(cluster.containers(node)), time.time()
    control, web = cluster.control_pid(), cluster.web_pid()
    cluster.signal_web("STOP")
    cluster.until("the node's next job", lambda: set(cluster.containers(node)) - first, timeout_s=200)
    cluster_harness.sleep_until(began_s + 2 * LEASE_S)
    cluster.signal_web("KILL")
    cluster.until("a new people's door", lambda: cluster.web_pid() not in {"", web}, timeout_s=30)
    cluster.until("the page to answer", lambda: cluster.page_status() == 200, timeout_s=60)
    cluster.until("all jobs to complete", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=300)
    endings = [[attempt["ending"] for attempt in cluster_harness.job(job)["attempts"]] for job in jobs]
    assert endings == [["succeeded"]] * len(jobs), "an agent was not heard, and lost its job"
    assert cluster.control_pid() == control, "control went with the people's door"


def test_a_killed_agent_leaves_nothing_of_ours_to_the_next_regular_job(one_round: None) -> None:
    jobs = cluster_harness.submit_pi(1)
    (node,) = cluster_harness.wait_running(jobs).values()
    assert cluster.containers(node)
    cluster.run(node, "pkill", "-KILL", "-f", "glean-agent run")
    regular = cluster.sbatch(f"--nodelist={node}", "--exclusive", "--time=10", script="sleep 600", user="alice")
    cluster.until("the regular job", lambda: cluster_harness.has_started(regular), timeout_s=90)
    assert cluster.containers(node) == []
    assert cluster.run(node, "sh", "-c", "pgrep -f [p]i.py || true").strip() == ""
    cluster_harness.end(regular)


def test_a_job_that_slurm_preempts_is_saved_within_the_grace_time(one_round: None) -> None:
    jobs = cluster_harness.submit_pi(1)
    (node,) = cluster_harness.wait_running(jobs).values()
    regular = cluster.sbatch(f"--nodelist={node}", "--exclusive", "--time=2", script="sleep 10", user="alice")
    cluster.until("the regular job", lambda: cluster_harness.has_started(regular), timeout_s=100)
    assert owners_harness.waited_s(regular) <= 75, "the grace time of the demo is 60 s"
    row = cluster_harness.job(jobs[0])
    assert row["attempts"][0]["ending"] == "saved"
    assert row["checkpoints"]
    assert row["failures"] == 0
