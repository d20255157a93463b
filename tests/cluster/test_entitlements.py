"""OMFS on the real cluster: owners use what others leave, and give it back at once when it is claimed.

Three nodes of six CPUs: physics (alice) is entitled to nine, chemistry (bob) to five, biology (carol) to three. Slurm's
own preemption is off: it is our policy that acts.
"""

import time
from collections.abc import Iterator

import pytest
from demo import cluster
from tests.cluster import owners, scenes
from tests.cluster import stewarding as s
from tests.cluster.scenes import ROUND_S

from gleaner.control.policy.replaying import REPLAYS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture
def governed(quiet: None) -> Iterator[None]:
    try:
        owners.govern()
        yield
    finally:
        s.no_jobs()
        owners.forget("alice", "bob", "carol")


PI = {1: "3.1416534933333335", 2: "3.141580186666667", 3: "3.1415338933333334"}
"""By seed, what `images/pi/pi.py --samples 300000000` finds where nothing interrupts it."""


def pi(seed: int) -> str:
    """What an uninterrupted run leaves."""
    return f"{PI[seed]} from {owners.SAMPLES} points, seed {seed}\n"


def test_an_entitled_account_gets_its_share_back_within_one_grace_time_and_every_victim_ends_right(
    governed: None,
) -> None:
    """Agents on one node, chemistry on two under `glean run`; then physics and biology ask for all that is theirs."""
    began_s = time.time()
    own = [owners.own_run("bob", seed) for seed in (1, 2)]
    owners.wait_until_they_run(*own)
    ours = scenes.submit_pi(2, samples=str(owners.SAMPLES), cpus=3)
    scenes.wait_running(ours)
    time.sleep(5)
    claims = [owners.sleeper("alice", 6), owners.sleeper("alice", 3), owners.sleeper("carol", 3)]
    owners.wait_until_they_run(*claims)
    assert owners.runs(own[0]) != owners.runs(own[1]), "one of chemistry's gives way, and no more"
    decided = owners.decisions_about(*claims, *own, since_s=began_s)
    victims = {
        victim for one in decided.values() for ruling in one["answer"]["rulings"] for victim in ruling["victims"]
    }
    assert len(victims & set(own)) == 1 and victims - set(own), "agents go first, then what is above its share"
    for one in decided.values():
        assert REPLAYS[one["policy"]](one["given"]) == one["answer"], "a decision replays to the same"
    cluster.run("head", "scancel", *claims)
    cluster.until("chemistry's jobs to end", lambda: {owners.state(job) for job in own} == {"COMPLETED"}, timeout_s=240)
    cluster.until("our jobs to end", lambda: set(scenes.states(ours)) == {"Complete"}, timeout_s=120)
    assert sorted(owners.restarts(own).values()) == [0, 1]
    for seed, job in enumerate(own, start=1):
        assert owners.result_of("bob", job) == pi(seed)
    for job in ours:
        assert scenes.job(job)["job"]["outcome"] == "succeeded"
        assert all(attempt["ending"] in {"saved", "succeeded"} for attempt in scenes.job(job)["attempts"])


def test_exactly_what_is_asked_for_is_given_back_and_undeclared_work_is_never_touched(governed: None) -> None:
    fixed = owners.sleeper("bob", 5)
    over = [owners.preemptible("bob", 3) for _ in range(3)]
    below = owners.sleeper("carol", 3)
    owners.wait_until_they_run(fixed, *over, below)
    refused = owners.sleeper("bob", 2)
    claim = owners.sleeper("alice", 3)
    owners.wait_until_they_run(claim)
    assert owners.runs(fixed, below)
    assert sorted(owners.restarts(over).values()) == [0, 0, 1], "three CPUs are claimed: one job of three is enough"
    shown = cluster.run("head", "squeue", "--noheader", f"--jobs={refused}", "--Format=State,admin_comment:200")
    assert "PENDING" in shown
    assert "chemistry may have 5 CPUs in non-preemptible jobs and has 5, this one asks for 2" in shown
    why = cluster.run("head", "glean", "why", f"slurm:{refused}", user=cluster.SERVICE_USER)
    assert "declare it preemptible or checkpointable" in why


def test_a_job_larger_than_its_owners_entitlement_runs_on_idle_cpus_and_is_saved_when_they_are_claimed(
    governed: None,
) -> None:
    large = owners.own_run("carol", 3)
    rest = [owners.sleeper("bob", 5), owners.sleeper("alice", 6)]
    owners.wait_until_they_run(large, *rest)
    time.sleep(4)
    claim = owners.sleeper("alice", 3)
    owners.wait_until_they_run(claim)
    assert owners.restarts([large]) == {large: 1}
    cluster.run("head", "scancel", claim)
    cluster.until("the large job to end", lambda: owners.state(large) == "COMPLETED", timeout_s=180)
    assert owners.result_of("carol", large) == pi(3)


