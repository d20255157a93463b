"""`make demo`: a campaign on the real cluster, which is shown live, compared with uninterrupted runs, and summarized.

Twelve Pythia runs and a stream of regular jobs share three nodes for about four rounds. The regular jobs take a
different node in each round, so every run has to migrate. The results are written to `demo-output/`.
"""

import math
import sys
import time
from collections.abc import Sequence
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
    lateness,
    regular_spans,
    show_next,
    show_runs,
    stage,
    submit,
    write,
)

ROUND_S = 60
SHORTEST_SLICE_S = 12
FIRST_ROUND_S = 54
"""Seconds from the submission of the campaign to the first boundary."""
GIVE_UP_S = 1200
"""The longest wait. On a machine with much other work, the jobs take many more rounds."""
REGULAR = (("node3", 0, 48, "alice"), ("node1", 1, 50, "bob"), ("node2", 2, 50, "alice"), ("node3", 3, 30, "bob"))
"""The stream of regular jobs, each with its node, the round in which it begins, its duration in seconds, and its
user."""


def main() -> int:
    """Run the demo, and return 0 if every result is proven right."""
    began_s = time.time()
    stage("5 of 5: the campaign, four rounds of a minute", "4 min; more if the machine does other work")
    OUTPUT.mkdir(exist_ok=True)
    wanted, whole = reference.references()
    cluster.clear()  # can take long, so the first round begins afterwards
    origin_s = math.ceil(time.time()) + 12
    rounds = {"length_s": ROUND_S, "shortest_slice_s": SHORTEST_SLICE_S}
    cluster.configure({"rounds": rounds | {"origin_s": (origin_s + FIRST_ROUND_S) % ROUND_S}})
    sent = [send(*REGULAR[0], origin_s)]
    cluster.until("the first regular job to start", lambda: cluster.regular_job(sent[0].id).start_s, timeout_s=30)
    submitted_s = time.time()
    campaign = submit(wanted)
    sent += [send(*job, origin_s) for job in REGULAR[1:]]
    console.print(f"campaign {campaign}: {len(wanted)} Pythia runs; agents end every {ROUND_S} s\n")
    watch(campaign, submitted_s)
    ended_s = time.time()
    return conclude(campaign, wanted, whole, sent, submitted_s=submitted_s, ended_s=ended_s, began_s=began_s)


def send(node: str, in_round: int, length_s: int, user: str, origin_s: int) -> Sent:
    """Submit one job of the regular stream. Slurm starts it at the beginning of its round."""
    begin = [] if in_round == 0 else [f"--begin={_stamp(origin_s + FIRST_ROUND_S + (in_round - 1) * ROUND_S)}"]
    options = [f"--nodelist={node}", "--exclusive", "--time=5", f"--job-name={user}", *begin]
    return Sent(cluster.sbatch(*options, script=f"sleep {length_s}", user=user), user)


def _stamp(at_s: float) -> str:
    return cluster.run("head", "date", "--date", f"@{int(at_s)}", "+%Y-%m-%dT%H:%M:%S").strip()


# ── watching ──────────────────────────────────────────────────────────────────────────────────────────────


def watch(campaign: int, submitted_s: float) -> None:
    """Show the nodes and the campaign until all jobs are Complete."""
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            status = cluster.api("GET", f"/campaigns/{campaign}")
            jobs = cluster.api("GET", f"/jobs?campaign={campaign}&limit=1000")["jobs"]
            live.update(picture(cluster.api("GET", "/nodes"), status, jobs, submitted_s))
            ended = status["succeeded"] + status["failed"] + status["cancelled"]
            if ended == len(jobs):
                break
            if time.time() - submitted_s > GIVE_UP_S:
                raise SystemExit(f"the campaign did not end within {GIVE_UP_S} s: {status}")
            time.sleep(1.5)
    console.print(picture(cluster.api("GET", "/nodes"), status, jobs, submitted_s))


