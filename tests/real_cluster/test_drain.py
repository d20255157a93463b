"""Nodes are emptied on an admin's word, and jobs are moved on their owners', on the real cluster."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness
from tests.real_cluster import slurm_admin_harness as s

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SAVES_ITSELF = """srun sh -c 'trap "scontrol requeuehold $SLURM_JOB_ID; exit 0" USR1; while :; do sleep 0.3; done'"""
OVER = {"empty", "looked", "refused", "resumed", "stopped"}


@pytest.fixture(scope="module", autouse=True)
def nobody_else(cluster_is_up: None) -> Iterator[None]:
    """Rounds that end long after these tests; the owners' partition is known, and its entitlements are off."""
    cluster.configure(
        {
            "rounds": {"length_s": 3000, "origin_s": int(time.time()) - 5, "shortest_slice_s": 15, "poll_s": 2},
            "entitlements": {"partitions": ["shared"], "grace_s": 50},
            "migration": {"policy": "compaction", "every_s": 4, "assumed_s": 5},
        }
    )
    s.tidy()
    cluster.clear()
    yield


def ask(what: str, *nodes: str, **how: Any) -> int:
    """The number of the request."""
    return int(cluster.api("POST", f"/nodes/{what}", {"nodes": nodes, **how})["id"])


def outcome(number: int, *, timeout_s: float = 60) -> dict[str, Any]:
    """Return the drain once it has ended."""

    def over() -> dict[str, Any] | None:
        row = cluster.api("GET", f"/drains/{number}")
        return dict(row) if row["phase"] in OVER else None

    found: dict[str, Any] = cluster.until(f"drain {number} to end", over, timeout_s=timeout_s, every_s=0.5)
    return found


def node_state(node: str) -> str:
    """Return the node's state in Slurm's words, with the reason if there is one."""
    return cluster.run(
        "head", "sinfo", "--noheader", f"--nodes={node}", "--partition=regular", "--format=%T %E"
    ).strip()


def runs_on(job: str) -> str:
    """The node of one of Slurm's jobs that runs; empty if it does not."""
    found = cluster.slurm_job(job)
    return str(found["nodes"]) if found["job_state"] == ["RUNNING"] else ""


def wait_until_it_runs(job: str) -> str:
    node: str = cluster.until(f"job {job} to run", lambda: runs_on(job), timeout_s=60, every_s=0.5)
    return node


def test_a_node_with_four_running_jobs_is_empty_in_less_than_a_minute_and_nothing_starts_anew() -> None:
    jobs = cluster_harness.submit_pi(4, cpus=1)
    (node,) = set(cluster_harness.wait_running(jobs).values())
    dry = outcome(ask("drain", node, dry_run=True))
    assert (dry["said"], [job["deed"] for job in dry["jobs"]]) == ("", ["vacate"])
    assert "drain" not in node_state(node)

    drain = cluster.glean("drain", node)
    took_s = drain["ended_s"] - drain["asked_s"]
    assert drain["phase"] == "empty"
    assert took_s < 60
    assert [(job["at_first"], job["left"]) for job in drain["jobs"]] == [(4, 0)]
    assert node_state(node) == "drained gleaner: drained by root"
    assert cluster.containers(node) == []
    (row,) = [each for each in cluster.glean("nodes")["nodes"] if each["name"] == node]
    assert row["drained"] == "by root"

    elsewhere = cluster_harness.wait_running(jobs)
    assert node not in elsewhere.values()
    for job in jobs:
        first, second = cluster_harness.job(job)["attempts"]
        assert first["ending"] == "saved"
        assert second["restored_from"], "it began anew"
    # A control that drains lives: the dead man's switch, here called once more beside its timer, leaves the node alone.
    cluster.run("head", "/usr/local/libexec/gleaner/deadman", user="gleaner-slurm-admin")
    assert node_state(node).startswith("drained")
    assert cluster.glean("resume", node)["phase"] == "resumed"
    assert "drain" not in node_state(node)
    print(f"\nfour jobs: the node was empty after {took_s:.1f} s")
    for job in jobs:
        cluster.api("POST", f"/jobs/{job}/cancel")


