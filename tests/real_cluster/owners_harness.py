"""The owners' jobs on the real cluster, as the tests submit and watch them."""

from collections.abc import Mapping, Sequence
from typing import Any

from demo import cluster
from demo.entitlements import ENTITLEMENTS, GRACE_S, USERS_FOLDER
from tests.real_cluster import cluster_harness
from tests.real_cluster.cluster_harness import ROUND_S

WITHIN_S = GRACE_S + 10
"""One grace time, and what a look of ours and one of the scheduler's takes."""
SAMPLES = 10_000_000
"""Half a minute, with the rests."""
CHECKPOINTABLE = "--comment=gleaner:checkpointable"


SETTINGS: dict[str, Mapping[str, object]] = {
    "rounds": {"length_s": 10 * ROUND_S, "shortest_slice_s": 15},
    "entitlements": dict(ENTITLEMENTS),
}
"""The demo's entitlements, and rounds long enough to be in nobody's way."""


def enforce(**changes: object) -> None:
    """Let control enforce the entitlements, with these changes; Slurm itself preempts nobody."""
    cluster_harness.configure({**SETTINGS, "entitlements": {**ENTITLEMENTS, **changes}})
    cluster.set_preemption(on=False)
    cluster.until("control to look at the owners", lambda: status()["read_s"], timeout_s=30)
    alive = ("test", "-e", "/run/gleaner/alive")  # the heartbeat without which Slurm holds no job for us
    cluster.until("control's heartbeat", lambda: cluster.run("head", *alive) == "", timeout_s=30, every_s=0.2)


def status() -> dict[str, Any]:
    """Return the state of the entitlements."""
    return dict(cluster.api("GET", "/owners"))


def sleeper(user: str, cpus: int, *options: str, seconds: int = 600) -> str:
    """A job that computes nothing, on the partition with entitlements."""
    words = ("--partition=shared", f"--cpus-per-task={cpus}", "--mem=200", "--time=20", *options)
    return cluster.sbatch(*words, script=f"sleep {seconds}", user=user)


def preemptible(user: str, cpus: int) -> str:
    """One that may be requeued."""
    return sleeper(user, cpus, "--comment=gleaner:preemptible", "--requeue")


def own_run(user: str, seed: int, *, cpus: int = 6) -> str:
    """A job under `glean run` that estimates pi; its results are in `result_of`."""
    home = f"{USERS_FOLDER}/{user}"
    output = output_of(user)
    words = ("--partition=shared", f"--cpus-per-task={cpus}", "--mem=600", "--time=20", "--requeue", CHECKPOINTABLE)
    inner = f"--samples {SAMPLES} --seed {seed} --out . {' '.join(cluster_harness.RESTING)}"
    script = (
        f"exec glean run --storage {home}/.gleaner --results {home}/result-$SLURM_JOB_ID {cluster_harness.PI} {inner}"
    )
    return cluster.sbatch(*words, "--open-mode=append", script=script, user=user, output=output)


def output_of(user: str) -> str:
    """Make the user's folder, and return where Slurm is to write what the user's jobs print."""
    home = f"{USERS_FOLDER}/{user}"
    cluster.run("node1", "install", "-d", "-m", "0700", "-o", user, home)
    return f"{home}/%j.out"


def until_they_complete(user: str, *jobs: str, timeout_s: float) -> None:
    """Wait until all of the user's jobs have ended well; say what they printed if one ends otherwise, or too late."""

    ended = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"}
    try:
        cluster.until("the jobs to end", lambda: {state(job) for job in jobs} <= ended, timeout_s=timeout_s)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {told_of(user, *jobs)}") from None
    assert {state(job) for job in jobs} == {"COMPLETED"}, told_of(user, *jobs)


def told_of(user: str, *jobs: str) -> str:
    """Return what Slurm says of these jobs, and the last that they printed."""
    shown = [cluster.run("head", "scontrol", "show", "job", job) for job in jobs]
    shown += [cluster.run("node1", "sh", "-c", f"tail -n 30 {USERS_FOLDER}/{user}/{job}.out || true") for job in jobs]
    return "\n".join((*shown, cluster.run("head", "squeue"), str(status())))


def result_of(user: str, job: str) -> str:
    """Return the job's result."""
    return cluster.run("node1", "cat", f"{USERS_FOLDER}/{user}/result-{job}/pi.txt")


def forget(*users: str) -> None:
    """Remove what their jobs left."""
    cluster.run("node1", "rm", "-rf", *(f"{USERS_FOLDER}/{user}" for user in users))


def state(job: str) -> str:
    """Its state in Slurm's words."""
    return str(cluster.slurm_job(job)["job_state"][0])


def runs(*jobs: str) -> bool:
    """Return True if all these jobs are on nodes."""
    return all(state(job) == "RUNNING" for job in jobs)


def wait_until_they_run(*jobs: str, promised_s: float = WITHIN_S) -> None:
    """Wait until all of them are on nodes; by Slurm's own time stamps none of them waited longer than was promised."""
    until_they_run(*jobs, timeout_s=10 * promised_s)
    for job in jobs:
        assert waited_s(job) <= promised_s, f"job {job} waited {waited_s(job)} s"


def waited_s(job: str) -> float:
    """Return how long a job waited until it ran last, by Slurm's time stamps."""
    row = cluster.slurm_job(job)
    return float(row["start_time"]["number"] - row["submit_time"]["number"])


def until_they_run(*jobs: str, timeout_s: float) -> None:
    """Wait until all of them are on nodes."""
    cluster.until(f"jobs {', '.join(jobs)} to run", lambda: runs(*jobs), timeout_s=timeout_s)


def restarts(jobs: Sequence[str]) -> dict[str, int]:
    """Return how often each job was requeued."""
    return {job: int(cluster.slurm_job(job)["restart_cnt"]) for job in jobs}


def decisions_about(*jobs: str, since_s: float = 0.0) -> dict[int, dict[str, Any]]:
    """All that was decided about these jobs of the owners'; a cluster made anew gives their numbers again."""
    found: dict[int, dict[str, Any]] = {}
    for job in jobs:
        for row in cluster.api("GET", f"/decisions?subject=slurm {job}&limit=100"):
            if row["at_s"] >= since_s:
                found[row["id"]] = row
    return found
