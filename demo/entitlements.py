"""`make demo-entitlements`: three accounts with entitlements, one of which has a job preempted, and a campaign at the
same time.

Physics is entitled to half of the CPUs, chemistry to 30 %, biology to 20 %. Chemistry has started two jobs under
`glean run`, which use two thirds of the machine, and agents compute a campaign on the rest. Then physics wants its
half, and biology its fifth. Agents vacate their nodes first, and then as many of chemistry's jobs as needed are
preempted. Slurm's own preemption is off, so that only our policy acts. At the end, every job is compared with the same
job computed without interruption.
"""

import base64
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo import cluster, proof, reference, timeline
from demo.campaign import (
    OUTPUT,
    Sent,
    agents_since,
    console,
    ended,
    jobs_of,
    judged,
    regular_spans,
    show_runs,
    submit,
    write,
)

ROUND_S = 90
GRACE_S = 30
GIVE_UP_S = 900
SHARES = {"physics": 50, "chemistry": 30, "biology": 20}
ENTITLEMENTS: dict[str, object] = {
    "mode": "on",
    "partitions": ["shared"],
    "entitled": SHARES,
    "quantum_s": 60,
    "grace_s": GRACE_S,
    "poll_s": 2,
    "settle_s": 10,
}
"""The section `[entitlements]` in the demo and in the tests."""
USERS_FOLDER = "/srv/users"
CLAIM_AFTER_S = 25
CLAIM_LENGTH_S = 60
OWN_RUNS, OWN_TIMES = 2, 2.5
"""The number of chemistry's user jobs, and their length as a multiple of the campaign's jobs. One of them must still be
running when it is to be preempted."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A Pythia job under `glean run` in one of bob's Slurm jobs, with the folder for its files and its uninterrupted
    twin."""

    job: Sent
    whole: proof.Run
    results: str


def main() -> int:
    """Run the demo, and return 0 if all claims were met in time and every result is proven right."""
    OUTPUT.mkdir(exist_ok=True)
    wanted, whole = reference.references()
    longer = reference.longer(OWN_RUNS, OWN_TIMES)
    origin_s = int(time.time()) % ROUND_S
    cluster.configure({"rounds": {"length_s": ROUND_S, "origin_s": origin_s}, "entitlements": ENTITLEMENTS})
    cluster.clear()
    cluster.set_preemption(on=False)
    try:
        return _shown(wanted, whole, longer)
    finally:
        cluster.set_preemption(on=True)
        cluster.configure()


def _shown(
    wanted: Sequence[reference.Wanted],
    whole: Sequence[proof.Run],
    longer: tuple[Sequence[reference.Wanted], Sequence[proof.Run]],
) -> int:
    began_s = time.time()
    own = [own_run(*each) for each in zip(*longer, strict=True)]
    cluster.until("chemistry's jobs to start", lambda: all(_started(run.job) for run in own), timeout_s=60)
    campaign = submit(wanted)
    claims: list[Sent] = []
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            status = cluster.api("GET", f"/campaigns/{campaign}")
            live.update(picture(cluster.api("GET", "/owners"), status, time.time() - began_s))
            if not claims and time.time() - began_s > CLAIM_AFTER_S:
                claims = [claim("alice", 6), claim("alice", 3), claim("carol", 3)]
            if claims and status["succeeded"] == len(wanted) and all(_ended(job) for job in (*claims, *_jobs(own))):
                break
            if time.time() - began_s > GIVE_UP_S:
                raise SystemExit(f"the demo did not end within {GIVE_UP_S} s: {status}")
            time.sleep(1.5)
    return conclude(campaign, wanted, whole, own, claims, began_s=began_s)


def own_run(wanted: reference.Wanted, whole: proof.Run) -> OwnRun:
    """Submit one of bob's checkpointable jobs, which takes a whole node and exceeds chemistry's share."""
    results = f"{USERS_FOLDER}/bob-{wanted.index}-{int(time.time())}"
    words = " ".join(["glean", "run", "--storage", f"{USERS_FOLDER}/bob", "--results", results, reference.IMAGE])
    script = f"mkdir -p -m 700 {USERS_FOLDER}/bob\n{words} -- {' '.join(wanted.arguments)}"
    options = ["--partition=shared", "--cpus-per-task=6", "--mem=3000", "--time=30", "--requeue", "--open-mode=append"]
    options += ["--comment=gleaner:checkpointable", f"--job-name=bob-{wanted.index}"]
    number = cluster.sbatch(*options, script=script, user="bob", output=f"{results}.log")
    return OwnRun(Sent(number, f"chemistry {wanted.index - reference.RUNS}"), whole, results)


def claim(user: str, cpus: int) -> Sent:
    """Submit an ordinary job, which declares nothing."""
    options = ["--partition=shared", f"--cpus-per-task={cpus}", "--time=10", f"--job-name={user}"]
    number = cluster.sbatch(*options, script=f"sleep {CLAIM_LENGTH_S}", user=user)
    return Sent(number, {"alice": "physics", "carol": "biology"}[user])


def _jobs(own: Sequence[OwnRun]) -> list[Sent]:
    return [run.job for run in own]


def _started(job: Sent) -> bool:
    return cluster.regular_job(job.id).start_s is not None


def _ended(job: Sent) -> bool:
    return cluster.regular_job(job.id).state in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


