"""All agents of a round end together, and that is what lets a wide regular job start."""

from typing import Any

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]

LENGTH_S = 100
SLACK_S = 20
"""Slurm's own cycles between a node's end and the next job's start."""
APART_S = 15
"""So many seconds lie between two starts: more than by what an agent may leave before its end."""


def running_agents() -> list[dict[str, Any]]:
    return [a for a in cluster_harness.agents() if a["state"] == "RUNNING"]


def staggered_agents(jobs_wanted: int) -> list[dict[str, Any]]:
    """Three agents that start at different seconds, because each node but one is set free after an agent has begun.

    They are what Slurm said of them when all three ran: on a busy machine one may have ended a moment later.
    """
    in_the_way = [cluster_harness.occupy(["node2"]), cluster_harness.occupy(["node3"], user="bob")]
    cluster_harness.submit_pi(jobs_wanted)
    for number, regular in enumerate(in_the_way, start=1):
        found = cluster.until(f"{number} agents", lambda n=number: len(r := running_agents()) == n and r, timeout_s=60)  # type: ignore[misc]
        cluster_harness.sleep_until(max(a["start_s"] for a in found) + APART_S)
        cluster.run("head", "scancel", regular)
    return list(cluster.until("three agents", lambda: len(r := running_agents()) == 3 and r, timeout_s=60))


def agents_that_end_together() -> list[dict[str, Any]] | None:
    """The three of them, as soon as Slurm has one end for all: each lowers its own when it starts."""
    found = running_agents()
    ends_s = [a["end_s"] for a in found]
    return found if len(found) == 3 and max(ends_s) - min(ends_s) <= 1 else None


def wide_job() -> str:
    return cluster.sbatch("--nodes=3", "--exclusive", "--time=2", script="sleep 5", user="alice")


def test_a_regular_job_as_wide_as_all_nodes_starts_at_the_end_of_the_round(quiet: None) -> None:
    cluster.set_preemption(on=False)
    cluster.configure({"rounds": {"length_s": LENGTH_S, "shortest_slice_s": 15}})
    # Begin early in a round, so that three staggered agents fit into it.
    cluster_harness.sleep_until(cluster_harness.boundary_s(LENGTH_S) + 1)
    staggered_agents(6)
    found = cluster.until("each agent to have lowered its own end", agents_that_end_together, timeout_s=30)
    starts_s, ends_s = [a["start_s"] for a in found], [a["end_s"] for a in found]
    assert max(starts_s) - min(starts_s) >= 3, "the agents were meant to start at different seconds"
    boundary_s = cluster_harness.boundary_s(LENGTH_S, max(starts_s))
    assert max(ends_s) - min(ends_s) <= 1
    assert abs(ends_s[0] - boundary_s) <= 1
    wide = wide_job()
    cluster.until("the wide job", lambda: cluster_harness.has_started(wide), timeout_s=LENGTH_S + SLACK_S)
    started_s = cluster.regular_job(wide).start_s
    assert started_s is not None
    assert boundary_s - 30 <= started_s <= boundary_s + SLACK_S
    # Also one that regular work overtook before it started may have ended: only those that ran are meant.
    ran = {a["name"] for a in found}
    ended = [a for a in cluster.api("GET", "/agents") if a["ended_s"] and a["name"] in ran]
    assert len(ended) == 3
    assert all(a["ended_s"] <= boundary_s for a in ended), "an agent outlived the shared end"
