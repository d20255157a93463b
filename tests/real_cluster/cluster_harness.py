"""The harness of the tests on the real cluster: jobs of ours, regular jobs in their way, and waiting."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from demo import cluster, reference

PI = "gleaner/pi:demo"
ENDLESS = "1000000000000"
RESTING = ("--rest", "0.3")
"""Jobs of the tests go on for a while, and leave most of the processor to others: 10 million points take 34 s."""
IDLING = ("--rest", "2")
"""A job that never ends needs to compute next to nothing."""
IDLE_CPUS = 6
ROUND_S = 60
"""Of the tests that have no length of their own."""


def submit_pi(how_many: int, *, samples: str = ENDLESS, cpus: int = IDLE_CPUS) -> list[int]:
    """Jobs that estimate pi; with the default size one fills a node, and it never ends."""
    rests = IDLING if samples == ENDLESS else RESTING
    answer = cluster.glean(
        "submit", "--group", "physics", "--image", PI, "--name", "pi", "--cpus", str(cpus), "--memory-mib", "200",
        "--array", f"1-{how_many}", after=("--samples", samples, "--seed", "{index}", "--out", ".", *rests),
    )  # fmt: skip
    return list(answer["jobs"])


def configure(changes: Mapping[str, Mapping[str, object]]) -> None:
    """Give control the demo's settings with these changes; control is restarted only if it has others."""
    if cluster.run("head", "cat", "/etc/gleaner/gleaner.toml") != cluster.settings_with(changes):
        cluster.configure(changes)


AGENT_SETTINGS = "/etc/gleaner/agent.toml"
"""One file, which all nodes see."""


def set_runtime(kind: str) -> None:
    """Let agents that start from now on use this runtime: `docker`, `criu`, or `auto` as shipped."""
    shipped = (cluster.ROOT / "deploy" / "settings" / "agent.toml").read_text()
    changed = shipped if kind == "auto" else f'{shipped}runtime = "{kind}"\n'
    if cluster.run(cluster.NODES[0], "cat", AGENT_SETTINGS) != changed:
        cluster.run(cluster.NODES[0], "sh", "-c", f"cat > {AGENT_SETTINGS}", stdin=changed)


def submit_pythia(indices: str, events: int, *, cpus: int = 2) -> tuple[int, list[int]]:
    """Runs of the event generator; the campaign and its jobs."""
    answer = cluster.glean(
        "submit", "--group", "physics", "--image", reference.IMAGE, "--name", "pythia",
        "--cpus", str(cpus), "--memory-mib", "400", "--array", indices, after=reference.arguments("{index}", events),
    )  # fmt: skip
    return answer["campaign"], list(answer["jobs"])


def job(number: int) -> dict[str, Any]:
    """All that is known of one job of ours."""
    return dict(cluster.api("GET", f"/jobs/{number}"))


def states(jobs: Sequence[int]) -> list[str]:
    """Their states, in the same order."""
    return [job(number)["job"]["state"] for number in jobs]


def running_on(jobs: Sequence[int]) -> dict[int, str]:
    """The node of each job that computes; only jobs whose container has started and printed something."""
    found: dict[int, str] = {}
    for number in jobs:
        row = job(number)["job"]
        if row["state"] == "Running" and cluster.log_of(number):
            found[number] = row["node"]
    return found


def wait_running(jobs: Sequence[int], *, timeout_s: float = 100) -> dict[int, str]:
    """Until all of them compute; the node of each."""

    def all_compute() -> dict[int, str] | None:
        found = running_on(jobs)
        return found if len(found) == len(jobs) else None

    found: dict[int, str] = cluster.until("the jobs to run", all_compute, timeout_s=timeout_s)
    return found


def early_in_a_round(length_s: float, *, left_s: float) -> None:
    """Wait, if need be, until at least `left_s` of the round are left."""
    if boundary_s(length_s) - time.time() < left_s:
        sleep_until(boundary_s(length_s) + 1)


def occupy(nodes: Sequence[str], *, length_s: int = 600, user: str = "alice", wait: bool = True) -> str:
    """One regular job that has these nodes for itself."""
    number = cluster.sbatch(
        f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--exclusive", "--time=15",
        script=f"sleep {length_s}", user=user,
    )  # fmt: skip
    if wait:
        cluster.until(f"{user}'s job to start", lambda: has_started(number), timeout_s=40)
    return number


def has_started(number: str) -> bool:
    """Return True if a regular job runs or has run."""
    return cluster.regular_job(number).state in {"RUNNING", "COMPLETED", "COMPLETING"}


def end(number: str) -> None:
    """Cancel a regular job and wait until Slurm has let go of its nodes."""
    cluster.run("head", "scancel", number)
    cluster.until(
        "the job to end", lambda: cluster.regular_job(number).state in {"CANCELLED", "COMPLETED"}, timeout_s=40
    )


def agents() -> list[dict[str, Any]]:
    """Our agents as Slurm has them: node, state, end (seconds since the epoch)."""
    import json

    found = json.loads(cluster.run("head", "squeue", "--json", "--user", cluster.SERVICE_USER))["jobs"]
    return [
        {
            "id": str(one["job_id"]),
            "name": one["name"],
            "node": one["nodes"],
            "state": one["job_state"][0],
            "start_s": one["start_time"]["number"],
            "end_s": one["end_time"]["number"],
        }
        for one in found
        if one["job_state"][0] in {"RUNNING", "PENDING"}
    ]


def boundary_s(length_s: float, at_s: float | None = None) -> float:
    """The next shared end."""
    now_s = time.time() if at_s is None else at_s
    return (now_s // length_s + 1) * length_s


def until_rounds_have_ended(how_many: int) -> None:
    """Wait until control has come to the next shared end so many times."""
    ends_s = {shared_end_s()}
    while len(ends_s) <= how_many:
        cluster.until("the round to end", lambda: shared_end_s() not in ends_s, timeout_s=10 * ROUND_S)
        ends_s.add(shared_end_s())


def shared_end_s() -> float:
    """Return when the current round ends, by control."""
    return float(cluster.api("GET", "/nodes")["boundary_s"])


def sleep_until(at_s: float) -> None:
    """Let real time pass; the cluster's clock is this machine's."""
    time.sleep(max(0.0, at_s - time.time()))
