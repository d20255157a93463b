"""The harness of the tests of Slurm rights: the Slurm admin service as control asks it, and jobs as Slurm
shows them.
"""

import json
from typing import Any

from demo import cluster

ASK = """
import json, sys
from pathlib import Path
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable
from gleaner.control.slurm_admin.client import SlurmAdminClient
method, arguments, options = json.loads(sys.argv[1])
try:
    getattr(SlurmAdminClient(Path("/run/gleaner/slurm-admin.sock"), 30), method)(*arguments, **options)
    print("done")
except (ClusterRefused, ClusterUnavailable) as error:
    print(type(error).__name__ + ": " + str(error))
"""
SCRIPT = "sleep 300"
PARTITIONS = ["shared"]
"""The partitions of the shipped slurm-admin.conf."""


def ask(method: str, *arguments: Any, user: str = cluster.SERVICE_USER, **options: Any) -> str:
    """Return the Slurm admin service's answer to control's account: `done`, or its refusal."""
    given = json.dumps([method, arguments, options])
    return cluster.run("head", "/opt/gleaner/bin/python", "-c", ASK, given, user=user).strip()


def submit(*options: str, user: str = "alice", declared: str | None = None, script: str = SCRIPT) -> str:
    """A job in the partition with entitlements; its id."""
    comment = [f"--comment=gleaner:{declared}"] if declared else []
    return cluster.sbatch("--partition=shared", "--time=10", *comment, *options, script=script, user=user)


def refused(*words: str, user: str = "alice") -> str:
    """Return the error of a command of Slurm's that must fail for this user."""
    try:
        said = cluster.run("head", "timeout", "120", *words, user=user, stdin="#!/bin/sh\ntrue\n")
    except cluster.ClusterError as error:
        return str(error)
    raise AssertionError(f"{words} was not refused: {said}")


def mark(name: str) -> str:
    """Return the job's AdminComment."""
    return str(cluster.slurm_job(name)["admin_comment"])


def priority(name: str) -> int:
    """0 if it is held."""
    return int(cluster.slurm_job(name)["priority"]["number"])


def state(name: str) -> str:
    """Its states in one word."""
    return "+".join(sorted(cluster.slurm_job(name)["job_state"]))


def wait_for_state(name: str, wanted: str, *, timeout_s: float = 30) -> None:
    """Until the job is in this state and no other."""
    cluster.until(f"job {name} to be {wanted}", lambda: state(name) == wanted, timeout_s=timeout_s, every_s=0.5)


def enforce(text: str | None = None) -> None:
    """Give the head these settings of the Slurm admin service, or the shipped ones, and say that control is alive."""
    shipped = (cluster.ROOT / "deploy" / "settings" / "slurm-admin.conf").read_text()
    cluster.run("head", "sh", "-c", "cat > /etc/gleaner/slurm-admin.conf", stdin=text or shipped)
    assert ask("alive", PARTITIONS) == "done"


def no_jobs() -> None:
    """Cancel every user's jobs."""
    cluster.run("head", "sh", "-c", "; ".join(f"scancel --user={user}" for user in cluster.USERS))


def tidy() -> None:
    """No job of anybody's, no node drained by us, no heartbeat, the shipped settings."""
    no_jobs()
    enforce()
    for node in cluster.NODES:
        ask("resume", [node])
    cluster.run("head", "rm", "-f", "/run/gleaner/alive", "/run/gleaner/alive.nodes")
