"""The parts that the demos share: a campaign of Pythia jobs on the demo's cluster, and the proof that each result is
right."""

import json
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from demo import cluster, proof, reference, timeline

OUTPUT = cluster.ROOT / "demo-output"
console = Console()


@dataclass(frozen=True, slots=True)
class Sent:
    """A regular job of a demo."""

    id: str
    label: str
    """The job's name in the picture."""


def ended(show: Callable[[], int], command: str) -> int:
    """Show a demo and return its exit status. An error is printed as one line, and Ctrl-C leaves the cluster
    running."""
    try:
        return show()
    except KeyboardInterrupt:
        console.print(f"\ninterrupted; the cluster is still up (`{command}` again, or `make demo-down`)")
        return 130
    except (cluster.ClusterError, httpx.HTTPError, subprocess.SubprocessError, OSError) as error:
        console.print(f"demo: {' '.join(str(error).split()) or type(error).__name__}", style="red", markup=False)
        return 1


def stage(name: str, usual: str) -> None:
    """Print the name of the next stage and its usual duration, in the form of `deploy/prepare.sh`."""
    console.print(f"== {name} (usually {usual})", highlight=False)


def show_next(*, first_job: int) -> None:
    """Print six commands to try next, each on a separate line that can be copied."""
    glean = "deploy/cluster.sh exec -u gleaner head glean"
    program = "--seed 1 --events 50000 --process zmumu --out ."
    user = cluster.write_user_environment(OUTPUT)
    console.print("\nthe cluster stays up; six lines to try next:")
    for line in (
        f". {user.relative_to(Path.cwd())}    # this shell is a user's now: go on with docs/quickstart.md",
        f"{glean} show {first_job}",
        f"{glean} check --group physics --memory-mib 400 {reference.IMAGE} -- {program}",
        f"{glean} nodes",
        "make demo-entitlements",
        "make demo-down",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def submit(wanted: Sequence[reference.Wanted]) -> int:
    """Submit the campaign, as a user would."""
    words = ["--group", "physics", "--image", reference.IMAGE, "--name", "pythia", "--cpus", "1", "--memory-mib", "400"]
    indices = f"{wanted[0].index}-{wanted[-1].index}"
    answer = cluster.glean("submit", *words, "--array", indices, after=reference.arguments("{index}", wanted[0].events))
    return int(answer["campaign"])


def jobs_of(campaign: int) -> list[dict[str, Any]]:
    """Return all details of each job of the campaign."""
    rows = cluster.api("GET", f"/jobs?campaign={campaign}&limit=1000")["jobs"]
    return [cluster.api("GET", f"/jobs/{row['id']}") for row in rows]


def judged(
    jobs: Sequence[dict[str, Any]],
    campaign: int,
    wanted: Sequence[reference.Wanted],
    whole: Sequence[proof.Run],
    *,
    restores_at_least: int = 2,
    nodes_at_least: int = 2,
    has_pace: bool = True,
) -> list[dict[str, Any]]:
    """Return a row for each job, which compares its result with that of the same job computed without interruption.

    `has_pace` is True if there are enough jobs to measure the speed of the machine.
    """
    fetched = cluster.fetch_results(campaign, OUTPUT / "results")
    left = [left_by(job, run.index, fetched) for run, job in zip(wanted, jobs, strict=True)]
    at_pace = proof.pace(zip(left, whole, strict=True)) if has_pace else None
    lost_nodes_of = agents_that_lost_their_nodes(jobs)
    return [
        judge(
            run,
            job,
            mine,
            kept,
            restores_at_least=restores_at_least,
            nodes_at_least=nodes_at_least,
            at_pace=at_pace,
            lost_nodes_of=lost_nodes_of,
        )
        for run, job, mine, kept in zip(wanted, jobs, left, whole, strict=True)
    ]


def agents_that_lost_their_nodes(jobs: Sequence[dict[str, Any]]) -> set[str]:
    """Return the agents that fell silent because their node died, as Slurm reports. Any other silent agent has
    crashed."""
    silent = {a["agent"]: a["node"] for job in jobs for a in job["attempts"] if a["ending"] == "lost"}
    if not silent:
        return set()
    numbers = {agent["name"]: agent["scheduler_id"] for agent in cluster.api("GET", "/agents")}
    return {
        name
        for name, node in silent.items()
        if numbers.get(name) is not None and cluster.has_lost_its_node(numbers[name], node)
    }


def left_by(job: dict[str, Any], index: int, fetched: Path) -> proof.Run:
    """Return the files that a job left, with its whole log."""
    folder = fetched / f"{job['job']['name']}-{index}"
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))}
    return proof.Run(files=files, log=cluster.log_of(job["job"]["id"]))