@pytest.mark.extended
def test_owners_jobs_leave_as_they_declare_and_an_undeclared_one_is_left_alone_even_if_control_is_killed() -> None:
    cluster.run("head", "rm", "-f", "/run/gleaner/alive")  # nobody enforces entitlements: what is submitted starts
    preemptible = s.submit("--ntasks=1", declared="preemptible")
    node = wait_until_it_runs(preemptible)
    checkpointable = s.submit("--ntasks=1", declared="checkpointable", script=SAVES_ITSELF)
    # It ends when the drain has found it, whenever that is.
    until_told = "while [ ! -e /tmp/end-$SLURM_JOB_ID ]; do sleep 0.3; done"
    foreign = s.submit("--ntasks=1", f"--nodelist={node}", user="bob", script=until_told)
    assert wait_until_it_runs(checkpointable) == wait_until_it_runs(foreign) == node, "Slurm fills one node first"
    number = ask("drain", node)
    cluster.kill_control()  # whoever comes next goes on
    cluster.until(
        "all three to be found", lambda: len(cluster.api("GET", f"/drains/{number}")["jobs"]) == 3, timeout_s=60
    )
    try:
        cluster.run(node, "touch", f"/tmp/end-{foreign}")
        assert outcome(number, timeout_s=70)["phase"] == "empty"
    finally:
        cluster.run(node, "rm", "-f", f"/tmp/end-{foreign}")
    assert cluster.regular_job(foreign).state == "COMPLETED"
    for job in (preemptible, checkpointable):
        assert wait_until_it_runs(job) not in {"", node}
        assert cluster.slurm_job(job)["restart_cnt"] == 1
    done = {job["job"]: job for job in cluster.api("GET", f"/drains/{number}")["jobs"]}
    assert {job: row["deed"] for job, row in done.items()} == {
        preemptible: "requeue", checkpointable: "save", foreign: "wait",
    }  # fmt: skip
    assert done[foreign]["told_s"] is None
    assert outcome(ask("resume", node))["phase"] == "resumed"
    cluster.run("head", "scancel", preemptible, checkpointable)


@pytest.mark.extended
def test_a_job_is_migrated_where_its_owner_says_and_partly_used_agents_are_emptied() -> None:
    began_s = time.time()
    large = cluster_harness.submit_pi(2, cpus=4)
    first, second = cluster_harness.wait_running(large).values()
    (small,) = cluster_harness.submit_pi(1, cpus=2)
    (here,) = cluster_harness.wait_running([small]).values()
    there = second if here == first else first
    (neither,) = set(cluster.NODES) - {first, second}
    with pytest.raises(cluster.ClusterError, match=r"no live agent there has 2 cores and 20[08] MiB free"):
        cluster.glean("migrate", str(small), "--to", neither)
    assert cluster_harness.job(small)["job"]["attempt"] == 1

    cluster.glean("migrate", str(small), "--to", there)
    cluster.until(
        "it to run there", lambda: cluster_harness.running_on([small]).get(small) == there, timeout_s=40, every_s=0.5
    )
    assert [(a["node"], a["ending"]) for a in cluster_harness.job(small)["attempts"]] == [
        (here, "saved"),
        (there, None),
    ]
    assert cluster_harness.job(small)["attempts"][1]["restored_from"]

    # Two agents, of which each has 2 of 6 cores in use: one is emptied by the policy, and ends.
    (tiny,) = cluster_harness.submit_pi(1, cpus=2)
    assert cluster_harness.wait_running([tiny]) == {tiny: here}
    for job in large:
        cluster.api("POST", f"/jobs/{job}/cancel")
    cluster.until("one agent to end", lambda: len(cluster_harness.agents()) == 1, timeout_s=90)
    assert len(set(cluster_harness.wait_running([small, tiny]).values())) == 1
    decided = [
        row
        for job in (small, tiny)
        for row in cluster.api("GET", f"/decisions?subject=job%20{job}&limit=10")
        if row["at_s"] >= began_s
    ]
    (decision,) = decided
    assert (decision["kind"], decision["policy"]) == ("migrate", "moving")
    assert decision["answer"]["move"]["gain_core_s"] > decision["answer"]["move"]["cost_core_s"] > 0
