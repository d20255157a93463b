"""The part of a two-minute slice that a job of 200 MB computes: on the demo cluster, with all that belongs to it."""

from dataclasses import dataclass

from demo import cluster
from tests.real_cluster import cluster_harness

SLICE_S = 120
MEMORY_MIB = 200
SLICES = 2


@dataclass(frozen=True, slots=True)
class Share:
    """One slice: from the claim to the end that all agents share, seconds."""

    slice_s: float
    restore_s: float
    compute_s: float
    save_s: float

    @property
    def of_slice(self) -> float:
        """The part of the slice that was computed, between 0 and 1."""
        return self.compute_s / self.slice_s

    @property
    def of_round(self) -> float:
        """The same of the whole round, with what Slurm and the agent need to start."""
        return self.compute_s / SLICE_S


def measured() -> list[Share]:
    """Some slices in a row that began with a restore and ended with a save. Takes six to eight minutes."""
    cluster.clear()
    cluster.configure({"rounds": {"length_s": SLICE_S, "shortest_slice_s": 20}})
    [job] = cluster.glean(
        "submit", "--group", "physics", "--image", cluster_harness.PI, "--name", "two-minutes", "--cpus", "1",
        "--memory-mib", str(MEMORY_MIB + 100),
        after=("--samples", cluster_harness.ENDLESS, "--seed", "1", "--out", ".", "--memory", str(MEMORY_MIB)),
    )["jobs"]  # fmt: skip
    try:
        whole = cluster.until("some slices", lambda: _whole(job), timeout_s=SLICE_S * (SLICES + 2), every_s=5)
    finally:
        cluster.clear()
        cluster.configure()
    return whole


def _whole(job: int) -> list[Share] | None:
    attempts = [a for a in cluster_harness.job(job)["attempts"] if a["ending"] == "saved" and a["restored_from"]]
    if len(attempts) < SLICES:
        return None
    return [
        Share(
            slice_s=SLICE_S - a["claimed_s"] % SLICE_S,
            restore_s=a["restore_s"],
            compute_s=a["compute_s"],
            save_s=a["save_s"],
        )
        for a in attempts
    ]
