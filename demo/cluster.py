"""The cluster of `deploy/`, as the demo and the tests drive it: programs run inside its containers."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "deploy" / "cluster.sh"
NODES = ("node1", "node2", "node3")
SERVICE_USER = "gleaner"


class ClusterError(Exception):
    """A program inside the cluster failed; the message has its last words."""


@dataclass(frozen=True, slots=True)
class RegularJob:
    """A job of an ordinary user, as Slurm shows it. Times are seconds since the epoch."""

    id: str
    state: str
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None


def run(node: str, *words: str, user: str = "root", timeout_s: float = 120, stdin: str | None = None) -> str:
    """Run a program in one of the cluster's containers; what it printed."""
    as_user = words if user == "root" else ("runuser", "-u", user, "--", *words)
    done = subprocess.run(
        [str(SCRIPT), "exec", node, *as_user],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        input=stdin,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"{node}: {' '.join(words)}: status {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def glean(*words: str, after: Sequence[str] = (), timeout_s: float = 120) -> Any:
    """The answer of `glean WORDS --json [-- AFTER]`, run by the service account on the head."""
    tail = ("--", *after) if after else ()
    printed = run("head", "glean", *words, "--json", *tail, user=SERVICE_USER, timeout_s=timeout_s)
    return json.loads(printed) if printed.strip() else None


def sbatch(*options: str, script: str, user: str = "alice") -> str:
    """Submit a regular job; its id."""
    return run(
        "head", "sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options,
        user=user, stdin=f"#!/bin/sh\n{script}\n",
    ).strip().split(";")[0]  # fmt: skip


def regular_job(job: str) -> RegularJob:
    """What Slurm says of a job now (it forgets an ended one after a few minutes)."""
    found = json.loads(run("head", "scontrol", "show", "job", job, "--json"))["jobs"][0]
    start_s, end_s = (_number(found[key]) for key in ("start_time", "end_time"))
    states = found["job_state"]
    return RegularJob(
        id=job,
        state=states[0] if isinstance(states, list) else states,
        nodes=tuple(_hosts(found.get("nodes") or "")),
        start_s=start_s or None,
        end_s=end_s or None,
    )


def settings_file() -> Path:
    """The control program's settings on this machine, mounted into the head."""
    return Path("/var/lib/gleaner/cluster/etc/head/gleaner.toml")


def until(what: str, found: Callable[[], Any], *, timeout_s: float, every_s: float = 1.0) -> Any:
    """Wait until `found()` is true and return it; a failing program counts as not yet."""
    give_up_s = time.monotonic() + timeout_s
    last: Exception | None = None
    while time.monotonic() < give_up_s:
        try:
            if answer := found():
                return answer
        except (ClusterError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
            last = error
        time.sleep(every_s)
    raise TimeoutError(f"{what}: not within {timeout_s:.0f} s" + (f" ({last})" if last else ""))


def _number(value: object) -> float:
    return float(value.get("number") or 0) if isinstance(value, dict) else float(value or 0)  # type: ignore[arg-type]


def _hosts(text: str) -> Sequence[str]:
    if not text:
        return ()
    return run("head", "scontrol", "show", "hostnames", text).split()