def picture(nodes: dict[str, Any], status: dict[str, Any], jobs: Sequence[dict[str, Any]], since_s: float) -> Group:
    """Return the live view, with the work of every node and the progress of the campaign."""
    table = Table(title=f"{time.time() - since_s:4.0f} s", expand=False, title_justify="left")
    for column in ("node", "Slurm says", "used by", "our runs"):
        table.add_column(column, min_width=10)
    for node in nodes["nodes"]:
        mine = [str(job["index"]) for job in jobs if job["node"] == node["name"] and job["state"] == "Running"]
        used = "[blue]a regular job[/]" if node["regular"] else "[green]Gleaner[/]" if mine else "[dim]nobody[/]"
        table.add_row(node["name"], node["state"].lower(), used, " ".join(mine))
    done = status["succeeded"]
    counts = "   ".join(f"{key} {status[key]}" for key in ("new", "running", "saved", "succeeded", "failed"))
    ends_in_s = max(0.0, nodes["boundary_s"] - time.time())
    return Group(
        table,
        Text(f"campaign: {counts}   this round ends in {ends_in_s:.0f} s"),
        ProgressBar(total=len(jobs) or 1, completed=done, width=70),
    )


# ── the results ───────────────────────────────────────────────────────────────────────────────────────────


def conclude(
    campaign: int,
    wanted: Sequence[reference.Wanted],
    whole: Sequence[proof.Run],
    sent: Sequence[Sent],
    *,
    submitted_s: float,
    ended_s: float,
    began_s: float,
) -> int:
    """Compare, summarize and draw the results. Return the exit status."""
    jobs = jobs_of(campaign)
    runs = judged(jobs, campaign, wanted, whole)
    end_s = max([ended_s, *(a["ended_s"] or 0 for job in jobs for a in job["attempts"])])
    spans = timeline.spans_of_attempts(jobs) + regular_spans(sent, end_s)
    loads = timeline.loads(spans, cluster.NODES, start_s=submitted_s, end_s=end_s)
    agents = agents_since(submitted_s)
    boundaries_s = sorted({a["end_s"] for a in agents})
    timeline.draw(
        spans, cluster.NODES, boundaries_s, start_s=submitted_s, end_s=end_s, lanes=reference.PER_NODE,
        to=OUTPUT / "timeline.png",
    )  # fmt: skip
    late = lateness(agents)
    summary = {
        "campaign": campaign,
        "runs": runs,
        "load_without": round(loads.without, 4),
        "load_with": round(loads.effective, 4),
        "operations": round(loads.operations, 4),
        "agents_lateness_s": late,
        "campaign_s": round(end_s - submitted_s, 1),
        "demo_s": round(time.time() - began_s, 1),
        "timeline": "demo-output/timeline.png",
    }
    write(summary, "summary.json")
    show(runs, loads, late, summary)
    console.print(f"look at it within a minute: {cluster.web_address()}")
    console.print("(later: `deploy/cluster.sh exec -u gleaner head glean web` prints a new code)")
    return 0 if all(run["identical"] and not run["doubts"] for run in runs) else 1


def show(
    runs: Sequence[dict[str, Any]], loads: timeline.Loads, late: dict[str, float], summary: dict[str, Any]
) -> None:
    """Print the tables at the end."""
    show_runs(runs)
    console.print(
        f"load of the cluster without Gleaner [bold]{loads.without:.0%}[/], "
        f"with Gleaner [bold]{loads.effective:.0%}[/] ({loads.operations:.0%} went to saving and restoring)"
    )
    if late:
        worst = max(late.values())
        console.print(f"agents: {len(late)}, the last was done {-worst:.1f} s before the shared end"
                      if worst <= 0 else f"[red]an agent was {worst:.1f} s late[/]")  # fmt: skip
    console.print(
        f"timeline: {summary['timeline']}    facts: demo-output/summary.json    {summary['demo_s']:.0f} s in all"
    )
    show_next(first_job=min(run["job"] for run in runs))


if __name__ == "__main__":
    sys.exit(ended(main, "make demo"))
