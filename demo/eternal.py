"""`make demo-eternal`: one endless job, which runs in thirty slices on all nodes.

The job generates events for hours. Each agent ends after half a minute, and the job is saved and continues in the next
agent. Now and then, a regular job needs the very node on which the job runs. Then the agent saves the job and leaves at
once, and the job continues on another node. At the end, the job's log must contain every event once, in order, from a
single start.
"""

import sys
import time
from collections import Counter
from itertools import pairwise

from rich.live import Live
from rich.table import Table

from demo import cluster, proof, reference
from demo.campaign import OUTPUT, console, ended, write

SLICES = 30
ROUND_S = 30
GIVE_UP_S = SLICES * ROUND_S * 2
PUSHED_EVERY = 4
"""The number of slices after which a regular job is submitted."""
PUSHED_FOR_S = 40
"""The duration of the regular job, in seconds. It is longer than a round, so that the next agent starts on another
node."""
EVENTS = 1_000_000
"""Enough events for two hours, which is practically endless here."""


def main() -> int:
    """Run until the job has had enough slices. Return 0 if none of its work was lost or done twice."""
    OUTPUT.mkdir(exist_ok=True)
    cluster.configure({"rounds": {"length_s": ROUND_S, "shortest_slice_s": 10}})
    cluster.clear()
    began_s = time.time()
    words = ["--group", "physics", "--image", reference.IMAGE, "--name", "eternal", "--cpus", "1"]
    after = reference.arguments("1", EVENTS)
    job = int(cluster.glean("submit", *words, "--memory-mib", "400", after=after)["jobs"][0])
    console.print(f"job {job} has no end; an agent ends every {ROUND_S} s\n")
    try:
        told = watch(job, began_s)
    finally:
        cluster.clear()
        cluster.configure()
    return conclude(job, told)


def watch(job: int, began_s: float) -> dict[str, object]:
    """Show the job's slices until there are enough. Return the details of the job."""
    pushed = 0
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while True:
            detail = cluster.api("GET", f"/jobs/{job}")
            slices = [attempt for attempt in detail["attempts"] if attempt["started_s"] is not None]
            table = Table(
                title=f"{time.time() - began_s:4.0f} s, slice {len(slices)} of {SLICES}", title_justify="left"
            )
            for column in ("slice", "node", "computed s", "saved s", "restored s", "ended"):
                table.add_column(column, justify="left" if column in {"node", "ended"} else "right")
            for number, one in list(enumerate(slices, start=1))[-8:]:
                seconds = [f"{one[key]:.1f}" for key in ("compute_s", "save_s", "restore_s")]
                table.add_row(str(number), one["node"], *seconds, one["ending"] or "runs")
            live.update(table)
            if len(slices) >= pushed + PUSHED_EVERY and detail["job"]["state"] == "Running":
                pushed, where = len(slices), detail["job"]["node"]
                cluster.sbatch(f"--nodelist={where}", "--exclusive", "--time=2", script=f"sleep {PUSHED_FOR_S}")
            if len(slices) > SLICES:
                return dict(detail)
            if detail["job"]["state"] == "Complete":
                raise SystemExit(f"the job has ended ({detail['job']['outcome']}); glean logs {job} says why")
            if time.time() - began_s > GIVE_UP_S:
                raise SystemExit(f"{len(slices)} slices within {GIVE_UP_S} s; {SLICES} were wanted")
            time.sleep(2)


def conclude(job: int, detail: dict[str, object]) -> int:
    """Check the job's whole log and return the exit status."""
    log = cluster.log_of(job)
    starts, events = proof.starts(log), proof.event_numbers(log)
    in_order = all(later == earlier + 1 for earlier, later in pairwise(events))
    attempts: list[dict[str, object]] = detail["attempts"]  # type: ignore[assignment]
    nodes = [str(one["node"]) for one in attempts]
    endings = Counter(str(one["ending"]) for one in attempts[:-1])
    where = ", ".join(sorted(set(nodes)))
    told = ", ".join(f"{count} {ending}" for ending, count in endings.items())
    console.print(f"{len(nodes) - 1} slices on {where} ({told}); {len(events)} events from {starts} start")
    for earlier, later in pairwise(events):
        if later != earlier + 1:
            console.print(f"[red]event {later} follows event {earlier}[/]")
    is_right = starts == 1 and len(events) > SLICES and in_order and len(set(nodes)) > 1 and "lost" not in endings
    write(
        {
            "job": job,
            "slices": len(nodes) - 1,
            "starts": starts,
            "events": len(events),
            "nodes": nodes,
            "endings": endings,
        },
        "eternal.json",
    )
    console.print(
        "[green]one process, from its only start[/]"
        if is_right
        else "[red]something was lost or repeated, or it never moved[/]"
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(ended(main, "make demo-eternal"))
