"""OMFS on the real cluster: owners use what others leave, and give it back at once when it is claimed.

Three nodes of six CPUs: physics (alice) is entitled to nine, chemistry (bob) to five, biology (carol) to three. Slurm's
own preemption is off: it is our policy that acts.
"""

import time
from collections.abc import Iterator

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness, owners_harness
from tests.real_cluster import slurm_admin_harness as s
from tests.real_cluster.cluster_harness import ROUND_S

from gleaner.control.policy.replay import REPLAYS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SETTINGS = owners_harness.SETTINGS


@pytest.fixture
def enforced(quiet: None) -> Iterator[None]:
    try:
        owners_harness.enforce()
        yield
    finally:
        s.no_jobs()
        owners_harness.forget("alice", "bob", "carol")


PI = {1: "3.1410128", 2: "3.1419612", 3: "3.1410248"}
"""By seed, what `images/pi/pi.py --samples 10000000` finds where nothing interrupts it."""


def pi(seed: int) -> str:
    """Return the result of a job that nobody interrupts."""
    return f"{PI[seed]} from {owners_harness.SAMPLES} points, seed {seed}\n"


def test_an_entitled_account_gets_its_share_back_within_one_grace_time_and_every_victim_ends_right(
    enforced: None,
) -> None:
    """Agents on one node, chemistry on two under `glean run`; then physics and biology ask for all that is theirs."""
    began_s = time.time()
    ours = cluster_harness.submit_pi(2, cpus=3)
    cluster_harness.wait_running(ours)
    own = [owners_harness.own_run("bob", seed) for seed in (1, 2)]
    owners_harness.wait_until_they_run(*own)
    claims = [
        owners_harness.sleeper("alice", 6),
        owners_harness.sleeper("alice", 3),
        owners_harness.sleeper("carol", 3),
    ]
    owners_harness.wait_until_they_run(*claims)
    decided = owners_harness.decisions_about(*claims, *own, since_s=began_s)
    victims = {victim for one in decided.values() for each in one["answer"]["decisions"] for victim in each["victims"]}
    assert len(victims & set(own)) == 1 and victims - set(own), "agents go first, then what is above its share"
    for one in decided.values():
        assert REPLAYS[one["policy"]](one["given"]) == one["answer"], "a decision replays to the same"
    cluster.run("head", "scancel", *claims)
    owners_harness.until_they_complete("bob", *own, timeout_s=240)
    assert sorted(owners_harness.restarts(own).values()) == [0, 1], "one of chemistry's is preempted, and no more"
    for seed, job in enumerate(own, start=1):
        assert owners_harness.result_of("bob", job) == pi(seed)
    cluster_harness.wait_running(ours)
    for number in ours:
        first, *later = cluster_harness.job(number)["attempts"]
        assert first["ending"] == "saved"
        assert later[0]["restored_from"], "it began anew"


@pytest.mark.extended
def test_no_more_is_preempted_than_is_asked_for_and_undeclared_work_is_never_touched(enforced: None) -> None:
    fixed = owners_harness.sleeper("bob", 5)
    over = [owners_harness.preemptible("bob", 3) for _ in range(3)]
    below = owners_harness.sleeper("carol", 3)
    owners_harness.wait_until_they_run(fixed, *over, below)
    refused = owners_harness.sleeper("bob", 2)
    claim = owners_harness.sleeper("alice", 3)
    owners_harness.wait_until_they_run(claim)
    assert owners_harness.runs(fixed, below)
    assert sorted(owners_harness.restarts(over).values()) == [0, 0, 1], (
        "three CPUs are claimed: one job of three is enough"
    )
    shown = cluster.run("head", "squeue", "--noheader", f"--jobs={refused}", "--Format=State,admin_comment:200")
    assert "PENDING" in shown
    assert "chemistry may have 5 CPUs in non-preemptible jobs and has 5, this one asks for 2" in shown
    why = cluster.run("head", "glean", "why", f"slurm:{refused}", user=cluster.SERVICE_USER)
    assert "declare it preemptible or checkpointable" in why


@pytest.mark.extended
def test_a_group_that_comes_second_starts_within_one_round_though_the_first_has_a_thousand_jobs(quiet: None) -> None:
    cluster.configure({"groups": {"entitled": {"first": 50, "second": 50}}})
    words = ("--image", cluster_harness.PI, "--name", "pi", "--cpus", "1", "--memory-mib", "50")
    after = ("--samples", "5000000", "--seed", "{index}", "--out", ".")
    cluster.glean("submit", "--group", "first", *words, "--array", "1-1000", after=after)
    cluster.until("the first group to run", cluster_harness.agents, timeout_s=60)
    jobs = list(cluster.glean("submit", "--group", "second", *words, "--array", "1-10", after=after)["jobs"])
    cluster.until(
        "the second group to start",
        lambda: any(state != "New" for state in cluster_harness.states(jobs)),
        timeout_s=10 * ROUND_S,
    )
    rows = [cluster_harness.job(job) for job in jobs]
    claimed_s = min(attempt["claimed_s"] for row in rows for attempt in row["attempts"])
    assert claimed_s - rows[0]["job"]["submitted_s"] <= ROUND_S