def test_a_claim_that_asks_for_a_feature_takes_back_a_node_that_has_it(governed: None) -> None:
    over = [owners.preemptible("bob", 6) for _ in range(3)]
    owners.wait_until_they_run(*over)
    (there,) = [job for job in over if cluster.slurm_job(job)["nodes"] == "node2"]
    cluster.run("head", "scontrol", "update", "NodeName=node2", "AvailableFeatures=fast,amd", "ActiveFeatures=fast,amd")
    try:
        claim = owners.sleeper("alice", 6, "--constraint=amd&fast")
        nowhere = owners.sleeper("carol", 3, "--nodelist=node3", "--constraint=fast")
        owners.wait_until_they_run(claim)
        assert cluster.slurm_job(claim)["nodes"] == "node2"
        assert owners.restarts(over) == {job: int(job == there) for job in over}
        why = cluster.run("head", "glean", "why", f"slurm:{nowhere}", user=cluster.SERVICE_USER)
        assert "too few of the nodes that it may use can be used now" in why
    finally:
        cluster.run("head", "scontrol", "update", "NodeName=node2", "AvailableFeatures=", "ActiveFeatures=")


def test_what_falls_free_goes_to_the_claim_though_another_job_is_ahead_of_it(governed: None) -> None:
    over = [owners.preemptible("bob", 6) for _ in range(3)]
    owners.wait_until_they_run(*over)
    rival = owners.sleeper("bob", 6)
    # Past us, by an admin: with our mark on it, it would be held again.
    cluster.run("head", "scontrol", "update", f"JobId={rival}", "AdminComment=none")
    cluster.run("head", "scontrol", "release", rival)
    cluster.run("head", "scontrol", "update", f"JobId={rival}", "Priority=900000")
    claim = owners.sleeper("alice", 6)
    owners.wait_until_they_run(claim)
    assert owners.state(rival) == "PENDING"


def test_a_victim_that_cannot_be_saved_goes_on_and_the_next_one_is_chosen(governed: None) -> None:
    """It ignores the signal; after its grace time another one is asked."""
    owners.govern(grace_s=8, quantum_s=3600)
    options = ("--partition=shared", "--cpus-per-task=6", "--mem=200", "--time=20", "--requeue", owners.CHECKPOINTABLE)
    deaf = "srun --ntasks=1 --cpus-per-task=6 sh -c 'trap \"\" USR1; sleep 600'"
    stubborn = [cluster.sbatch(*options, script=deaf, user="bob") for _ in range(2)]
    owners.wait_until_they_run(*stubborn)
    time.sleep(2)
    willing = owners.own_run("bob", 4)
    owners.wait_until_they_run(willing)
    claim = owners.sleeper("alice", 6)
    owners.wait_until_they_run(claim, timeout_s=90)
    assert owners.runs(*stubborn)
    assert owners.restarts(stubborn) == dict.fromkeys(stubborn, 0)


def test_control_killed_while_jobs_give_way_goes_on_where_it_was(governed: None) -> None:
    over = [owners.preemptible("bob", 6) for _ in range(3)]
    owners.wait_until_they_run(*over)
    claims = [owners.sleeper("alice", 6), owners.sleeper("alice", 3), owners.sleeper("carol", 3)]
    for _ in range(3):
        time.sleep(1.5)
        cluster.restart_control()
    owners.wait_until_they_run(*claims, timeout_s=90)
    assert sorted(owners.restarts(over).values()) == [0, 1, 1]


def test_slurmctld_that_stands_still_while_jobs_give_way_costs_nobody_more(governed: None) -> None:
    """It is stopped for half a minute when the first of them has gone; its programs time out meanwhile.

    Where that cuts off its talk with munge about a claim that it starts, it has the claim begin again much later.
    """
    over = [owners.preemptible("bob", 6) for _ in range(3)]
    owners.wait_until_they_run(*over)
    claims = [owners.sleeper("alice", 6), owners.sleeper("alice", 3), owners.sleeper("carol", 3)]
    cluster.until("the first to give way", lambda: not owners.runs(*over), timeout_s=owners.WITHIN_S, every_s=0.2)
    cluster.run("head", "pkill", "-STOP", "-x", "slurmctld")
    try:
        time.sleep(30)
    finally:
        cluster.run("head", "pkill", "-CONT", "-x", "slurmctld")
    took_s = owners.until_they_run(*claims, timeout_s=90 + owners.LAUNCH_AGAIN_S)
    was_cut_off = any(owners.restarts(claims).values())
    assert took_s <= scenes.unhurried(90) + (owners.LAUNCH_AGAIN_S if was_cut_off else 0)
    assert sorted(owners.restarts(over).values()) == [0, 1, 1]
    assert cluster.api("GET", "/owners")["problem"] == ""


def test_a_group_that_comes_second_starts_within_one_round_though_the_first_has_a_thousand_jobs(quiet: None) -> None:
    cluster.configure({"groups": {"entitled": {"first": 50, "second": 50}}})
    words = ("--image", owners.PI, "--name", "pi", "--cpus", "1", "--memory-mib", "50")
    after = ("--samples", "5000000", "--seed", "{index}", "--out", ".")
    cluster.glean("submit", "--group", "first", *words, "--array", "1-1000", after=after)
    cluster.until("the first group to run", scenes.agents, timeout_s=60)
    time.sleep(5)
    jobs = list(cluster.glean("submit", "--group", "second", *words, "--array", "1-10", after=after)["jobs"])
    began_s = time.monotonic()
    cluster.until(
        "the second group to start", lambda: any(state != "New" for state in scenes.states(jobs)), timeout_s=ROUND_S
    )
    assert time.monotonic() - began_s <= scenes.unhurried(ROUND_S)