def picture(owners: dict[str, Any], status: dict[str, Any], since_s: float) -> Group:
    """Return the live view, with each owner's entitlement and use, and the progress of the campaign."""
    table = Table(title=f"{since_s:4.0f} s", title_justify="left")
    for column in ("owner", "entitled", "has", "", "waits for"):
        table.add_column(column, justify="right" if column in {"entitled", "has"} else "left", min_width=8)
    for row in owners["owners"]:
        bar = "█" * row["used_cpus"] + "[yellow]" + "▒" * row["leaving_cpus"] + "[/]"
        waits = f"{row['waiting_cpus']} CPUs" if row["waiting_jobs"] else ""
        table.add_row(row["owner"], str(row["entitled_cpus"]), str(row["used_cpus"]), bar, waits)
    table.add_row("[dim]idle[/]", "", str(owners["idle_cpus"]), "[dim]" + "░" * owners["idle_cpus"] + "[/]", "")
    counts = "   ".join(f"{key} {status[key]}" for key in ("new", "running", "saved", "succeeded", "failed"))
    total = sum(status[key] for key in ("new", "running", "saved", "succeeded", "failed", "cancelled"))
    said = [Text(f"job {each['job']}: {each['verdict']}: {each['why']}") for each in owners["waiting"][:4]]
    bar = ProgressBar(total=total or 1, completed=status["succeeded"], width=70)
    return Group(table, Text(f"campaign: {counts}"), bar, *said)


def conclude(
    campaign: int,
    wanted: Sequence[reference.Wanted],
    whole: Sequence[proof.Run],
    own: Sequence[OwnRun],
    claims: Sequence[Sent],
    *,
    began_s: float,
) -> int:
    """Compare, summarize and draw the results. Return the exit status."""
    jobs = jobs_of(campaign)
    runs = judged(jobs, campaign, wanted, whole, restores_at_least=0, nodes_at_least=1)
    own_right = [_is_right(run) for run in own]
    waits_s = {f"{job.label} ({job.id})": _waited_s(job) for job in claims}
    end_s = time.time()
    spans = timeline.spans_of_attempts(jobs)
    spans += regular_spans(claims, end_s) + [span for run in own for span in _spans_of(run, end_s)]
    boundaries_s = sorted({agent["end_s"] for agent in agents_since(began_s)})
    timeline.draw(
        spans, cluster.NODES, boundaries_s, start_s=began_s, end_s=end_s, lanes=reference.PER_NODE,
        to=OUTPUT / "entitlements.png",
    )  # fmt: skip
    restarts = {run.job.id: len(_spans_of(run, end_s)) - 1 for run in own}
    is_right = all(run["identical"] and not run["doubts"] for run in runs) and all(own_right)
    preempted_once = sum(restarts.values()) == 1  # the claims need the agents' node and one of chemistry's
    in_time = all(wait_s <= GRACE_S + 15 for wait_s in waits_s.values())
    summary = {
        "waits_s": waits_s,
        "own_runs_identical": own_right,
        "own_runs_restarts": restarts,
        "runs": runs,
        "demo_s": round(end_s - began_s, 1),
    }
    write(summary, "entitlements.json")
    show_runs(runs)
    for owner, wait_s in waits_s.items():
        console.print(f"{owner} was running {wait_s:.0f} s after it was submitted (grace time: {GRACE_S} s)")
    for run, right in zip(own, own_right, strict=True):
        times = restarts[run.job.id]
        said = "identical" if right else "[red]NOT identical[/]"
        console.print(f"{run.job.label}'s job {run.job.id} was preempted {times} times; its result is {said}")
    console.print("timeline: demo-output/entitlements.png    facts: demo-output/entitlements.json")
    return 0 if is_right and in_time and preempted_once else 1


def _is_right(run: OwnRun) -> bool:
    """Return True if the job's files are the same as those of the uninterrupted one."""
    names = cluster.run("head", "ls", run.results).split()
    files = {name: cluster.run("head", "base64", f"{run.results}/{name}").encode() for name in names}
    mine = proof.Run({name: base64.b64decode(text) for name, text in files.items()}, ())
    return bool(files) and not proof.files_differ(mine, run.whole)


def _waited_s(job: Sent) -> float:
    words = ("sacct", "--allocations", "--parsable2", "--noheader", "--format=Submit,Start", f"--jobs={job.id}")
    submit_s, start_s = cluster.run("head", "env", "SLURM_TIME_FORMAT=%s", *words).strip().split("|")
    return float(start_s) - float(submit_s)


def _spans_of(run: OwnRun, end_s: float) -> list[timeline.Span]:
    """Return a span for each run of a requeued job. Slurm's accounting keeps all of them."""
    words = ("sacct", "--allocations", "--duplicates", "--parsable2", "--noheader", "--format=Start,End,NodeList")
    told = cluster.run("head", "env", "SLURM_TIME_FORMAT=%s", *words, f"--jobs={run.job.id}")
    spans: list[timeline.Span] = []
    for line in told.splitlines():
        start, end, nodes = line.split("|")
        if start.isdigit() and Path(nodes).name in cluster.NODES:
            spans.append(
                timeline.Span(nodes, "regular", float(start), float(end) if end.isdigit() else end_s, run.job.label)
            )
    return spans


if __name__ == "__main__":
    sys.exit(ended(main, "make demo-entitlements"))
