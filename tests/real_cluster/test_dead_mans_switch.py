"""A dead Gleaner never stops the cluster: control is killed, and all that it held goes on."""

from collections.abc import Iterator

import pytest
from demo import cluster
from tests.real_cluster import restoring
from tests.real_cluster import slurm_admin_harness as s

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]

SETTINGS = "/etc/gleaner/gleaner.toml"
KEPT = restoring.KEPT_SETTINGS
FRESH_FOR_S = 20
"""A heartbeat that comes late on a busy machine is none that has stopped."""
DEAD_AFTER_S = 22
PERIOD_S = 15
"""The seconds between two runs of the switch in the head's loop (images/head/entry.sh)."""
LOOKS_AGAIN_S = 15
"""The switch's own, for each of two heartbeats."""


@pytest.fixture(autouse=True)
def entitlements(cluster_is_up: None) -> Iterator[None]:
    """Control enforces entitlements, and counts as dead soon after it stops."""
    s.tidy()
    cluster.until("the nodes to be idle", cluster.nodes_idle, timeout_s=90)
    shipped = (cluster.ROOT / "deploy" / "settings" / "slurm-admin.conf").read_text()
    text = shipped.replace("fresh-for-s 60", f"fresh-for-s {FRESH_FOR_S}").replace(
        "dead-after-s 300", f"dead-after-s {DEAD_AFTER_S}"
    )
    assert text != shipped
    s.enforce(text)
    cluster.run("head", "rm", "/run/gleaner/alive")
    cluster.configure(
        {"entitlements": {"mode": "on", "partitions": ["shared"], "entitled": {"physics": 50}, "poll_s": 2}}
    )
    cluster.until(
        "control to enforce entitlements", lambda: cluster.run("head", "cat", "/run/gleaner/alive"), timeout_s=20
    )
    yield
    cluster.run("head", "sh", "-c", f"test ! -e {KEPT} || mv {KEPT} {SETTINGS}")
    cluster.until("control to lead", cluster.is_leading, timeout_s=60)
    cluster.configure()


def kill_control_for_good() -> None:
    """`kill -9`, and what starts it again finds settings that it cannot read."""
    cluster.run("head", "sh", "-c", f"cp {SETTINGS} {KEPT} && echo broken >{SETTINGS}")
    cluster.kill_control()


def test_all_that_is_held_is_let_go_when_control_is_killed() -> None:
    busy = cluster.sbatch("--partition=regular", "--nodes=3", "--exclusive", script="sleep 900", user="carol")
    s.wait_for_state(busy, "RUNNING")
    held, top, array = s.submit(), s.submit("--nice=5", user="bob"), s.submit("--array=1-2")
    others = s.submit(user="bob")
    cluster.run("head", "scontrol", "hold", others)
    assert s.ask("release", top, top=True) == "done"
    assert s.ask("release", f"{array}_1", top=False) == "done"
    assert s.ask("drain", ["node3"], by="alice") == "done"
    assert s.priority(held) == 0
    kill_control_for_good()

    def all_free() -> bool:
        return s.priority(held) > 0 and "DRAIN" not in cluster.run("head", "scontrol", "show", "node", "node3")

    cluster.until("the switch", all_free, timeout_s=DEAD_AFTER_S + PERIOD_S + 2 * LOOKS_AGAIN_S + 15)
    assert s.mark(held) == "gleaner: released by the dead man's switch"
    assert cluster.slurm_job(top)["nice"] == 5
    assert s.priority(top) < 1_000_000
    tasks = cluster.run(
        "head", "squeue", "--noheader", "--array", f"--jobs={array}", "--Format=PriorityLong:12"
    ).split()
    assert "0" not in tasks
    assert s.priority(others) == 0, "what an administrator holds is not ours to release"
    assert s.priority(s.submit(script="true")) > 0, "nothing is held for a control that is dead"
    done = cluster.run("head", "cat", "/var/log/gleaner/deadman.log").count(f"runs scontrol release {held}\n")
    assert done == 1


def switch(*options: str) -> None:
    """Run it now, on a control that is dead; the head's own loop may do the same at this moment."""
    words = " ".join(["/usr/local/libexec/gleaner/deadman", *options])
    cluster.run("head", "rm", "-f", "/run/gleaner/alive")
    cluster.run("head", "sh", "-c", f"{words} || true", user="gleaner-slurm-admin")


def test_when_gleaner_is_taken_away_no_job_waits_for_it_any_more() -> None:
    """A job that runs with our mark would requeue itself held."""
    running, held = s.submit(), s.submit(user="bob")
    s.wait_for_state(running, "RUNNING")
    assert s.priority(held) == 0, "its owner is entitled to nothing"
    kill_control_for_good()

    def unmarked() -> bool:
        switch("--for-good")
        return {s.mark(running), s.mark(held)} == {"Gleaner is gone"}

    cluster.until("both to carry no mark of ours", unmarked, timeout_s=30)
    assert s.priority(held) > 0
    cluster.run("head", "scontrol", "requeuehold", running, user="alice")  # as if it had seen its mark just before
    s.wait_for_state(running, "PENDING")
    assert s.priority(running) == 0
    switch("--for-good")
    assert s.priority(running) > 0
