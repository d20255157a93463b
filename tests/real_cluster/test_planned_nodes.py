"""Agents on nodes that Slurm has planned for a waiting regular job, and what that job pays."""

import json

import pytest
from demo import cluster
from tests import doc_pages
from tests.real_cluster import cluster_harness
from tests.real_cluster.cluster_harness import has_started, submit_pi, wait_running

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GRACE_S = 60
SLACK_S = 20
"""As in the demo's slurm.conf."""


def busy_node(*, minutes: int) -> str:
    """A regular job that has one node, and ends shortly before Slurm would end it."""
    script = f"sleep {60 * minutes - 5}"
    number = cluster.sbatch("--nodelist=node1", "--exclusive", f"--time={minutes}", script=script)
    cluster.until("the node to be busy", lambda: has_started(number), timeout_s=40)
    return number


def wide_job() -> tuple[str, float]:
    """A regular job that waits for all nodes, and its planned start. Slurm has planned the idle nodes for it."""
    number = cluster.sbatch("--nodes=3", "--exclusive", "--time=2", script="sleep 5")

    def planned_s() -> float:
        words = ("sinfo", "--noheader", "--Node", "--partition=regular", "--format=%T", "--nodes=node2,node3")
        is_planned = cluster.run("head", *words).split() == ["planned"] * 2
        return cluster.slurm_job(number)["start_time"]["number"] if is_planned else 0

    return number, cluster.until("the idle nodes to be planned", planned_s, timeout_s=40)


def start_s(number: str, *, within_s: float) -> float:
    """Wait until a regular job has started."""
    cluster.until("the wide job", lambda: has_started(number), timeout_s=within_s)
    found = cluster.regular_job(number).start_s
    assert found is not None
    return found


def agents_on_planned_nodes() -> None:
    assert set(wait_running(submit_pi(2)).values()) == {"node2", "node3"}


def test_a_wide_job_takes_its_planned_nodes_from_agents_within_the_grace_time_and_the_report_says_so(
    one_round: None,
) -> None:
    before = cluster.glean("report")["harm_day"]
    busy = busy_node(minutes=15)
    wide, _ = wide_job()
    agents_on_planned_nodes()
    cluster_harness.end(busy)
    started_s = start_s(wide, within_s=GRACE_S + SLACK_S)
    free_s = cluster.regular_job(busy).end_s
    assert free_s is not None
    assert started_s - free_s <= GRACE_S + SLACK_S
    shown = json.loads(cluster.run("head", "squeue", "--json", "--states=all", f"--user={cluster.SERVICE_USER}"))
    preempted_s = [job["preempt_time"]["number"] for job in shown["jobs"]]
    delay_s = started_s - max(at_s for at_s in preempted_s if free_s <= at_s <= started_s)

    def report() -> dict[str, float] | None:
        harm: dict[str, float] = cluster.glean("report")["harm_day"]
        return harm if harm["jobs"] > before["jobs"] else None

    found = cluster.until("the report to show the job", report, timeout_s=40)
    assert (found["jobs"], found["sum_s"]) == (before["jobs"] + 1, before["sum_s"] + delay_s)
    asked = doc_pages.blocks((doc_pages.ROOT / "docs" / "simulate" / "start.md").read_text(), "sh")[0]
    asked = asked.replace("2026-01-01 --endtime 2026-04-01", "now-2hours")
    assert f"\n{busy}|" in cluster.run("head", "sh", "-c", f"cd /tmp\n{asked}zcat jobs.txt.gz")