def agents_since(since_s: float) -> list[dict[str, Any]]:
    """Return the agents that have registered since that time."""
    return [agent for agent in cluster.api("GET", "/agents") if (agent["registered_s"] or 0) >= since_s]


def lateness(agents: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds by which each ended agent was late, which are negative if it ended early."""
    return {a["name"]: round(a["ended_s"] - a["end_s"], 1) for a in agents if a["ended_s"]}


def judge(
    run: reference.Wanted,
    job: dict[str, Any],
    mine: proof.Run,
    uninterrupted: proof.Run,
    *,
    restores_at_least: int,
    nodes_at_least: int,
    at_pace: float | None,
    lost_nodes_of: Collection[str],
) -> dict[str, Any]:
    """Return one job's row, with its nodes, the use of its time, and the verdict on its result."""
    attempts = [a for a in job["attempts"] if a["started_s"] is not None]
    sliced = proof.SlicedRun(
        run=mine,
        nodes=[a["node"] for a in attempts],
        restores=sum(a["restored_from"] is not None for a in attempts),
        ended_from_outside=proof.ended_from_outside(job["attempts"], lost_nodes_of=lost_nodes_of),
        broken=proof.broken(job["attempts"], lost_nodes_of=lost_nodes_of),
    )
    return {
        "job": job["job"]["id"],
        "index": run.index,
        "events": run.events,
        "nodes": [a["node"] for a in attempts],
        "slices": len(attempts),
        "compute_s": round(sum(a["compute_s"] for a in attempts), 1),
        "save_s": round(sum(a["save_s"] for a in attempts), 1),
        "restore_s": round(sum(a["restore_s"] for a in attempts if a["restored_from"]), 1),
        "cpu_s": proof.cpu_s(mine.log),
        "cpu_uninterrupted_s": proof.cpu_s(uninterrupted.log),
        "identical": bool(mine.files) and not proof.files_differ(mine, uninterrupted),
        "ended_from_outside": list(sliced.ended_from_outside),
        "doubts": proof.doubts(
            sliced,
            uninterrupted,
            events=run.events,
            restores_at_least=restores_at_least,
            nodes_at_least=nodes_at_least,
            at_pace=at_pace,
        ),
    }


def regular_spans(sent: Sequence[Sent], end_s: float) -> list[timeline.Span]:
    """Return the times and nodes of the regular jobs, according to Slurm."""
    spans: list[timeline.Span] = []
    for job in sent:
        found = cluster.regular_job(job.id)
        if found.start_s and found.start_s < end_s:
            until_s = min(end_s, found.end_s or end_s)
            spans += [timeline.Span(node, "regular", found.start_s, until_s, job.label) for node in found.nodes]
    return spans


def write(summary: dict[str, Any], name: str) -> None:
    """Write the summary as JSON to the output folder."""
    (OUTPUT / name).write_text(json.dumps(summary, indent=2) + "\n")


def show_runs(runs: Sequence[dict[str, Any]]) -> None:
    """Print the table of the jobs, and everything that speaks against their results."""
    table = Table(title="every run, in seconds, beside the same run computed as a whole", title_justify="left")
    for column in ("run", "nodes", "slices", "comp s", "save s", "rest s", "cpu s", "whole s", "same"):
        table.add_column(column, justify="right" if column not in {"nodes", "same"} else "left", no_wrap=True)
    for run in runs:
        table.add_row(
            str(run["index"]), " ".join(node[-1] for node in run["nodes"]), str(run["slices"]),
            str(run["compute_s"]), str(run["save_s"]), str(run["restore_s"]),
            f"{run['cpu_s'] or 0:.1f}", f"{run['cpu_uninterrupted_s'] or 0:.1f}",
            "[green]yes[/]" if run["identical"] and not run["doubts"] else "[red]NO[/]",
        )  # fmt: skip
    console.print(table)
    for run in runs:
        for what in run["ended_from_outside"]:
            console.print(f"job {run['job']}: {what}; the part after its last checkpoint was computed again")
        for doubt in run["doubts"]:
            console.print(f"[red]job {run['job']}: {doubt}[/]")
