"""A storage that hangs on one node, and nodes that cannot restore what another has saved: nobody else notices."""

from collections.abc import Iterator

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]

STORAGE = "/srv/gleaner"
ROUND_S = 45
FEATURE = "gleaner_test_feature"


@pytest.fixture
def short_rounds(quiet: None) -> None:
    cluster.configure({"rounds": {"length_s": ROUND_S, "shortest_slice_s": 15}})


@pytest.fixture
def hanging(short_rounds: None) -> Iterator[str]:
    """A node whose storage hangs as soon as `bindfs` is stopped there: its calls can be killed, as NFS's can."""
    node = "node1"
    cluster.run(node, "sh", "-c", "test -e /dev/fuse || mknod /dev/fuse c 10 229")
    try:
        cluster.run(node, "bindfs", "-o", "allow_other,attr_timeout=0,entry_timeout=0", STORAGE, STORAGE)
        yield node
    finally:
        # Only what is mounted by bindfs: the storage itself stays.
        mounted = f"grep -q '^[^ ]* {STORAGE} fuse' /proc/mounts"
        cluster.run(
            node, "sh", "-c", f"pkill -CONT bindfs; sleep 1; {mounted} && umount -l {STORAGE}; pkill bindfs || true"
        )
        cluster.run("head", "sh", "-c", f"scontrol update NodeName={node} State=RESUME || true")


def node_state(node: str) -> str:
    return cluster.run("head", "sinfo", "--noheader", f"--nodes={node}", "--format=%T", "--partition=regular").strip()


def saved_once(job: int) -> None:
    cluster.until("its first save", lambda: cluster_harness.job(job)["checkpoints"], timeout_s=2 * ROUND_S)


def goes_on(job: int, *, after: int) -> dict[str, object]:
    """Wait until a later attempt has computed from a checkpoint; that attempt."""

    def found() -> dict[str, object] | None:
        attempts = [a for a in cluster_harness.job(job)["attempts"] if a["attempt"] > after and a["restored_from"]]
        return attempts[-1] if attempts and attempts[-1]["compute_s"] else None

    return dict(cluster.until("it to go on elsewhere", found, timeout_s=3 * ROUND_S))


def test_an_agent_whose_storage_hangs_is_gone_in_time_and_its_job_goes_on_elsewhere(hanging: str) -> None:
    others = cluster_harness.occupy([node for node in cluster.NODES if node != hanging])
    [job] = cluster_harness.submit_pi(1)
    saved_once(job)
    cluster.until("it to compute again", lambda: cluster_harness.running_on([job]), timeout_s=2 * ROUND_S)
    cluster_harness.early_in_a_round(ROUND_S, left_s=28)
    cluster.until("it to compute in this round", lambda: cluster_harness.running_on([job]), timeout_s=2 * ROUND_S)
    before = cluster_harness.job(job)
    [agent] = [a for a in cluster_harness.agents() if a["state"] == "RUNNING"]
    cluster.run(hanging, "pkill", "-STOP", "bindfs")
    # The node itself looks, for a look from outside takes a second on a busy machine.
    until_gone = "while pgrep -f [g]lean-agent >/dev/null; do sleep 0.1; done; date +%s.%N"
    gone_s = float(cluster.run(hanging, "timeout", "150", "sh", "-c", until_gone))
    assert gone_s <= agent["end_s"] + 2
    cluster.until("Slurm to have the node back", lambda: node_state(hanging) == "idle", timeout_s=20)
    assert cluster.containers(hanging) == []
    cluster_harness.end(others)
    attempt = goes_on(job, after=before["job"]["attempt"])
    assert attempt["node"] != hanging
    after = cluster_harness.job(job)
    assert after["failures"] == 0
    later = [a["restored_from"] for a in after["attempts"] if a["attempt"] > before["job"]["attempt"]]
    went_on_from = next(filter(None, later)).split("/")
    newest = before["checkpoints"][-1]
    assert tuple(map(int, went_on_from)) >= (newest["attempt"], newest["number"]), "what was saved last was not lost"


@pytest.fixture
def rich(short_rounds: None) -> Iterator[str]:
    """A node whose processor has a feature that no other has."""
    node = "node1"
    pretended = f"sed '/^flags/s/$/ {FEATURE}/' /proc/cpuinfo >/tmp/cpuinfo && mount --bind /tmp/cpuinfo /proc/cpuinfo"
    try:
        cluster.run(node, "sh", "-c", pretended)
        yield node
    finally:
        cluster.run(node, "sh", "-c", "umount /proc/cpuinfo || true")


def test_a_job_saved_on_a_better_node_waits_for_one_like_it_and_loops_nowhere(rich: str) -> None:
    poor = [node for node in cluster.NODES if node != rich]
    others = cluster_harness.occupy(poor)
    [job] = cluster_harness.submit_pi(1)
    cluster_harness.wait_running([job])
    saved_once(job)
    taken = cluster_harness.occupy([rich])
    cluster_harness.end(others)
    # Others run on the poor nodes, so control knows what these are; then they are idle for more than a round.
    [known] = cluster_harness.submit_pi(1)
    cluster_harness.wait_running([known])
    cluster.api("POST", f"/jobs/{known}/cancel")
    cluster.until("it to be gone", lambda: not cluster_harness.agents(), timeout_s=2 * ROUND_S)
    attempts = len(cluster_harness.job(job)["attempts"])
    cluster_harness.until_rounds_have_ended(2)
    row = cluster_harness.job(job)
    assert row["job"]["state"] == "Saved"
    assert FEATURE in row["waits_because"]
    assert len(row["attempts"]) <= attempts + len(poor), "it went round in circles"
    assert row["failures"] == 0
    cluster_harness.end(taken)
    assert goes_on(job, after=attempts)["node"] == rich
